"""The channel folder of a launch that took turns -> its blocks, and all of them as one launch."""

from __future__ import annotations

from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.launch_ending import with_ending
from torchdoctor.observe.events import Events, read_channel
from torchdoctor.pairs.launch_timing import beside_its_times, setup_s, without_window
from torchdoctor.pairs.switch_timing import measured_blocks
from torchdoctor.probe import step_log
from torchdoctor.words import Boundary, LaunchTiming, ProcessFacts, TurnsTaken


def turns_taken(
    result: LaunchResult, boundary: Boundary, warmup_steps: int, peak_memory_bytes: int | None
) -> TurnsTaken:
    """Read the blocks of the training process.

    Args:
        result: how the launch ended, and where its channel is.
        boundary: what separated iterations.
        warmup_steps: iterations of the first turn.
        peak_memory_bytes: of the process tree.
    """
    events, facts, _ = read_channel(result.channel)
    pids = [pid for pid, log in events.items() if len(log.at(step_log.BLOCK_BEGIN))]
    pid = min(pids, key=lambda pid: (events[pid].t_ns[0], pid), default=None)
    blocks = measured_blocks(events[pid], boundary) if pid is not None else []
    stopped = result.ended == "stopped"
    if pid is None or not blocks:
        timing = with_ending(without_window(facts), result, peak_memory_bytes)
        return TurnsTaken(timing=timing, stopped=stopped)
    fact = facts.get(pid, ProcessFacts(pid=pid))
    sizes = [block.timing.samples for block in blocks]
    timing = LaunchTiming(
        # One that crashed after its first blocks is no better than one that crashed before.
        ended="measured" if _went_well(result) else "failed",
        step_s=[step for block in blocks for step in block.timing.step_s],
        samples=None if None in sizes else sum(s for s in sizes if s is not None),
        window_s=sum(block.timing.window_s for block in blocks),
        setup_s=setup_s(fact, _warmup_s(events[pid], warmup_steps)),
        iterations=len(events[pid].at(step_log.BOUNDARY)),
        **beside_its_times(result.channel, pid, fact, boundary),
    )
    timing = with_ending(timing, result, peak_memory_bytes)
    return TurnsTaken(timing=timing, blocks=blocks, stopped=stopped)


def _went_well(result: LaunchResult) -> bool:
    """Ended from outside, or by itself without an error."""
    whole = result.ended == "exited" and not result.exit_code
    return not result.oom_killed and (whole or result.ended == "stopped")


def _warmup_s(log: Events, steps: int) -> float:
    """Seconds of the first turn, but for its last iteration: that ends after standing still."""
    marks = log.t_ns[log.at(step_log.BOUNDARY)[: max(steps, 1)]]
    return float(marks[-1] - marks[0]) / 1e9
