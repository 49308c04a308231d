"""What a gate says: two versions of a program, measured against each other."""

from dataclasses import dataclass, field

from torchdoctor.words.environment import Environment
from torchdoctor.words.report import WorkloadRecord
from torchdoctor.words.trials import Interval


@dataclass(frozen=True, kw_only=True)
class GateMetric:
    """One figure of both versions."""

    name: str  #: step_time, samples_per_s, peak_memory or data_loader_share.
    #: Of the reference: step_time and samples_per_s are geometric means over the pairs, so that
    #: new / reference is the ratio; peak_memory is the median over its launches;
    #: data_loader_share is of one observing launch, with a tolerance the mean of two.
    reference: float | None = None
    new: float | None = None  #: The same of the new version.
    unit: str = ""  #: Of both.
    ratio: Interval | None = None  #: New / reference with its 95 % interval; null: not paired.
    tolerance: float | None = None  #: Accepted growth as a share; null: shown, never fails.
    #: ok, worse or not measured; of step time also perhaps slower (the interval leaves out no
    #: change and holds more than the tolerance, yet nothing is proven; or the mean step is
    #: slower while the typical one is not) or not seen well enough (a slow-down beyond the
    #: tolerance could have been missed): both pass.
    verdict: str = "not measured"


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The verdict of a gate, and what it rests on."""

    schema_version: str = "1.2"  #: Version of these names, "1.x".
    torchdoctor_version: str = ""  #: The version that wrote the file.
    created: str = ""  #: When, ISO 8601 in UTC.
    workload: WorkloadRecord  #: What was run.
    environment: Environment  #: The machine and the software it was measured on.
    reference: str  #: What was compared with: a commit or a stored report.
    verdict: str  #: The answer, which the exit code says as well.
    sentence: str  #: The same in words.
    metrics: list[GateMetric] = field(default_factory=list)  #: One row for each figure.
    pairs: int = 0  #: Pairs of launches that were measured.
    per: str = "sample"  #: What a time is per: sample, or step where batches have no size.
    p_value: float | None = None  #: Two-sided p of the paired t test; null: not paired.
    #: New / reference of the mean step, every block of steps counted, with its 95 % interval:
    #: beside the typical step's ratio, which does not see work that a few steps do; null where
    #: the mean decides, and below two pairs.
    mean_ratio: Interval | None = None
    #: The largest slow-down that is not ruled out, as a share: the upper end of the 95 %
    #: interval, 0 where that is faster; null: below two pairs.
    blind_spot: float | None = None
    #: side by side (both versions run in alternate blocks), in turns (one launch after the
    #: other) or stored (against a report).
    measured: str = "in turns"
    doubts: list[str] = field(default_factory=list)  #: Everything that weakens the verdict.
    interrupted: bool = False  #: It ended early.
    #: The working tree's program failed, timed out or had no training step, so that nothing was
    #: compared (exit codes 3, 4, 5).
    broken: bool = False
    run_folder: str | None = None  #: Where logs and launches were written.
