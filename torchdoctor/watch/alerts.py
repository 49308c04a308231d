"""Follows the logs of a watched run while they grow, and tells each thing that changes once."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchdoctor.reports.watched_facts import with_sentence
from torchdoctor.schema import fact
from torchdoctor.schema.watched import Alert
from torchdoctor.watch import means as tables
from torchdoctor.watch.causes import Change, cause_of
from torchdoctor.watch.changes import MEAN_S, RECENT, begins_at
from torchdoctor.watch.followed import ENOUGH, Followed
from torchdoctor.watch.inside import layout
from torchdoctor.watch.rank_alerts import rank_alerts
from torchdoctor.watch.recording import (
    Event,
    Process,
    ProcessLog,
    Rows,
    Steps,
    read_process,
    read_table,
)

_STARVED = 0.4  # of a step
_TOGETHER_S = 60.0  # ranks become slower together
_LONGEST = 3  # means that one step counts for
_AGAIN_S = 600.0  # the same cause is told once in so long
_LONGER = 1.3  # times what is usual, for an evaluation or a checkpoint
# Memory: how many means apart it is looked at, and for how many hours ahead its rise is told.
_RISES = ((1, 3.0), (12, 12.0), (120, 48.0))
_LOOKED_AT, _RISEN = 11, 8  # values, and rises among them
_LEAST_RISE = 32e6  # bytes
_MEGABYTE = 1e6
_MOST_USED, _FORGOTTEN = 60_000, 12_000  # means that are kept, and forgotten at once
_EARLIER, _MORE = 360, 1.3  # values that a rise is compared with, and how much larger it must be


class Alerts:
    """Looks at a `watch` folder again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.followed: dict[str, Followed] = {}
        self._told: dict[tuple[str, str, int | None], float] = {}
        self._slower_s = -math.inf  # when the last slower training that was told began

    def new(self, now_s: float | None = None) -> list[Alert]:
        """Return what has become certain since the last call; meant to be called every 5 s.

        `now_s`: Unix time. Takes some milliseconds for each process.
        """
        alerts: list[Alert] = []
        for path in sorted(self.folder.glob("*.json")):
            if not path.name.startswith("run-"):
                alerts += self._follow(path.stem)
        alerts += rank_alerts(list(self.followed.values()), time.time() if now_s is None else now_s)
        return [with_sentence(alert) for alert in alerts if self._is_news(alert)]

    def _is_news(self, alert: Alert) -> bool:
        if alert.kind == "slower":
            if abs(alert.t_unix_s - self._slower_s) < _TOGETHER_S:
                return False  # all ranks wait for the slowest
            self._slower_s = alert.t_unix_s
        often = alert.kind in ("slower", "evaluation", "checkpoint")
        all_ranks = often or alert.kind in ("memory", "starved")
        key = alert.kind, alert.cause, None if all_ranks else alert.rank
        before = self._told.get(key)
        self._told[key] = alert.t_unix_s
        return before is None or (often and alert.t_unix_s - before > _AGAIN_S)

    def _machine(self, host: str, since_ns: float) -> Rows:
        paths = self.folder.glob(f"machine-{host}-*.sensors")
        tables = [read_table(path, layout.MACHINE_COLUMNS) for path in paths]
        rows = max(tables, key=len, default=np.zeros(0, np.dtype(list(layout.MACHINE_COLUMNS))))
        return rows[max(int(np.searchsorted(rows["t_ns"], since_ns - 3e10)) - 1, 0) :]

    def _follow(self, stem: str) -> list[Alert]:
        """Take what one process has logged since the last look."""
        last_look = self.followed.get(stem)
        log = read_process(self.folder, stem, last_look.read if last_look else 0)
        if log is None:
            return []
        followed = self.followed.setdefault(stem, Followed(stem))
        followed.see(log)
        alerts = [*self._events(followed, log)]
        plain = np.flatnonzero(log.steps.plain)
        if not len(plain):
            return alerts
        steps = tables.comparable(log.steps)
        ends = tables.end_ns(log.steps)
        machine = self._machine(log.process.host, float(log.steps.start_ns[0]))
        begins = tables.stretches(steps)
        if len(machine) and ends[-1] - machine["t_ns"][-1] < 3e10:
            # Sensors are read later than steps end: a mean waits for them.
            sensed = int(np.searchsorted(ends[plain], machine["t_ns"][-1]))
            begins = begins[begins <= sensed]
        for number, row in enumerate(tables.means(steps, log.sensors, machine, begins)):
            followed.firsts.append(followed.read + int(plain[begins[number]]))
            followed.means.append(row)
            alerts += self._mean(followed, row)
        if len(begins) > 1:
            last = begins[-1]
            followed.skip(int(plain[last]) if last < len(plain) else len(log.steps))
        return alerts

    def _mean(self, followed: Followed, row: Rows) -> Iterator[Alert]:
        """Take the means of five more seconds of training."""
        yield from _growing(followed, row)
        yield from _starved(followed)
        if followed.process.overlapping is not None:
            return  # from one call to the next one is no call's time
        # Long steps count for as long as they take, but a single one is no level.
        counts = max(1, min(_LONGEST, round(float(row["steps"] * row["step_s"]) / MEAN_S)))
        shifts = [followed.level.add(float(row["usual_s"])) for _ in range(counts)]
        shift = next(filter(None, shifts), None)
        if shift is None:
            return
        # The moment: first among the means, then among the steps of the two around it.
        values = followed.table["usual_s"][-2 * RECENT :]
        firsts = list(followed.firsts)
        first = len(firsts) - len(values) + begins_at(values, shift)
        around = firsts[max(first - 1, 0)], firsts[min(first + 1, len(firsts) - 1)]
        log = read_process(self.folder, followed.stem, around[0])
        rows = log.steps.rows[: around[1] - around[0]] if log is not None else np.zeros(0)
        steps = tables.comparable(Steps(rows=rows))
        begun = min(begins_at(tables.training_s(steps) / steps.steps, shift), len(steps) - 1)
        step = steps.step[begun] - steps.steps[begun] + 1
        at_ns = float(steps.start_ns[begun])
        both = _around(followed, at_ns)
        followed.regime = int(step)
        if shift.ratio < 1 or not all(map(len, both)):
            return
        change = _change(both, followed.process)
        slowest, change = self._slowest(followed, at_ns, change)
        cause = cause_of(change)
        at_there = at_ns + (followed.unix_s(0) - slowest.unix_s(0)) * 1e9
        slower = fact("training-slower", slower=change.ratio("step_s"))
        alert = slowest.alert("slower", slower, at_there, step)
        yield replace(alert, cause=cause.name, why=cause.why, finding=cause.finding)

    def _slowest(self, followed: Followed, at_ns: float, change: Change) -> tuple[Followed, Change]:
        """Return the process, or the rank that it waits for, and what changed there."""
        slowest = followed
        for other in self.followed.values() if change.share("exchange") > 0.5 else ():
            rows = _around(other, at_ns + (followed.unix_s(0) - other.unix_s(0)) * 1e9)
            if all(map(len, rows)):
                there = _change(rows, other.process)
                if there.rise("exchange") < change.rise("exchange"):
                    slowest = other
                    change = there
        return slowest, change

    @staticmethod
    def _events(followed: Followed, log: ProcessLog) -> Iterator[Alert]:
        for event in log.events[followed.events :]:
            if event.kind in ("evaluation", "checkpoint"):
                yield from _pause(followed, event)
            elif event.kind == "loss":
                lost = fact("loss-not-finite", loss=event.text or "NaN")
                yield followed.alert("loss", lost, event.t_ns, event.step)
        followed.events = len(log.events)


