"""Made-up logs of watched runs: steady training with realistic noise, and changes planted in it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.schema.watched import Alert
from torchdoctor.watch.alerts import Alerts
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Event, Process, Start

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import watched_folders

START_UNIX_NS = 1_790_000_000_000_000_000
START_NS = 10**15
HOST = "node"
Columns = Any


@dataclass
class Run:
    """What one simulated process would have written; times in seconds since its start."""

    steps: Columns
    process: Columns
    machine: Columns
    events: list[Event] = field(default_factory=list)
    rank: int | None = None
    world: int | None = None

    @property
    def ends_s(self) -> np.ndarray:
        return np.cumsum(total(self.steps))


def total(rows: Columns) -> np.ndarray:
    return np.sum([rows[name].astype(float) for name in layout.PHASES], axis=0)


def _noise(rng: np.random.Generator, count: int, steps: float, spread: float) -> np.ndarray:
    """Noise that remembers itself over so many steps, with tails heavier than a normal one's."""
    kept = math.exp(-1 / max(steps, 1e-9))
    drawn = rng.standard_t(4, count) / math.sqrt(2) * spread * math.sqrt(1 - kept * kept)
    remembered = accumulate(drawn, lambda before, now: before * kept + now)
    return np.fromiter(remembered, float, count)


def steady(hours: float, step_s: float = 0.2, seed: int = 0, noise: float = 1.0) -> Run:
    """Training that does not change: noise on three scales, stalls, other people's jobs of up to
    25 s, epochs, evaluations, checkpoints, and a page cache that fills or empties slowly.
    """
    rng = np.random.default_rng(seed)
    count = int(hours * 3600 / step_s)
    rows = watched_folders.empty_rows(count, layout.STEP_COLUMNS)
    rows["step"], rows["steps"] = np.arange(1, count + 1), 1
    rows["samples"], rows["elements"] = 32, 32 * 4096
    slow = _noise(rng, count, 20 / step_s, 0.02) + _noise(rng, count, 300 / step_s, 0.02)
    for name, share in (("wait", 0.08), ("copy", 0.02), ("forward", 0.3), ("backward", 0.4)):
        own = _noise(rng, count, 1.5, 0.2 if name == "wait" else 0.08)
        rows[name] = share * step_s * np.exp(noise * (slow + own))
    rows["optimizer"], rows["other"] = 0.15 * step_s, 0.04 * step_s
    rows["wait"] *= np.exp(rng.choice([-0.4, 0.4]) * np.linspace(0, 1, count))
    spikes = rng.random(count) < 0.002
    rows["forward"][spikes] *= rng.uniform(2, 8, spikes.sum())
    rows["gc"][rng.random(count) < 0.01] = 0.1 * step_s
    stalls = rng.random(count) < step_s / 480
    rows["wait"][stalls] += rng.uniform(2, 12, stalls.sum())
    epoch = max(int(900 / step_s), 1)  # the loader starts again
    rows["wait"][::epoch] += rng.uniform(2, 4, len(rows["wait"][::epoch]))
    rows["flags"][::epoch] |= layout.PASS_BEGAN
    for first in rng.integers(0, count, rng.poisson(hours * 1.5)):
        last = first + int(rng.uniform(5, 25) / 1.4 / step_s)
        for name in ("forward", "backward"):
            rows[name][first:last] *= 1.55
    events: list[Event] = []
    for kind, every_s, long_s in (("evaluation", 1800, 40), ("checkpoint", 3600, 8)):
        for at in range(int(every_s / step_s), count, int(every_s / step_s)):
            rows[kind][at] = long_s * math.exp(rng.normal(0, 0.06))
            events.append(Event(t_ns=at, step=at, kind=kind, seconds=float(rows[kind][at])))
    run = Run(rows, None, None, events)
    finish(run, rng)
    return run


