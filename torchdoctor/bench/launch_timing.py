"""The channel folder of a timed launch -> `LaunchTiming`: its window or blocks, and more."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchdoctor.launch.endings import with_ending
from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.observe.events import Events, read_channel, read_decisions, read_losses
from torchdoctor.observe.steps import count_samples
from torchdoctor.probe import step_log
from torchdoctor.schema import Block, Boundary, Fingerprint, LaunchTiming, LoaderFacts, ProcessFacts

Rows = NDArray[np.int64]


def read_launch(
    result: LaunchResult, spec: LaunchSpec, peak_memory_bytes: int | None = None
) -> LaunchTiming:
    """Return what a launch of `spec`, whose boundary is known, measured, and how it ended.

    `peak_memory_bytes`: of all its processes, as sampled.
    """
    assert spec.boundary is not None
    turns = spec.plan.get("turns")
    warmup_steps = (turns or spec.plan).get("warmup_steps", 0)
    timing = launch_timing(result.channel, spec.boundary, warmup_steps)
    went_well = result.ended == "stopped" or (result.ended == "exited" and not result.exit_code)
    if turns and timing.blocks and went_well:
        timing = replace(timing, ended="measured")  # no mark ends its last block
    timing = replace(timing, stopped=turns is not None and result.ended == "stopped")
    # What is set up between two samples is in the kernel's record of the process alone.
    peaks = [peak for peak in (peak_memory_bytes, timing.peak_memory_bytes) if peak is not None]
    return with_ending(timing, result, max(peaks, default=None))


def launch_timing(channel: Path, boundary: Boundary, warmup_steps: int = 0) -> LaunchTiming:
    """Return the measured window or blocks of a launch; `warmup_steps`: before the first block.

    Times are those of the main trainer; samples of all trainers add up, as rates. `ended` is
    "measured" where the main trainer's window is whole, "program-ended" where it was cut off after
    at least one step, else "failed" with no reason: only whoever started the launch knows it.
    """
    events, facts, _ = read_channel(channel)
    in_blocks = {pid: log for pid, log in events.items() if len(log.at(step_log.BLOCK_BEGIN))}
    windows = {} if in_blocks else measured_windows(events)
    main = main_process(in_blocks or windows, events, facts)
    blocks = _measured_blocks(in_blocks[main], boundary) if main in in_blocks else []
    if main is None or not (blocks or windows):
        trained = [pid for pid, fact in facts.items() if fact.fixes and not fact.is_loader_worker]
        fixes = list(facts[min(trained)].fixes) if trained else []
        return LaunchTiming(ended="failed", fixes=fixes)
    log = events[main]
    fact = facts.get(main, ProcessFacts(pid=main))
    is_whole = len(log.at(step_log.WINDOW_END)) > 0
    marks = log.at(step_log.BOUNDARY)
    if blocks:
        steps = [step for block in blocks for step in block.step_s]
        samples = _total([block.samples for block in blocks])
        # Without the last iteration of the warm-up, which ends after standing still.
        first = marks[0]
        begin = marks[: max(warmup_steps, 1)][-1]
    else:
        # The synchronisation at its end belongs to the window; `rows` holds the boundary after it.
        steps = _step_times(log, windows[main])
        rates = [_rate(events[pid], windows[pid], boundary) for pid in windows]
        samples = _total([None if rate is None else rate * sum(steps) for rate in rates])
        first = 0
        begin = log.at(step_log.WINDOW_BEGIN)[0]
    gpu = fact.peak_gpu_memory_bytes
    return LaunchTiming(
        ended="measured" if is_whole else "failed" if blocks else "program-ended",
        step_s=steps,
        samples=samples,
        window_s=sum(steps),
        blocks=blocks,
        iterations=len(marks) if blocks else len(marks) - 1,
        losses=_losses(channel, main),
        decisions=read_decisions(channel / f"decisions-{main}.bin"),
        fingerprints=_fingerprints(fact, boundary),
        peak_memory_bytes=gpu if gpu is not None else fact.peak_memory_bytes,
        gpu_memory=gpu is not None,
        on_device=fact.accelerator is not None,
        fixes=list(fact.fixes),
        setup_s=(fact.first_step_s or 0.0) + int(log.t_ns[begin] - log.t_ns[first]) / 1e9,
    )


def _measured_blocks(log: Events, boundary: Boundary) -> list[Block]:
    """Return whole blocks in order, without those that were cut off or hold no iteration."""
    begins = log.at(step_log.BLOCK_BEGIN)
    ends = log.at(step_log.BLOCK_END)
    marks = log.at(step_log.BOUNDARY)
    blocks = []
    for begin, end in zip(begins, ends, strict=False):  # the last one may be cut off
        rows = marks[(marks > begin) & (marks < end)]
        if len(rows) < 2:
            continue
        steps = _step_times(log, rows)
        blocks.append(
            Block(
                arm=int(log.ident[begin]),
                round=int(log.value[begin]),
                began_s=float(log.t_ns[rows[0]]) / 1e9,
                ended_s=float(log.t_ns[rows[-1]]) / 1e9,
                step_s=steps,
                samples=_samples(log, rows, boundary),
                window_s=sum(steps),
            )
        )
    return blocks


def last_switched_on(channel: Path) -> int | None:
    """Return the arm that was on when a launch ended, 0 for none; None: before its first block."""
    for log in read_channel(channel)[0].values():
        if len(log.at(step_log.BLOCK_BEGIN)):
            switched = log.at(step_log.SWITCH)
            return int(log.ident[switched[-1]]) if len(switched) else 0
    return None


def measured_windows(events: Mapping[int, Events]) -> dict[int, Rows]:
    """Return the boundaries of each process's measured window that holds a whole iteration."""
    windows = {}
    for pid, log in events.items():
        begin = log.at(step_log.WINDOW_BEGIN)
        rows = log.at(step_log.BOUNDARY)
        if len(begin) and len(rows := rows[rows > begin[0]]) > 1:
            windows[pid] = rows
    return windows


