"""What a gate says: two versions of a program, measured against each other."""

from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.schema.environment import Environment
from torchdoctor.schema.evidence import Evidence, Remark
from torchdoctor.schema.network import NetworkUse
from torchdoctor.schema.report import OtherLoad, WorkloadRecord
from torchdoctor.schema.summary import Summary
from torchdoctor.schema.trials import Interval


@dataclass(frozen=True, kw_only=True)
class GateMetric:
    """One figure of both versions."""

    name: str  #: step_time, samples_per_s, peak_memory or data_loader_share.
    #: Geometric mean over the pairs; of memory the median, of data_loader_share one launch or two.
    reference: float | None = None
    new: float | None = None  #: The same of the new version.
    unit: str = ""  #: Of both.
    ratio: Interval | None = None  #: New / reference with its 95 % interval; null: not paired.
    tolerance: float | None = None  #: Accepted growth as a share; null: shown, never fails.
    #: Of peak memory: the largest growth, as a share, that the report of the applied patch
    #: (`--patch-of`) measured with it. It is accepted too; null: no report was named, or told none.
    told: float | None = None
    #: ok, worse, not measured; of step time also not decided (worse, as the load of others may be)
    #: and, passing, perhaps slower, not seen well enough.
    verdict: str = "not measured"

    @property
    def allowed(self) -> float | None:
        """Return the growth that does not fail: the tolerance, of what the report told to expect.

        To measure the same once more varies as ever, also where memory grows as it was told.
        """
        if self.tolerance is None:
            return None
        return (1.0 + (self.told or 0.0)) * (1.0 + self.tolerance) - 1.0

    @property
    def allows_told(self) -> bool:
        """Return True if growth that the report told is allowed."""
        return self.tolerance is not None and bool(self.told)

    @property
    def grew_as_told(self) -> bool:
        """Return True if it grew by more than the tolerance, and as the report told."""
        if self.tolerance is None or self.reference is None or self.new is None:
            return False
        is_beyond = self.new > self.reference * (1.0 + self.tolerance)
        return self.verdict == "ok" and self.allows_told and is_beyond


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The verdict of a gate, and what it rests on."""

    summary: Summary | None = None  #: The answer, in at most 2 KB; null: written without one.
    schema_version: str = "1.6"  #: Version of these names, "1.x".
    torchdoctor_version: str = ""  #: The version that wrote the file.
    created: str = ""  #: When, ISO 8601 in UTC.
    workload: WorkloadRecord  #: What was run.
    environment: Environment  #: The machine and the software it was measured on.
    reference: str  #: What was compared with: a commit or a stored report.
    kind: Annotated[str, "training", "inference"] = "training"  #: What the program does.
    unit: Annotated[str, "step", "batch", "call"] = "step"  #: What a step of it is called.
    verdict: str  #: The answer, which the exit code says as well.
    answer: list[Evidence] = field(default_factory=list)  #: What it says of that.
    sentence: str = ""  #: The same in words, for readers.
    metrics: list[GateMetric] = field(default_factory=list)  #: One row for each figure.
    pairs: int = 0  #: Pairs of launches that were measured.
    pair_ratios: list[float] = field(default_factory=list)  #: New / reference time of each pair.
    per: str = "sample"  #: What a time is per: sample, or step where batches have no size.
    p_value: float | None = None  #: Two-sided p of the paired t test; null: not paired.
    mean_ratio: Interval | None = None  #: Of the mean step; null: it decides, or below two pairs.
    blind_spot: float | None = None  #: Share of slow-down not ruled out; null: below two pairs.
    measured: str = "in turns"  #: side by side (in blocks), in turns, or stored (against a report).
    other_load: OtherLoad | None = None  #: Of others, during launches; null: not measured.
    network: NetworkUse | None = None  #: What launches sent to other machines; null: no launch.
    remarks: list[Remark] = field(default_factory=list)  #: Everything that weakens the verdict.
    doubts: list[str] = field(default_factory=list)  #: The same in words, for readers.
    interrupted: bool = False  #: It ended early.
    broken: bool = False  #: The new program failed, timed out or had no step (exit codes 3, 4, 5).
    run_folder: str | None = None  #: Where logs and launches were written.
