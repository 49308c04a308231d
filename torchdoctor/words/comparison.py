"""What changed between two reports: one program before and after, or on two machines."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.program import Location
from torchdoctor.words.report import Interval


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """One of the two, and where its step time comes from."""

    name: str  # the file
    kind: str  # "run" | "trace"
    step_s: float  # the step time that is compared
    low_s: float | None = None  # its spread: 10 % to 90 % of the steps, or of the launches all
    high_s: float | None = None
    basis: str = ""  # what step_s and the spread are of, in words
    parts_s: float | None = None  # mean step of the launch that the parts and findings are of
    samples_per_step: float | None = None
    command: list[str] = field(default_factory=list)
    created: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One figure of both, per step where it is a count; None: not measured."""

    name: str
    a: float | None
    b: float | None
    unit: str = ""  # "s" | "bytes" | "share" | what stands behind the figure


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """One branch of the tree, or one phase of the step: seconds per step."""

    name: str
    a_s: float | None
    b_s: float | None
    change_s: float | None  # b - a; None: not measured in one of them


@dataclass(frozen=True, kw_only=True)
class OperatorChange:
    """One operator, per step.

    change: "new", "gone", "changed", or where the other's list of the most expensive is full
    "newly listed" and "no longer listed": it may be in both.
    """

    name: str
    change: str
    change_s: float  # of the device's time or the host's own, whichever changed more
    a_calls: float | None = None
    b_calls: float | None = None
    a_self_s: float | None = None
    b_self_s: float | None = None
    a_device_s: float | None = None
    b_device_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class FindingChange:
    """A finding of one of them only, or of both with another cost."""

    check: str
    change: str  # "new" | "gone" | "changed"
    branch: str  # of the tree, under which the check stands
    a_s: float | None = None  # what it costs per step
    b_s: float | None = None
    a_location: Location | None = None
    b_location: Location | None = None
    a_place: str = ""  # the location in words, relative to where the program ran
    b_place: str = ""
    evidence: list[str] = field(default_factory=list)  # of the one that has it; of B where both


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is not a measurement and differs: a version, a device, a command."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What changed from A to B.

    verdict: "slower", "faster", "same" or "unclear", of B, or "not comparable" where the two are not
    the same workload; speedup: A's time / B's, above 1 means that B is faster, with its interval
    where both have several launches.
    """

    schema_version: str = "1.0"
    torchdoctor_version: str = ""
    a: ComparedSide
    b: ComparedSide
    verdict: str
    sentence: str
    ratio: float  # B's step time / A's
    speedup: Interval | None = None
    figures: list[ComparedFigure] = field(default_factory=list)
    parts_are: str = "branches"  # "branches" | "phases" | "none"
    parts: list[PartChange] = field(default_factory=list)  # the largest change first
    operators: list[OperatorChange] = field(default_factory=list)
    findings: list[FindingChange] = field(default_factory=list)
    environment: list[Difference] = field(default_factory=list)
    workload: list[Difference] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
