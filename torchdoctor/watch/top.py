"""The live view of a watched run: reads its files only, twice a second."""

import contextlib
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from torchdoctor.reports import terminal
from torchdoctor.reports.document import Block, Document, KeyFigures, notes, sections, sentences
from torchdoctor.reports.formats import program
from torchdoctor.reports.watched import phase_bars
from torchdoctor.reports.watched_facts import of_fact, sentence_of
from torchdoctor.schema.figures import counted, duration, memory, percent, seconds
from torchdoctor.schema.units import several
from torchdoctor.watch import means as tables
from torchdoctor.watch.followed import read_alerts
from torchdoctor.watch.inside.layout import PASS_BEGAN
from torchdoctor.watch.ranks import trained
from torchdoctor.watch.recording import PHASES, ProcessLog, Steps, WatchedRun, opened
from torchdoctor.watch.summary import standing

_EVERY_S = 0.5
_MANY = 16  # ranks, whose logs are read less often
_RECENT_S = 30.0
_TREND_S = 600.0
_TREND = 48  # columns
_RISING = "▁▂▃▄▅▆▇█"
_HEAT = "·░▒▓█"
_PLAIN = str.maketrans(_RISING + _HEAT[:-1], "_.,-~+*#" + ".:+%")


def top(folder: Path) -> str:
    """Show a run until it ends or q is pressed; return a sentence for the terminal after that.

    Raise UsageError if nothing was watched there.
    """
    run = opened(folder)
    status, ending, _ = standing(run, time.time())
    report = f" Its report: torchdoctor report {folder}"
    if status != "running":
        return of_fact(ending) + report
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return "\n".join(frame(run, time.time(), 100, 60, None))
    with _whole_terminal() as keys:
        looked_s = -1e9
        while status == "running":
            if time.monotonic() - looked_s > _EVERY_S * (8 if len(run.processes) > _MANY else 1):
                run = opened(folder)
                looked_s = time.monotonic()
            status, ending, _ = standing(run, time.time())
            size = os.get_terminal_size(sys.stdout.fileno())
            colours = None if "NO_COLOR" in os.environ else "standard"
            _draw(frame(run, time.time(), size.columns, size.lines, colours))
            if "q" in keys():
                return ""
    return of_fact(ending) + report


def frame(run: WatchedRun, now_s: float, width: int, height: int, colours: str | None) -> list[str]:
    """Return the lines of the view at a moment (Unix time), fewer than the terminal has."""
    logs = trained(run)
    start = run.starts[0] if run.starts else None
    log = next((log for log in logs if len(log.steps)), None)
    began_s = min((start.start_unix_ns for start in run.starts), default=0) / 1e9 or now_s
    name = program(start.command, start.cwd) if start is not None else run.folder.parent.name
    alerts = [sentence_of(alert) for alert in read_alerts(run.folder)]
    blocks = _waiting(logs, now_s - began_s) if log is None else _progress(log, width)
    blocks += [*_sensors(run, log), *_ranks(logs, width)]
    screen = sections(("", blocks), (f"Alerts ({len(alerts)})", notes(alerts[::-1])))
    subject = f"{name} · {duration(now_s - began_s)} · q leaves"
    document = Document(
        title="torchdoctor top", subject=subject, summary="", screen=screen, details=[], hint=""
    )
    return terminal.render(document, width, False, colours).splitlines()[: height - 1]


def _waiting(logs: list[ProcessLog], passed_s: float) -> list[Block]:
    failed = next((log.process.probe_failed for log in logs if log.process.probe_failed), None)
    if failed:
        return sentences(f"The probe removed itself, and the program goes on: {failed}")
    return sentences(f"No step has ended yet, {duration(passed_s)} after the start.", tone="strong")


def _last(log: ProcessLog, span_s: float) -> Steps:
    """Return the comparable steps of the last so many seconds of a log; at least its last rows."""
    rows = log.steps.rows
    first = int(np.searchsorted(rows["start_ns"], rows["start_ns"][-1] - span_s * 1e9))
    steps = tables.comparable(Steps(rows=np.array(rows[min(first, max(len(rows) - 5, 0)) :])))
    return steps if len(steps) else Steps(rows=np.array(rows[-5:]))


def _progress(log: ProcessLog, width: int) -> list[Block]:
    trend = _last(log, _TREND_S)
    recent = _last(log, _RECENT_S)
    count = int(recent.steps.sum())
    spent_s = float(tables.training_s(recent).sum())
    per_s = count / max(spent_s, 1e-9)
    samples = float(np.nansum(recent.samples * recent.steps)) / max(spent_s, 1e-9)
    speed = f"{samples:,.0f} samples/s   " if samples else ""
    unit = log.process.unit
    speed += f"{per_s:,.3g} {several(unit)}/s   a {unit} takes {seconds(1 / per_s)}"
    done = int(log.steps.step[-1])
    rows = [("speed", speed), ("of 10 minutes", _trend(trend, min(_TREND, width - 24)))]
    part = ""
    epoch = _epoch(log.steps)
    if epoch is not None and epoch[0] <= done <= sum(epoch):
        since = done - epoch[0]
        length = epoch[1]
        left = duration((length - since) / per_s)
        part = f"{since:,} of {length:,} in this epoch, {left} until its end"
    phases = dict(zip(PHASES, recent.spent_s.sum(axis=0), strict=True))
    return [KeyFigures(f"{unit.capitalize()} {done:,}", part, rows), *phase_bars(phases)]


