"""The channel folder of a launch that took turns -> its blocks, and all of them as one launch."""

from __future__ import annotations

from torchdoctor.probe import step_log
from torchdoctor.recording.events import read_channel
from torchdoctor.recording.launch import LaunchResult
from torchdoctor.recording.launch_ending import with_ending
from torchdoctor.recording.switch_timing import measured_blocks
from torchdoctor.recording.turns import TurnsTaken
from torchdoctor.records import Boundary, LaunchTiming


def turns_taken(
    result: LaunchResult, boundary: Boundary, peak_memory_bytes: int | None
) -> TurnsTaken:
    """Read the blocks of the training process.

    Args:
        result: how the launch ended, and where its channel is.
        boundary: what separated iterations.
        peak_memory_bytes: of the process tree.
    """
    events, facts, _ = read_channel(result.channel)
    pids = [pid for pid, log in events.items() if len(log.at(step_log.BLOCK_BEGIN))]
    pid = min(pids, key=lambda pid: (events[pid].t_ns[0], pid), default=None)
    blocks = measured_blocks(events[pid], boundary) if pid is not None else []
    fact = facts.get(pid) if pid is not None else None
    gpu = fact.peak_gpu_memory_bytes if fact is not None else None
    sizes = [block.timing.samples for block in blocks]
    timing = LaunchTiming(
        ended="measured" if blocks else "failed",
        step_s=[step for block in blocks for step in block.timing.step_s],
        samples=None if None in sizes or not sizes else sum(s for s in sizes if s is not None),
        window_s=sum(block.timing.window_s for block in blocks),
        peak_memory_bytes=gpu,
        gpu_memory=gpu is not None,
    )
    return TurnsTaken(timing=with_ending(timing, result, peak_memory_bytes), blocks=blocks)
