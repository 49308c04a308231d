"""What changed between two reports: one program before and after, or on two machines."""

from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.schema.evidence import Evidence, Remark
from torchdoctor.schema.summary import Summary
from torchdoctor.schema.trials import Interval


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """One of the two reports, and where its step time comes from."""

    name: str  #: The file.
    kind: str  #: run or trace.
    step_s: float  #: The step time that is compared.
    low_s: float | None = None  #: Where its spread begins.
    high_s: float | None = None  #: Where its spread ends.
    #: What step time and spread are of: median-of-steps, mean-of-steps, mean-of-launches (where
    #: the spread is from the smallest to the largest), whole-trace or mean-of-traced-steps.
    measured_as: Evidence | None = None
    basis: str = ""  #: The same in words, for readers.
    parts_s: float | None = None  #: Mean step of the observed launch: parts and findings are its.
    samples_per_step: float | None = None  #: Samples that one step trains on.
    command: list[str] = field(default_factory=list)  #: What was run, or what diagnosed a trace.
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
    """One operator or kernel, per step, or per call where steps are not marked."""

    name: str  #: The operator.
    change: str  #: new, gone, changed; newly listed, no longer listed: the other's list is full.
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
    a_s: float | None = None  #: Cost per step of A; of a new one what lay below the threshold.
    b_s: float | None = None  #: Cost per step of B; of a gone one what lies below the threshold.
    a_place: str = ""  #: File and line in A, relative to where the program ran.
    b_place: str = ""  #: File and line in B, relative to where the program ran.
    #: The facts that it rests on; of B if both have it.
    evidence: list[Evidence] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is not a measurement and differs: a version, a device, a command."""

    name: str  #: What differs.
    a: str  #: Of A.
    b: str  #: Of B.


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What changed from A to B."""

    summary: Summary | None = None  #: The answer, in at most 2 KB; null: written without one.
    schema_version: str = "2.1"  #: Version of these names, "2.x".
    torchdoctor_version: str = ""  #: The version that wrote the file.
    kind: Annotated[str, "training", "inference"] = "training"  #: What both programs do.
    unit: Annotated[str, "step", "batch", "call"] = "step"  #: What a step of them is called.
    a: ComparedSide  #: What is compared with.
    b: ComparedSide  #: What is compared.
    verdict: str  #: Of B: slower, faster, same, unclear (launches vary) or not comparable.
    answer: list[Evidence] = field(default_factory=list)  #: What it says, and where it lies.
    sentence: str = ""  #: The same in words, for readers.
    ratio: float  #: B's step time / A's; per call of what both ran, weighted by A's calls.
    speedup: Interval | None = None  #: A's time / B's by Welch; null: no launches or incomparable.
    figures: list[ComparedFigure] = field(default_factory=list)  #: Throughput, memory and others.
    parts_are: str = "branches"  #: branches of the tree, phases, or none where not known.
    parts: list[PartChange] = field(default_factory=list)  #: The largest change first.
    per: str = "step"  #: What times of kernels and operators are per: step, or call without steps.
    kernels: list[OperatorChange] = field(default_factory=list)  #: The ten that changed, per call.
    operators: list[OperatorChange] = field(default_factory=list)  #: The ten that changed most.
    findings: list[FindingChange] = field(default_factory=list)  #: New, then gone, then changed.
    environment: list[Difference] = field(default_factory=list)  #: Differing versions and devices.
    workload: list[Difference] = field(default_factory=list)  #: What differs in what was run.
    remarks: list[Remark] = field(default_factory=list)  #: Everything that weakens it.
    doubts: list[str] = field(default_factory=list)  #: The same in words, for readers.