def _change(rows: tuple[Rows, Rows], process: Process) -> Change:
    before, after = map(tables.level_of, rows)
    return Change(before, after, process)


def _around(followed: Followed, at_ns: float) -> tuple[Rows, Rows]:
    """Return the means before and after a moment, at the levels that meet there."""
    table = followed.table
    before = (table["end_ns"] <= at_ns) & (table["first_step"] >= followed.regime)
    return table[before], table[table["begin_ns"] >= at_ns - 0.2 * MEAN_S * 1e9]


def _growing(followed: Followed, row: Rows) -> Iterator[Alert]:
    """Tell where a memory rises steadily and will be full."""
    tree = row["tree_bytes"]
    limit = float(row["memory_limit_bytes"])
    used = float(tree if math.isfinite(tree) else row["process_rss_bytes"])
    free = float(row["memory_free_bytes"])
    followed.used.append((float(row["end_ns"]), used, float(row["last_step"])))
    del followed.used[: _FORGOTTEN if len(followed.used) > _MOST_USED else 0]
    for apart, hours in _RISES:
        if (len(followed.used) - 1) % apart or not math.isfinite(used + free):
            continue
        t_ns, values, steps = np.array(followed.used[: -apart * _LOOKED_AT - 1 : -apart]).T
        rises = -np.diff(values)
        low = int(np.argmin(values))
        if len(values) < _LOOKED_AT or (rises[:low] > 0).sum() < _RISEN:
            continue
        rise = values[0] - values[low]
        passed_s = (t_ns[0] - t_ns[low]) / 1e9
        # A leak is spread over the time, a jump is not.
        if rise < _LEAST_RISE or rises.max() > rise / 3 or free * passed_s > hours * 3600 * rise:
            continue
        before = np.array(
            [sample[1] for sample in followed.used[: -apart * _LOOKED_AT : apart]][-_EARLIER:]
        )
        if len(before) > low and rise < _MORE * (before[low:] - before[:-low]).max():
            continue  # it has moved as much before
        each = rise / max(steps[0] - steps[low], 1)
        grows = fact(
            "memory-grows",
            each_bytes=each if each >= _MEGABYTE else None,
            each_kb=each / 1e3 if each < _MEGABYTE else None,
            limit=limit if math.isfinite(limit) else None,
            full_at=steps[0] + free / each,
            left_s=free * passed_s / rise,
        )
        yield replace(followed.alert("memory", grows, t_ns[low], steps[low]), cause="leak")


