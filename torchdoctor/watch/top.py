"""The live view of a watched run: reads its files only, twice a second."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from torchdoctor.reports import terminal
from torchdoctor.reports.document import (
    Block,
    Document,
    KeyFigures,
    Section,
    notes,
    sections,
    sentences,
)
from torchdoctor.reports.formats import program
from torchdoctor.watch import means as tables
from torchdoctor.watch.alerts import read_alerts
from torchdoctor.watch.end_report import phase_bars
from torchdoctor.watch.ranks import trained
from torchdoctor.watch.recording import PHASES, ProcessLog, Rows, Steps, WatchedRun
from torchdoctor.watch.summary import opened, standing
from torchdoctor.words.figures import counted, duration, memory, percent, seconds

_EVERY_S = 0.5
_MANY = 16  # ranks, whose logs are read less often
_RECENT_S, _TREND_S = 30.0, 600.0
_TREND = 48  # columns
_RISING = "▁▂▃▄▅▆▇█"
_HEAT = "·░▒▓█"
_PLAIN = str.maketrans(_RISING + _HEAT + "−", "_.,-~+*#" + ".:+%#" + "-")


def top(folder: Path) -> str:
    """Show a run until it ends or q is pressed; return a sentence for the terminal after that.

    Raise UsageError if nothing was watched there.
    """
    run = opened(folder)
    status, ending, _ = standing(run, time.time())
    report = f" Its report: torchdoctor report {folder}"
    if status != "running":
        return ending + report
    if not sys.stdout.isatty():
        return "\n".join(frame(run, time.time(), 100, 60, None))
    with _whole_screen(), _keys() as keys:
        looked_s = -1e9
        while status == "running":
            if time.monotonic() - looked_s > _EVERY_S * (8 if len(run.processes) > _MANY else 1):
                run, looked_s = opened(folder), time.monotonic()
            status, ending, _ = standing(run, time.time())
            size = os.get_terminal_size(sys.stdout.fileno())
            colours = None if "NO_COLOR" in os.environ else "standard"
            _draw(frame(run, time.time(), size.columns, size.lines, colours))
            if "q" in keys(_EVERY_S):
                return ""
    return ending + report


def frame(run: WatchedRun, now_s: float, width: int, height: int, colours: str | None) -> list[str]:
    """Return the lines of the view at a moment (Unix time), fewer than the terminal has."""
    logs = trained(run)
    start = run.starts[0] if run.starts else None
    log = next((log for log in logs if len(log.steps)), None)
    began_s = min((x.start_unix_ns for x in run.starts), default=0) / 1e9 or now_s
    name = program(start.command, start.cwd) if start is not None else run.folder.parent.name
    alerts = [alert.sentence for alert in read_alerts(run.folder)]
    screen = sections(
        ("", _progress(log, width) if log is not None else _waiting(logs, now_s - began_s)),
        ("", _step(log) if log is not None else []),
        ("", _sensors(run, log)),
        ("", _ranks(logs, width)),
        (f"Alerts ({len(alerts)})" if alerts else "", notes(alerts[::-1])),
    )
    document = Document(
        title="torchdoctor top",
        subject=f"{name} · {duration(now_s - began_s)} · q leaves",
        summary="",
        screen=_fitting(screen, width, height),
        details=[],
        hint="",
    )
    lines = terminal.render(document, width, False, colours).splitlines()
    return lines[: height - 1]


def _fitting(screen: list[Section], width: int, height: int) -> list[Section]:
    """Join what stands apart where the terminal is low, so that the alerts are still seen."""
    if height > 30 or not screen:
        return screen
    titled = [section for section in screen if section.title]
    return [Section("", [x for s in screen if not s.title for x in s.blocks]), *titled]


def _waiting(logs: list[ProcessLog], passed_s: float) -> list[Block]:
    failed = next((log.process.probe_failed for log in logs if log.process.probe_failed), None)
    if failed:
        return sentences(f"The probe removed itself, and the training goes on: {failed}")
    return sentences(f"No step has ended yet, {duration(passed_s)} after the start.", tone="strong")


def _last(log: ProcessLog, span_s: float) -> Steps:
    """Return the comparable steps of the last so many seconds of a log; at least its last rows."""
    rows = log.steps.rows
    first = int(np.searchsorted(rows["start_ns"], rows["start_ns"][-1] - span_s * 1e9))
    steps = tables.comparable(Steps(rows=np.array(rows[min(first, max(len(rows) - 5, 0)) :])))
    return steps if len(steps) else Steps(rows=np.array(rows[-5:]))


def _progress(log: ProcessLog, width: int) -> list[Block]:
    trend, recent = _last(log, _TREND_S), _last(log, _RECENT_S)
    count, spent_s = int(recent.steps.sum()), float(tables.training_s(recent).sum())
    per_s = count / max(spent_s, 1e-9)
    samples = float(np.nansum(recent.samples * recent.steps)) / max(spent_s, 1e-9)
    speed = f"{samples:,.0f} samples/s   " if samples else ""
    speed += f"{per_s:,.3g} steps/s   a step takes {seconds(1 / per_s)}"
    done = int(log.steps.step[-1])
    rows = [("speed", speed), ("of 10 minutes", _trend(trend, min(_TREND, width - 24)))]
    total, step = log.process.total_steps, f"Step {done:,}"
    if total:
        whole_s = float(tables.end_ns(log.steps)[-1] - log.steps.start_ns[0]) / 1e9
        left_s = whole_s / max(done, 1) * max(total - done, 0)
        step += f" of {total:,} ({percent(done / total)}), {duration(left_s)} left"
    return [KeyFigures(step, "", rows)]


def _trend(steps: Steps, columns: int) -> str:
    """Return the speed of the last ten minutes as a line of bars, from no step to the fastest."""
    at = steps.start_ns.astype(float)
    span = max(at[-1] - at[0], 1.0)
    cell = np.minimum(((at - at[0]) / span * columns).astype(int), columns - 1)
    spent = np.bincount(cell, tables.training_s(steps), columns)
    speed = np.bincount(cell, steps.steps, columns) / np.where(spent > 0, spent, np.inf)
    parts = np.ceil(speed / max(float(speed.max()), 1e-9) * len(_RISING)).astype(int)
    return "".join(" " if part == 0 else _RISING[min(part, len(_RISING)) - 1] for part in parts)


def _step(log: ProcessLog) -> list[Block]:
    recent = _last(log, _RECENT_S)
    phases = dict(zip(PHASES, (recent.phases_s * recent.steps[:, None]).sum(axis=0), strict=True))
    return phase_bars(phases)


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

    parts = []
    if known("busy_s", "tree_cpu_s", "cpus"):
        others = max(rate("busy_s") - rate("tree_cpu_s"), 0.0)
        parts.append(f"CPU {rate('tree_cpu_s'):.1f} of {last['cpus']:.0f} (others {others:.1f})")
    if known("tree_bytes", "memory_free_bytes"):
        parts.append(
            f"memory {_bytes(last, 'tree_bytes')}, {_bytes(last, 'memory_free_bytes')} free"
        )
    if known("gpu_utilization"):
        parts.append(f"GPU {percent(float(last['gpu_utilization']))}")
    if known("gpu_memory_bytes", "gpu_memory_limit_bytes"):
        limit = _bytes(last, "gpu_memory_limit_bytes")
        parts.append(f"GPU memory {_bytes(last, 'gpu_memory_bytes')} of {limit}")
    if known("read_bytes") and rate("read_bytes") > 1e5:
        parts.append(f"reads {rate('read_bytes') / 1e6:.1f} MB/s")
    for name, words in (("throttled_s", "CPU quota used up"), ("swap_in_bytes", "swaps")):
        parts += [words] if known(name) and rate(name) > 0.05 else []
    return sentences("   ".join(parts))


def _bytes(row: Rows, name: str) -> str:
    return memory(float(row[name]))


def _ranks(logs: list[ProcessLog], width: int) -> list[Block]:
    """Return a cell for each rank: the darker, the longer the others wait for it."""
    ranks = [log for log in logs if log.process.rank is not None]
    if len(ranks) < 2:
        return []
    own, behind = [], 0
    furthest = max(int(log.steps.rows["step"][-1]) if len(log.steps) else 0 for log in ranks)
    for log in ranks:
        recent = _last(log, _RECENT_S) if len(log.steps) else None
        if recent is None or furthest - int(recent.step[-1]) > max(10, 2 * len(recent)):
            own.append(np.nan)
            behind += 1
            continue
        waits = np.nan_to_num(tables.exchange_s(recent)).mean()
        own.append(float((tables.training_s(recent) / recent.steps).mean() - waits))
    usual = float(np.nanmedian(own)) if behind < len(own) else 1.0
    cells = "".join(
        "?" if np.isnan(x) else _HEAT[min(int(max(x / usual - 0.9, 0.0) * 10), len(_HEAT) - 1)]
        for x in own
    )
    room = max(width - 24, 10)
    lines = [cells[at : at + room] for at in range(0, len(cells), room)][:8]
    text = "own work against the median: · less than 1.0x to █ 1.3x and more"
    if behind < len(own):
        slowest = int(np.nanargmax(own))
        ratio = own[slowest] / usual
        text = f"rank {ranks[slowest].process.rank} works longest: {ratio:.2f}x the median"
    if behind:
        text += f"; {counted(behind, 'rank')} behind (?)"
    rows = [(f"from {at * room}", line) for at, line in enumerate(lines)]
    return [KeyFigures(f"{len(ranks)} ranks", text, rows)]


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
def _whole_screen() -> Iterator[None]:
    """Use the terminal's other screen, without a cursor; the first one comes back afterwards."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Return a function that waits so many seconds and returns what was pressed meanwhile."""
    if not sys.stdin.isatty():

        def nothing(wait_s: float) -> str:
            time.sleep(wait_s)
            return ""

        yield nothing
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(wait_s: float) -> str:
        if not select.select([descriptor], [], [], wait_s)[0]:
            return ""
        return os.read(descriptor, 64).decode(errors="replace").lower()

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