def finish(run: Run, rng: np.random.Generator) -> None:
    """Set the times of the steps and events, and make the sensors' rows."""
    ends = run.ends_s
    run.steps["start_ns"] = START_NS + ((ends - total(run.steps)) * 1e9).astype(np.int64)
    run.events = [replace(x, t_ns=START_NS + int(ends[x.step] * 1e9)) for x in run.events]
    at = np.arange(0.0, ends[-1] + 900, 2.5)  # a change makes the run longer
    for name, columns in (("process", layout.PROCESS_COLUMNS), ("machine", layout.MACHINE_COLUMNS)):
        rows = watched_folders.empty_rows(len(at), columns)
        rows["t_ns"] = START_NS + (at * 1e9).astype(np.int64)
        rows["unix_ns"] = START_UNIX_NS + (at * 1e9).astype(np.int64)
        setattr(run, name, rows)
    run.process["step"] = np.searchsorted(ends, at)
    run.process["phase"] = layout.FORWARD
    size = len(at)

    def summed(rate: float | np.ndarray, spread: float = 0.1) -> np.ndarray:
        return np.cumsum(2.5 * rate * np.exp(_noise(rng, size, 4, spread)))

    run.process["cpu_s"], run.process["queued_s"] = summed(2.0), summed(0.02, 0.4)
    run.process["major_faults"], run.process["swapped_bytes"] = summed(0.2, 0.5), 0
    run.process["rss_bytes"] = 4e9 + 30e6 * _noise(rng, size, 20, 1.0)
    m = run.machine
    m["cpus"], m["tree_cpu_s"], m["own_cpu_s"] = 8, summed(5.0, 0.03), summed(0.01)
    m["busy_s"] = m["tree_cpu_s"] + m["own_cpu_s"] + summed(0.2, 0.5)
    m["iowait_s"], m["io_pressure_s"] = summed(0.05, 0.5), summed(0.03, 0.5)
    m["cpu_pressure_s"], m["memory_pressure_s"] = summed(0.05, 0.5), 0
    m["throttled_s"], m["swap_in_bytes"] = 0, 0
    m["cpu_mhz"] = 2800 * np.exp(_noise(rng, size, 10, 0.02))
    m["read_ops"], m["read_bytes"] = summed(400), summed(60e6)
    m["tree_bytes"] = 9e9 + 60e6 * _noise(rng, size, 60, 1.0)
    m["tree_bytes"] += 400e6 * (1 - np.exp(-at / 1800))  # allocators fill up
    m["memory_limit_bytes"] = 64e9
    m["memory_free_bytes"] = 50e9 - (m["tree_bytes"] - 9e9)


Plant = Callable[[Run, int, np.ndarray], None]  # the run, the step, and the sensor rows after it


def _rise(rows: Columns, name: str, after: np.ndarray, rate: float) -> None:
    """Let a sum grow by so much more in each second."""
    rows[name][after] += rate * 2.5 * np.arange(1, after.sum() + 1)


def _loader(run: Run, step: int, after: np.ndarray) -> None:
    run.steps["wait"][step:] += 0.4 * run.steps["forward"].mean() * 3
    _rise(run.machine, "tree_cpu_s", after, 1.5)
    _rise(run.machine, "busy_s", after, 1.5)


def _batch(run: Run, step: int, after: np.ndarray) -> None:
    for name in ("samples", "elements", "forward", "backward", "copy"):
        run.steps[name][step:] *= 2


def _core(run: Run, step: int, after: np.ndarray) -> None:
    for name in ("forward", "backward"):
        run.steps[name][step:] *= 1.5
    _rise(run.machine, "busy_s", after, 1.0)
    _rise(run.machine, "cpu_pressure_s", after, 0.4)
    _rise(run.process, "queued_s", after, 0.2)


def _leak(run: Run, step: int, after: np.ndarray) -> None:
    rise = 5e6 * 2.5 * np.arange(1, after.sum() + 1)
    run.machine["tree_bytes"][after] += rise
    run.machine["memory_free_bytes"][after] -= rise


def _swap(run: Run, step: int, after: np.ndarray) -> None:
    for name in ("forward", "backward", "optimizer"):
        run.steps[name][step:] *= 1.6
    run.process["swapped_bytes"][after] = 900e6
    _rise(run.process, "major_faults", after, 400)
    _rise(run.machine, "swap_in_bytes", after, 8e6)
    _rise(run.machine, "memory_pressure_s", after, 0.3)


def _quota(run: Run, step: int, after: np.ndarray) -> None:
    for name in ("forward", "backward", "optimizer", "other"):
        run.steps[name][step:] *= 1.5
    _rise(run.machine, "throttled_s", after, 1.2)


def _storage(run: Run, step: int, after: np.ndarray) -> None:
    run.steps["wait"][step:] += run.steps["forward"].mean() * 1.2
    _rise(run.machine, "io_pressure_s", after, 0.5)


def _garbage(run: Run, step: int, after: np.ndarray) -> None:
    run.steps["gc"][step:] += 0.3 * run.steps["forward"].mean() * 3


def _evaluation(run: Run, step: int, after: np.ndarray) -> None:
    later = run.steps["evaluation"][step:]
    later[later > 0] += 30


def _sequences(run: Run, step: int, after: np.ndarray) -> None:
    run.steps["elements"][step:] *= 2
    for name in ("forward", "backward"):
        run.steps[name][step:] *= 2


def _recompilation(run: Run, step: int, after: np.ndarray) -> None:
    run.steps["flags"][step::7] |= layout.RECOMPILED | layout.NEW_INPUT
    run.steps["forward"][step::7] += 24 * run.steps["forward"].mean()