def _starved(followed: Followed) -> Iterator[Alert]:
    """Tell where the training waits for data from its beginning; what comes later is a change."""
    if len(followed.means) != ENOUGH:
        return
    recent = followed.table
    share = float(np.median(recent["wait"] / recent["step_s"]))
    if share >= _STARVED:
        starves = fact("loader-starves", share=share, workers=followed.process.num_workers)
        yield followed.alert("starved", starves, recent["begin_ns"][0], recent["first_step"][0])


def _pause(followed: Followed, event: Event) -> Iterator[Alert]:
    """Tell where evaluations or checkpoints take longer than those before them."""
    earlier = followed.pauses.setdefault(event.kind, [])
    earlier.append(event)
    times = np.array([pause.seconds for pause in earlier])
    usual = math.inf
    spread = 0.0
    new = 2
    if len(times) > 4:
        usual = float(np.median(times[:-2]))
        spread = float(np.abs(times[:-2] - usual).max())
    if times[-2:].min() <= max(_LONGER * usual, usual + 2 * spread, usual + 0.5):
        usual = float(np.median(times[:-1])) if len(times) > 3 else math.inf
        new = 1
        if times[-1] <= max(2 * usual, usual + 20):  # a single one must be far longer
            return
    followed.pauses[event.kind] = earlier[-new:]
    first = earlier[-new]
    usual_s = usual if math.isfinite(usual) else None
    longer = fact(f"{event.kind}-longer", seconds=event.seconds, usual_s=usual_s)
    at_ns = event.t_ns - (1e9 * event.seconds if new == 1 else 0.0)
    yield replace(followed.alert(event.kind, longer, at_ns, first.step), cause=event.kind)