def _epoch(steps: Steps) -> tuple[int, int] | None:
    """Return the steps before this pass over the data, and those of a pass; None: they differ."""
    begun = steps.step[steps.has(PASS_BEGAN)].tolist()[-3:]
    begun = [0 if step == 1 else int(step) for step in begun]  # with the first or the last step
    lengths = np.diff(begun)
    return (begun[-1], int(lengths[-1])) if len(lengths) and np.ptp(lengths) <= 1 else None


def _trend(steps: Steps, columns: int) -> str:
    """Return the speed of the last ten minutes as a line of bars, from no step to the fastest."""
    columns = max(columns, 1)  # of a terminal that is narrower than what stands beside them
    at = steps.start_ns.astype(float)
    span = max(at[-1] - at[0], 1.0)
    cell = np.minimum(((at - at[0]) / span * columns).astype(int), columns - 1)
    spent = np.bincount(cell, tables.training_s(steps), columns)
    speed = np.bincount(cell, steps.steps, columns) / np.where(spent > 0, spent, np.inf)
    parts = np.ceil(speed / max(float(speed.max()), 1e-9) * len(_RISING)).astype(int)
    return "".join(" " if part == 0 else _RISING[min(part, len(_RISING)) - 1] for part in parts)


def _sensors(run: WatchedRun, log: ProcessLog | None) -> list[Block]:
    host = log.process.host if log is not None else next(iter(run.machines), "")
    rows = run.machines.get(host, np.zeros(0))
    if len(rows) < 2:
        return []
    first, last = rows[max(len(rows) - 8, 0)], rows[-1]
    passed_s = max(float(last["t_ns"] - first["t_ns"]) / 1e9, 1e-9)

    def rate(name: str) -> float:
        return float(last[name] - first[name]) / passed_s

    def known(*names: str) -> bool:
        return all(np.isfinite(last[name]) for name in names)

    def size(name: str) -> str:
        return memory(float(last[name]))

    parts = []
    if known("busy_s", "tree_cpu_s", "cpus"):
        other_cpus = max(rate("busy_s") - rate("tree_cpu_s"), 0.0)
        parts.append(
            f"CPU {rate('tree_cpu_s'):.1f} of {last['cpus']:.0f} (others {other_cpus:.1f})"
        )
    if known("tree_bytes", "memory_free_bytes"):
        parts.append(f"memory {size('tree_bytes')}, {size('memory_free_bytes')} free")
    if known("gpu_utilization", "gpu_memory_bytes"):
        parts.append(f"GPU {percent(last['gpu_utilization'])}, {size('gpu_memory_bytes')}")
    for name, least, words in (
        ("read_bytes", 1e5, f"reads {rate('read_bytes') / 1e6:.1f} MB/s"),
        ("throttled_s", 0.05, "CPU quota used up"),
        ("swap_in_bytes", 1e5, "swaps"),
    ):
        parts += [words] if known(name) and rate(name) > least else []
    return sentences("   ".join(parts))


def _ranks(logs: list[ProcessLog], width: int) -> list[Block]:
    """Return a cell for each rank: the darker, the longer the others wait for it."""
    ranks = [log for log in logs if log.process.rank is not None]
    if len(ranks) < 2:
        return []
    own_s: list[float] = []
    furthest = max(int(log.steps.rows["step"][-1]) if len(log.steps) else 0 for log in ranks)
    for log in ranks:
        recent = _last(log, _RECENT_S) if len(log.steps) else None
        silent = recent is None or furthest - recent.step[-1] > max(10, 2 * len(recent))
        own_s.append(math.nan if recent is None or silent else _own_s(recent))
    behind = int(np.isnan(own_s).sum())
    usual = float(np.nanmedian(own_s)) if behind < len(own_s) else 1.0
    cells = "".join(
        "?"
        if np.isnan(spent_s)
        else _HEAT[min(int(max(spent_s / usual - 0.9, 0.0) * 10), len(_HEAT) - 1)]
        for spent_s in own_s
    )
    room = max(width - 24, 10)
    lines = [cells[at : at + room] for at in range(0, len(cells), room)][:8]
    slowest = int(np.nanargmax(own_s)) if behind < len(own_s) else 0
    rank = ranks[slowest].process.rank
    text = f"rank {rank} works longest: {own_s[slowest] / usual:.2f}x the median"
    text += f"; {counted(behind, 'rank')} behind (?)" if behind else ""
    rows = [(f"from {at * room}", line) for at, line in enumerate(lines)]
    return [KeyFigures(f"{len(ranks)} ranks", text, rows)]


def _own_s(steps: Steps) -> float:
    """Return the mean time of a step without the wait for other ranks."""
    waits = np.nan_to_num(tables.exchange_s(steps)).mean()
    return float((tables.training_s(steps) / steps.steps).mean() - waits)


def _draw(lines: list[str]) -> None:
    text = "\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J"
    encoding = sys.stdout.encoding or "ascii"
    try:
        data = text.encode(encoding)
    except UnicodeError:
        data = text.translate(_PLAIN).encode(encoding, "replace")
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


@contextlib.contextmanager
def _whole_terminal() -> Iterator[Callable[[], str]]:
    """Take the terminal's other screen; yield a function that waits and returns pressed keys."""
    import termios  # there is none on Windows
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> str:
        ready = select.select([descriptor], [], [], _EVERY_S)[0]
        return os.read(descriptor, 64).decode(errors="replace").lower() if ready else ""

    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
