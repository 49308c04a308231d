"""The channel folder of a timed launch -> `LaunchTiming`: one sample of a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.observe.events import Events, read_channel, read_losses
from torchdoctor.observe.steps import count_samples
from torchdoctor.probe import step_log
from torchdoctor.words import Boundary, LaunchTiming, ProcessFacts


def launch_timing(channel: Path, boundary: Boundary) -> LaunchTiming:
    """Read the measured window of every training process of one launch.

    Times are those of the main trainer; samples of all trainers add up, as rates.

    Args:
        channel: the launch's channel folder.
        boundary: what separated iterations.

    Returns:
        `ended` is "measured" where the main trainer's window is whole, "program-ended" where it
        was cut off after at least one step, else "failed" with the reason None: only whoever
        started the launch knows it.
    """
    events, facts, _ = read_channel(channel)
    windows = _windows(events)
    if not windows:
        return without_window(facts)
    main = _main(windows, events, facts)
    log, rows = events[main], windows[main]
    steps = np.diff(log.t_ns[rows]) / 1e9
    window_s = float(steps.sum())
    whole = bool(len(log.at(step_log.WINDOW_END)))
    fact = facts.get(main, ProcessFacts(pid=main))
    # The synchronisation at its end belongs to the window; `rows` holds the boundary after it.
    rates = [_rate(events[pid], windows[pid], boundary) for pid in windows]
    samples = None if None in rates else sum(r for r in rates if r is not None) * window_s
    begun = log.t_ns[log.at(step_log.WINDOW_BEGIN)[0]] - log.t_ns[0]
    return LaunchTiming(
        ended="measured" if whole else "program-ended",
        step_s=[float(x) for x in steps],
        samples=samples,
        window_s=window_s,
        setup_s=setup_s(fact, float(begun) / 1e9),
        **beside_its_times(channel, main, fact, boundary),
    )


def beside_its_times(
    channel: Path, pid: int, fact: ProcessFacts, boundary: Boundary
) -> dict[str, Any]:
    """Fields of `LaunchTiming`: the training process's losses, samples, memory and fixes."""
    gpu = fact.peak_gpu_memory_bytes
    return {
        "losses": _losses(channel, pid),
        "fingerprints": _fingerprints(fact, boundary),
        "peak_memory_bytes": gpu if gpu is not None else fact.peak_memory_bytes,
        "gpu_memory": gpu is not None,
        "fixes": list(fact.fixes),
        "seeded_by_program": fact.seeded_by_program,
    }


def without_window(facts: Mapping[int, ProcessFacts]) -> LaunchTiming:
    """Of a launch that measured nothing: what became of its fixes."""
    trained = [pid for pid, fact in facts.items() if fact.fixes and not fact.is_loader_worker]
    pid = min(trained, default=None)
    return LaunchTiming(ended="failed", fixes=[] if pid is None else list(facts[pid].fixes))


def measured_edges(channel: Path) -> np.ndarray:
    """Times (ns) of the boundaries in the main trainer's measured window; empty: none.

    Returns:
        int64 of shape (steps + 1,).
    """
    events, facts, _ = read_channel(channel)
    windows = _windows(events)
    if not windows:
        return np.zeros(0, dtype=np.int64)
    main = _main(windows, events, facts)
    return events[main].t_ns[windows[main]]


def _windows(events: Mapping[int, Events]) -> dict[int, np.ndarray]:
    return {pid: window for pid, log in events.items() if (window := _window(log)) is not None}


def _main(
    windows: Mapping[int, np.ndarray],
    events: Mapping[int, Events],
    facts: Mapping[int, ProcessFacts],
) -> int:
    return min(windows, key=lambda pid: (_rank(facts, pid), events[pid].t_ns[0], pid))


def _window(log: Events) -> np.ndarray | None:
    """Rows of the boundaries of the measured window; None where it holds no whole iteration."""
    begin = log.at(step_log.WINDOW_BEGIN)
    if not len(begin):
        return None
    rows = log.at(step_log.BOUNDARY)
    rows = rows[rows > begin[0]]
    return rows if len(rows) > 1 else None


def _rate(log: Events, rows: np.ndarray, boundary: Boundary) -> float | None:
    loader = boundary.ident if boundary.kind == "loader" else None
    samples = count_samples(log, int(rows[0]), int(rows[-1]), loader)
    seconds = float(log.t_ns[rows[-1]] - log.t_ns[rows[0]]) / 1e9
    return None if samples is None or seconds <= 0 else samples / seconds


def _losses(channel: Path, pid: int) -> list[float | None]:
    """+inf marks a backward without a scalar loss; NaN stays, it says that training broke."""
    values = read_losses(channel / f"losses-{pid}.bin")
    return [None if math.isinf(x) and x > 0 else float(x) for x in values]


def _fingerprints(fact: ProcessFacts, boundary: Boundary) -> list[str]:
    for loader in fact.loaders:
        if boundary.kind == "loader" and loader.ident == boundary.ident:
            return list(loader.sample_fingerprints)
    return next((list(x.sample_fingerprints) for x in fact.loaders if x.sample_fingerprints), [])


def setup_s(fact: ProcessFacts, to_window_s: float) -> float:
    """Process start to the window, as far as known: start-up and compilation are in it."""
    return (fact.first_step_s or 0.0) + to_window_s


def _rank(facts: Mapping[int, ProcessFacts], pid: int) -> int:
    rank = facts[pid].rank if pid in facts else None
    return rank if rank is not None else 1 << 30
