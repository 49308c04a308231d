"""The ending of a launch, in words and as that of a timed launch."""

from __future__ import annotations

import re
from dataclasses import replace

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
    """Return the timing with how the launch ended, and why where it gave no measurement."""
    timing = replace(timing, wall_s=result.wall_s)
    if not timing.gpu_memory and peak_memory_bytes is not None:
        timing = replace(timing, peak_memory_bytes=peak_memory_bytes)
    if timing.ended == "measured":
        return timing
    ended, reason = _ending(result, len(timing.step_s))
    return replace(timing, ended=ended, reason=reason)


def _ending(result: LaunchResult, steps: int) -> tuple[str, str | None]:
    if result.ended == "timed-out":
        return "timed-out", f"It did not finish its window in {result.wall_s:.0f} s."
    if result.ended == "interrupted":
        return "interrupted", "Interrupted."
    if result.oom_killed or _NO_MEMORY.search(result.output_tail):
        return "out-of-memory", "It ran out of memory."
    if result.exit_code == 0 and steps >= _FEWEST_STEPS:
        return "program-ended", None
    lines = [line.strip() for line in result.output_tail.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    return "failed", f"The program ended with {how_it_ended(result)}{last}"