def main_process(
    measured: Mapping[int, object], events: Mapping[int, Events], facts: Mapping[int, ProcessFacts]
) -> int | None:
    """Return the pid of rank 0, or of the process that began first; None where none measured."""

    def key(pid: int) -> tuple[float, int, int]:
        rank = facts[pid].rank if pid in facts else None
        return (math.inf if rank is None else rank, int(events[pid].t_ns[0]), pid)

    return min(measured, key=key, default=None)


def _step_times(log: Events, rows: Rows) -> list[float]:
    return [float(step) for step in np.diff(log.t_ns[rows]) / 1e9]


def _samples(log: Events, rows: Rows, boundary: Boundary) -> float | None:
    loader = boundary.ident if boundary.kind == "loader" else None
    return count_samples(log, int(rows[0]), int(rows[-1]), loader)


def _rate(log: Events, rows: Rows, boundary: Boundary) -> float | None:
    samples = _samples(log, rows, boundary)
    seconds = float(log.t_ns[rows[-1]] - log.t_ns[rows[0]]) / 1e9
    return None if samples is None or seconds <= 0 else samples / seconds


def _total(parts: list[float | None]) -> float | None:
    return None if None in parts else sum(part for part in parts if part is not None)


def _losses(channel: Path, number: int) -> list[float | None]:
    """Return losses; +inf marks a backward without a scalar loss, NaN that training broke."""
    values = read_losses(channel / f"losses-{number}.bin")
    return [None if math.isinf(value) and value > 0 else float(value) for value in values]


def _of_loader(loader: LoaderFacts) -> list[Fingerprint]:
    # A process that was written down while another thread of it took a batch may lack a label.
    hashes = zip(loader.input_hashes, loader.label_hashes, strict=False)
    return [Fingerprint(input=hashed, label=label) for hashed, label in hashes]


def _fingerprints(fact: ProcessFacts, boundary: Boundary) -> list[Fingerprint]:
    for loader in fact.loaders:
        if boundary.kind == "loader" and loader.ident == boundary.ident:
            return _of_loader(loader)
    return next(
        (_of_loader(loader) for loader in fact.loaders if loader.input_hashes),
        [],
    )
