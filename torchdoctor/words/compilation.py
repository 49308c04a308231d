"""What torch.compile did while a program that uses it was watched."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.location import Location


@dataclass(frozen=True, kw_only=True)
class CompileReason:
    """Why a graph broke, or why a function was compiled again, by torch's own words."""

    reason: str
    location: Location | None = None  # of the user's line
    text: str = ""  # the source line there
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class GaveUp:
    """A function that is no longer compiled for new inputs: too many versions of it."""

    function: str  # as torch names it: "'forward' (/home/me/train.py:5)"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """Of one process that compiled something: torch's counters since its start."""

    graphs: int = 0
    compile_s: float = 0.0
    graph_breaks: int = 0
    breaks: list[CompileReason] = field(default_factory=list)  # by count, at most 8
    recompiles: int = 0  # further versions of what was compiled before
    recompile_reasons: list[CompileReason] = field(default_factory=list)  # by count, at most 8
    gave_up: list[GaveUp] = field(default_factory=list)
    # Since the first backward pass or optimizer step had ended:
    watched_s: float = 0.0
    later_recompiles: int = 0
    later_most: int = 0  # of them, those of the function that has most
    later_s: float = 0.0  # in them, at most watched_s


@dataclass(frozen=True, kw_only=True)
class TracedCompilation:
    """What a trace shows of torch.compile; per step means."""

    compiles_per_step: float  # functions compiled within the steps
    compile_s: float  # in compiling, backward graphs included
    steps_with: int  # steps in which something is compiled
    regions_per_step: float  # compiled pieces that run
    again: int | None = None  # of the compilations, those of a further version; None: not said
    resumed: list[Location] = field(default_factory=list)  # lines at which a graph breaks


_ON_SIZES = ("size mismatch", "stride mismatch", ".size()", ".stride()", ".shape")


def on_sizes(reason: str) -> bool:
    """Whether the guard that failed, by torch's words, is one on the sizes of a tensor."""
    return any(part in reason for part in _ON_SIZES)