# Name, cause that must be told, how it is planted.
PLANTS: tuple[tuple[str, str, Plant], ...] = (
    ("loader slowed", "loader-cpu-bound", _loader),
    ("batch grown", "batch", _batch),
    ("another program takes a core", "other-load", _core),
    ("memory leak", "leak", _leak),
    ("swap", "swapping", _swap),
    ("CPU quota", "quota-used-up", _quota),
    ("slow storage", "loader-io-bound", _storage),
    ("garbage collection storms", "gc-pauses", _garbage),
    ("evaluation grown", "evaluation", _evaluation),
    ("longer sequences", "sequences", _sequences),
    ("recompilation", "recompilation", _recompilation),
)


def planted(plant: Plant, minutes: float, step_s: float = 0.2, seed: int = 0) -> tuple[Run, float]:
    """Return a run whose last two minutes are changed, and when the change began (s)."""
    run = steady((minutes + 2.5) / 60, step_s, seed)
    step = int(np.searchsorted(run.ends_s, 60 * minutes))
    if plant is _evaluation:  # one each minute, or nothing could be compared
        for at in range(step % int(60 / step_s), len(run.steps), int(60 / step_s)):
            run.steps["evaluation"][at] = 10.0
            run.events.append(Event(t_ns=at, step=at, kind="evaluation", seconds=10.0))
    changed_s = float(run.ends_s[step - 1])
    plant(run, step, np.zeros(len(run.machine), bool))
    run.events = [replace(x, seconds=float(run.steps[x.kind][x.step])) for x in run.events]
    finish(run, np.random.default_rng(seed + 1000))
    steps = run.steps.copy()
    plant(run, step, run.machine["t_ns"] >= START_NS + changed_s * 1e9)
    run.steps = steps
    return run, changed_s


def ranks_of(run: Run, slow: int, step: int, world: int = 4) -> list[Run]:
    """Return a run as ranks that exchange gradients each step; `slow` is behind from `step` on."""
    runs = []
    behind = float(np.median(run.steps["forward"]))
    for rank in range(world):
        rows = run.steps.copy()
        wait = np.full(len(rows), 0.002)
        if rank == slow:
            rows["forward"][step:] += behind
        else:
            rows["backward"][step:] += behind
            wait[step:] += behind
        ready = total(rows) - rows["optimizer"] - rows["other"]
        rows["entry"] = [layout.coded(x) for x in ready - wait]
        rows["exchanged"] = [layout.coded(x) for x in ready]
        part = replace(run, steps=rows, rank=rank, world=world)
        finish(part, np.random.default_rng(rank))
        runs.append(part)
    return runs


def replayed(folder: Path, runs: list[Run], every_s: float = 5.0) -> Iterator[tuple[float, Alert]]:
    """Write the logs bit by bit, as time passes; yield each alert with the second it came at."""
    start = Start(host=HOST, pid=1, command=["python", "train.py"], cwd="/", start_ns=START_NS)
    machine = f"machine-{HOST}-1.sensors"
    watched_folders.write_start(folder, start, runs[0].machine[:0])
    stems = [_begin(folder, run, number) for number, run in enumerate(runs)]
    ends = [run.ends_s for run in runs]
    watcher, end_s = Alerts(folder), max(float(x[-1]) for x in ends)
    ends_ns = [START_NS + x * 1e9 for x in ends]
    done = {}
    now_s = 0.0
    while now_s < end_s:
        now_s = min(now_s + every_s, end_s)
        now_ns = START_NS + int(now_s * 1e9)
        parts = [(machine, runs[0].machine, runs[0].machine["t_ns"])]
        for stem, run, at in zip(stems, runs, ends_ns, strict=True):
            parts += [(f"{stem}.steps", run.steps, at)]
            parts += [(f"{stem}.sensors", run.process, run.process["t_ns"])]
            with (folder / f"{stem}.events").open("a") as file:
                for event in run.events:
                    if now_ns - every_s * 1e9 < event.t_ns <= now_ns:
                        file.write(json.dumps(asdict(event)) + "\n")
        for name, rows, t_ns in parts:
            first, last = done.get(name, 0), int(np.searchsorted(t_ns, now_ns, "right"))
            done[name] = last
            with (folder / name).open("ab") as file:
                file.write(rows[first:last].tobytes())
        for alert in watcher.new(START_UNIX_NS / 1e9 + now_s):
            yield now_s, alert


def _begin(folder: Path, run: Run, number: int) -> str:
    process = Process(
        host=HOST,
        pid=100 + number,
        start_ns=START_NS,
        start_unix_ns=START_UNIX_NS,
        rank=run.rank,
        world_size=run.world,
        num_workers=8,
    )
    return watched_folders.write_process(folder, process, run.steps[:0], run.process[:0])
