"""What changed between two reports: one program before and after, or on two machines."""

from dataclasses import dataclass, field

from torchdoctor.words.program import Location
from torchdoctor.words.trials import Interval


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """One of the two reports, and where its step time comes from."""

    name: str  #: The file.
    kind: str  #: run or trace.
    step_s: float  #: The step time that is compared.
    low_s: float | None = None  #: Where its spread begins.
    high_s: float | None = None  #: Where its spread ends.
    basis: str = ""  #: What step time and spread are of, in words.
    #: Mean step of the launch that was observed: the seconds of parts and findings are of this
    #: one.
    parts_s: float | None = None
    samples_per_step: float | None = None  #: Samples that one step trains on.
    #: What was run; of a trace, what diagnosed it.
    command: list[str] = field(default_factory=list)
    created: str = ""  #: When its report was made, ISO 8601 in UTC.


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One figure of both, per step where it is a count; None: not measured."""

    name: str  #: What it is.
    a: float | None  #: Of A.
    b: float | None  #: Of B.
    unit: str = ""  #: s, bytes, share, or what stands behind the figure.


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """One branch of the tree, or one phase of the step: seconds per step."""

    name: str  #: The branch or phase.
    a_s: float | None  #: Seconds per step of A.
    b_s: float | None  #: Seconds per step of B.
    change_s: float | None  #: B - A; null: not measured in one of them.


@dataclass(frozen=True, kw_only=True)
class OperatorChange:
    """One operator, per step."""

    name: str  #: The operator.
    #: new, gone, changed; newly listed or no longer listed if the other's list is full, so that it
    #: may be in both.
    change: str
    change_s: float  #: B - A of the device's time or the host's own, whichever changed more.
    a_calls: float | None = None  #: Calls per step of A.
    b_calls: float | None = None  #: Calls per step of B.
    a_self_s: float | None = None  #: Host time of its own per step of A.
    b_self_s: float | None = None  #: Host time of its own per step of B.
    a_device_s: float | None = None  #: Device time per step of A.
    b_device_s: float | None = None  #: Device time per step of B.


@dataclass(frozen=True, kw_only=True)
class FindingChange:
    """A finding of one of them only, or of both with another cost."""

    check: str  #: The check that found it.
    change: str  #: new, gone or changed.
    branch: str  #: The branch of the tree that it belongs to.
    #: What it costs per step of A; of a new one what was below the threshold there.
    a_s: float | None = None
    #: What it costs per step of B; of a gone one what is below the threshold there.
    b_s: float | None = None
    a_location: Location | None = None  #: Where, in A.
    b_location: Location | None = None  #: Where, in B.
    a_place: str = ""  #: The same relative to where the program ran.
    b_place: str = ""  #: The same relative to where the program ran.
    #: Sentences with figures, of the side that has it; of B where both have.
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is not a measurement and differs: a version, a device, a command."""

    name: str  #: What differs.
    a: str  #: Of A.
    b: str  #: Of B.


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What changed from A to B."""

    schema_version: str = "1.0"  #: Version of these names, "1.x".
    torchdoctor_version: str = ""  #: The version that wrote the file.
    a: ComparedSide  #: What is compared with.
    b: ComparedSide  #: What is compared.
    #: Of B: slower, faster, same, unclear where launches vary too much, or not comparable where
    #: the two are not the same workload.
    verdict: str
    sentence: str  #: The same in words, with where it lies.
    ratio: float  #: B's step time / A's.
    #: A's time / B's with Welch's interval; null: not both hold launches, or not comparable.
    speedup: Interval | None = None
    #: Throughput, memory and what traces count, of both.
    figures: list[ComparedFigure] = field(default_factory=list)
    #: Whether parts are branches of the tree or phases; none: not known.
    parts_are: str = "branches"
    #: Seconds per step of each part, the largest change first.
    parts: list[PartChange] = field(default_factory=list)
    #: Operators that changed most, at most ten, the largest change first.
    operators: list[OperatorChange] = field(default_factory=list)
    #: New findings, then gone ones, then those that cost something else.
    findings: list[FindingChange] = field(default_factory=list)
    #: Versions and devices that differ.
    environment: list[Difference] = field(default_factory=list)
    workload: list[Difference] = field(default_factory=list)  #: What differs in what was run.
    doubts: list[str] = field(default_factory=list)  #: Everything that weakens the comparison.
