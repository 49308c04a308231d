"""How a launch ended: a fact for what a report tells of it, words for an error, said at once."""

import re
from dataclasses import replace

from torchdoctor.launch import escaped_writes, layer_limits
from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.layer_words import in_words
from torchdoctor.schema import Evidence, LaunchTiming, fact, within
from torchdoctor.schema.figures import exit_code

_FEWEST_STEPS = 3
_LONGEST_LINE = 200  # characters that are kept of the last one that the program printed
# CUDA's; those of torch's allocator on the CPU; the C library's (a mapping, a fork); Python's own;
# and what a DataLoader says of a worker, torchrun of a rank, that the kernel killed.
_NO_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|Cannot allocate memory|^MemoryError"
    r"|killed by signal: Killed|\(SIGKILL\)",
    re.IGNORECASE | re.MULTILINE,
)
_KILLED = (-9, 137)


def with_ending(
    timing: LaunchTiming, result: LaunchResult, peak_memory_bytes: int | None
) -> LaunchTiming:
    """Return the timing with how the launch ended, and why where it gave no measurement."""
    timing = replace(timing, wall_s=result.wall_s)
    if not timing.gpu_memory and peak_memory_bytes is not None:
        timing = replace(timing, peak_memory_bytes=peak_memory_bytes)
    if timing.ended == "measured":
        return timing
    ended, why = _ending(result, len(timing.step_s))
    return replace(timing, ended=ended, why=why)


def _ending(result: LaunchResult, steps: int) -> tuple[str, Evidence | None]:
    if result.ended == "timed-out":
        return "timed-out", fact("window-not-finished", wall_s=result.wall_s)
    if result.ended == "interrupted":
        return "interrupted", fact("launch-interrupted")
    if _NO_MEMORY.search(result.output_tail):
        return "out-of-memory", fact("ran-out-of-memory")
    if result.exit_code in _KILLED:
        return "out-of-memory", fact("killed-for-memory", exit_code=result.exit_code)
    if result.exit_code == 0 and steps >= _FEWEST_STEPS:
        return "program-ended", None
    return "failed", _failure(result)


def _failure(result: LaunchResult) -> Evidence:
    """Return how the program ended, and what its layer or its own last line say of why."""
    layer = by_layer(result)
    lines = [line.strip() for line in result.output_tail.splitlines() if line.strip()]
    last_line = lines[-1][:_LONGEST_LINE] if lines else None
    if result.exit_code is None:
        of_layer = within(layer) if layer is not None else None
        return fact("stopped-unmeasured", last_line=last_line, layer=of_layer)
    if layer is not None:
        return fact("ended-by-layer", exit_code=result.exit_code, layer=within(layer))
    return fact("ended-with-code", exit_code=result.exit_code, last_line=last_line)


def by_layer(result: LaunchResult) -> Evidence | None:
    """Return what its layer had to do with how it ended; None: nothing, as mostly."""
    if result.full_layer is not None:
        return layer_limits.full(result.full_layer)
    if result.sandbox == "landlock" and layer_limits.was_denied(result.output_tail):
        return fact("maybe-denied-by-sandbox")
    return None


def how_it_ended(result: LaunchResult) -> str:
    """Return a few words for an error: "exit code 1", "stopped after 60 s"."""
    if result.ended == "timed-out":
        return f"stopped after {result.wall_s:.0f} s"
    return "stopped" if result.exit_code is None else exit_code(result.exit_code)


def besides(result: LaunchResult) -> list[Evidence]:
    """Return what its end may have to do with: files that it changed, memory, its layer."""
    facts = []
    if result.escaped_writes:
        facts.append(escaped_writes.changed_while_it_ran(result.escaped_writes))
    if result.exit_code in _KILLED:
        facts.append(fact("maybe-killed-for-memory"))
    layer = by_layer(result)
    if layer is not None:
        facts.append(layer)
    return facts


def said_besides(result: LaunchResult) -> str:
    """Return the same as an error says it."""
    return " ".join(map(in_words, besides(result)))
