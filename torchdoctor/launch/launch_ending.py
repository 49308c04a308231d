"""The ending of a launch, in words and as that of a timed launch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from torchdoctor.launch.launch import LaunchResult
from torchdoctor.words import LaunchTiming

_FEWEST_STEPS = 3
# CUDA's; those of torch's allocator on the CPU; the C library's (a mapping, a fork); Python's own.
_NO_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|Cannot allocate memory|^MemoryError",
    re.IGNORECASE | re.MULTILINE,
)


def how_it_ended(result: LaunchResult) -> str:
    """Return a few words for a sentence: "exit code 1", "killed by signal 9"."""
    if result.ended == "timed-out":
        return f"stopped after {result.wall_s:.0f} s"
    if result.exit_code is not None and result.exit_code < 0:
        return f"killed by signal {-result.exit_code}"
    return f"exit code {result.exit_code}"


def with_ending(
    timing: LaunchTiming, result: LaunchResult, peak_memory_bytes: int | None
) -> LaunchTiming:
    """Add how the launch ended, and why where it gave no measurement."""
    more: dict[str, Any] = {"wall_s": result.wall_s}
    if not timing.gpu_memory and peak_memory_bytes is not None:
        more["peak_memory_bytes"] = peak_memory_bytes
    if timing.ended == "measured":
        return replace(timing, **more)
    if result.ended == "timed-out":
        return replace(
            timing,
            ended="timed-out",
            reason=f"It did not finish its window in {result.wall_s:.0f} s.",
            **more,
        )
    if result.ended == "interrupted":
        return replace(timing, ended="interrupted", reason="Interrupted.", **more)
    if result.oom_killed or _says_out_of_memory(result.output_tail):
        return replace(timing, ended="out-of-memory", reason="It ran out of memory.", **more)
    if result.exit_code == 0 and len(timing.step_s) >= _FEWEST_STEPS:
        return replace(timing, ended="program-ended", reason=None, **more)
    return replace(timing, ended="failed", reason=_last_line(result), **more)


def _last_line(result: LaunchResult) -> str:
    lines = [line.strip() for line in result.output_tail.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    return f"The program ended with {how_it_ended(result)}{last}"


def _says_out_of_memory(output: str) -> bool:
    """Return whether a failed program's output says so, in the words of any allocator."""
    return bool(_NO_MEMORY.search(output))
