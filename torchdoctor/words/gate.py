"""What a gate says: two versions of a program, measured against each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.environment import Environment
from torchdoctor.words.report import Interval, WorkloadRecord


@dataclass(frozen=True, kw_only=True)
class GateMetric:
    """One figure of both versions. `ratio` is new / reference; above 1 is more of it."""

    name: str  # step_time | samples_per_s | peak_memory | data_loader_share
    # step_time, samples_per_s: geometric mean over the pairs, so that new / reference is `ratio`;
    # peak_memory: median over the launches; data_loader_share: of one observing launch, with a
    # tolerance the mean of two.
    reference: float | None = None
    new: float | None = None
    unit: str = ""
    ratio: Interval | None = None  # with its 95 % interval, where launches were paired
    tolerance: float | None = None  # accepted growth, as a share; None: shown, never fails
    verdict: str = "not measured"  # see gate_notes.py


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The verdict of a gate, and what it rests on.

    verdict: "not slower", "slower" or "inconclusive"; sentence says it in words.
    """

    schema_version: str = "1.2"
    torchdoctor_version: str = ""
    created: str = ""  # ISO 8601, UTC
    workload: WorkloadRecord
    environment: Environment
    reference: str  # the commit, or the stored report
    verdict: str
    sentence: str
    metrics: list[GateMetric] = field(default_factory=list)
    pairs: int = 0
    per: str = "sample"  # what a time is per: "sample" or "step"
    p_value: float | None = None
    # New / reference of the mean step with its interval, where typical steps decide.
    mean_ratio: Interval | None = None
    blind_spot: float | None = None  # the largest slow-down that is not ruled out, as a share
    measured: str = "in turns"  # "side by side" | "in turns" | "stored"
    doubts: list[str] = field(default_factory=list)
    interrupted: bool = False
    broken: bool = False  # the working tree's program failed, hung, or had no training step
    run_folder: str | None = None
