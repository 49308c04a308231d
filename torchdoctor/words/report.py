"""Diagnosis, trials and the report: the shapes of docs/design contract `report.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torchdoctor.words.interval import Interval
from torchdoctor.words.launches import ProgramFailure
from torchdoctor.words.program import Location
from torchdoctor.words.recording import (
    Environment,
    RankTime,
    SensorStatistics,
    Shares,
    StepStatistics,
    TraceStatistics,
)
from torchdoctor.words.scaling import Scaling
from torchdoctor.words.setting import Setting
from torchdoctor.words.training_trials import TrainingTrial

SCHEMA_VERSION = "1.0"
TWO_MODES = 0.15  # mean and median apart by more: steps come in two kinds
# The branches of the decision tree, in its order.
BRANCHES = ("data_loader", "memcpy", "communication", "gpu", "cpu", "other")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check saw. `share_of_step` is what it costs, 0 to 1; None: not measured."""

    check: str
    share_of_step: float | None = None
    evidence: list[str] = field(default_factory=list)  # sentences with figures
    location: Location | None = None
    severity: str = "advice"  # "high" | "moderate" | "advice"
    fixes: list[str] = field(default_factory=list)  # filled in by diagnosis from TREATS


@dataclass(frozen=True, kw_only=True)
class Question:
    """One branch of the tree as it was answered."""

    question: str
    answer: str  # "yes" | "no" | "no GPU" | "not measured"
    metric: str  # what the figure is, e.g. "share of the step spent waiting for data"
    value: float | None
    threshold: float | None
    source: str  # where the threshold comes from
    # Of value and threshold. "share": 0 to 1, shown in percent; else it stands behind the figure.
    unit: str = "share"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What slows the step: the path through the tree, and all that the checks saw."""

    bottleneck: str  # data_loader | memcpy | communication | gpu | cpu | other | none
    detail: str | None = None  # a check id
    sentence: str = ""  # the verdict in one sentence
    path: list[Question] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A fix with the settings to try, in the order of what it could gain.

    also: fixes by id, with their settings, that go with it because one without the other may
    help nobody (loader workers, and fewer threads that would fight with them for the cores).
    main: it treats what the diagnosis named.
    """

    fix: str
    settings: dict[str, Any] = field(default_factory=dict)
    also: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceiling: float | None = None  # most that it can gain by Amdahl, as a speed-up
    # What the time of the step that it works on allows; the ceiling may be a finding's share.
    bound: float | None = None
    reason: str = ""  # why it is tried
    main: bool = False


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A fix that was not tried, and why."""

    fix: str
    reason: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fix (or the A/A candidate, or a whole stack) against the baseline."""

    fix: str
    settings: dict[str, Any] = field(default_factory=dict)
    speedup: Interval | None = None
    at_most: float | None = None  # where the estimate lies above what it works on allows, that
    verdict: str = "unclear"  # faster | slower | same | unclear | failed | refused
    # identical | within-rounding | within-seed-noise | changed | not-comparable
    numerics: str = "not-comparable"
    numerics_reason: str | None = None
    risk: int = 0
    peak_memory_bytes: int | None = None
    memory_change_bytes: int | None = None  # against the baseline
    cost_s: float = 0.0  # wall time that its launches took
    reason: str | None = None  # of refused, failed, unclear
    pairs: int = 0
    setup_s: float | None = None  # one-time cost (compilation), with break_even_steps
    # What the fix noted in its first launch: what was compiled, how many steps were left out.
    details: dict[str, Any] = field(default_factory=dict)
    break_even_steps: int | None = None
    # By the median step, where the mean decides (or the other way).
    median_speedup: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class RecommendedFix:
    """One fix to make permanent: a verified edit, or what to change as code."""

    fix: str
    settings: dict[str, Any] = field(default_factory=dict)
    edit: str | None = None  # unified diff
    folder: str | None = None  # that the edit's names are relative to; None: the program's
    instruction: str | None = None  # what to change, as code
    location: Location | None = None
    aim: str = "speed"  # "speed" | "training": advice on training itself
    warning: str | None = None  # what advice on training may cost
    also_changes: list[str] = field(default_factory=list)  # what else its edit changes: sentences
    # "recommended"; beside the set: "confirmed" by itself, "undecided" by its trial, "untried" for
    # want of time, "offered": no run can try it.
    standing: str = "recommended"


@dataclass(frozen=True, kw_only=True)
class PatchTrial:
    """The patched source, run without any fix of ours, against the untouched program."""

    speedup: Interval | None = None
    numerics: str | None = None
    numerics_reason: str | None = None
    pairs: int = 0
    reason: str | None = None  # why it was not measured, or failed


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The fixes worth applying, in order, measured all together."""

    fixes: list[RecommendedFix] = field(default_factory=list)
    speedup: Interval | None = None  # all together, against the untouched program
    at_most: float | None = None  # as `Trial.at_most`, of all together
    numerics: str | None = None
    numerics_reason: str | None = None
    peak_memory_bytes: int | None = None
    pairs: int = 0
    patch: str | None = None  # one unified diff for `git apply`
    patch_folder: str | None = None  # that its names are relative to
    patch_fixes: list[str] = field(default_factory=list)  # ids of the fixes that are in it
    patch_trial: PatchTrial | None = None
    # Beside the set; `standing` says why.
    also_offered: list[RecommendedFix] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Time of one training iteration in seconds, over the measured window."""

    median: float
    p10: float
    p90: float
    steps: int
    mean: float | None = None

    @classmethod
    def of(cls, times_s: Iterable[float]) -> StepTime:
        """The time of steps that took this long each, in any order, at least one.

        Quantiles between two steps are interpolated, as numpy's are.
        """
        ordered = sorted(times_s)

        def quantile(share: float) -> float:
            below, part = divmod(share * (len(ordered) - 1), 1)
            low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
            return low + part * (high - low)

        return cls(
            median=quantile(0.5),
            p10=quantile(0.1),
            p90=quantile(0.9),
            steps=len(ordered),
            mean=sum(ordered) / len(ordered),
        )

    @property
    def two_modes(self) -> bool:
        """Whether steps come in two kinds, so that the median hides one of them."""
        return self.mean is not None and abs(self.mean - self.median) > TWO_MODES * self.median

    @property
    def deciding(self) -> float:
        """The median, or where it hides a kind of steps the mean; seconds."""
        return self.mean if self.mean is not None and self.two_modes else self.median


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The untouched program: its timed launches where there are any, else the observed one.

    `shares` are always of the observed launch and the profiler window. `samples_per_s` is a step's
    samples over `step_time_s.deciding`.
    """

    step_time_s: StepTime | None = None
    samples_per_s: float | None = None
    shares: Shares = field(default_factory=Shares)
    peak_memory_bytes: int | None = None
    launches_s: list[float] = field(default_factory=list)  # deciding time of each, per sample
    measured: str | None = None  # "side by side", "in turns"
    launches_by: str | None = None  # "median" or "mean" of a launch's steps
    launches_per: str | None = None  # "sample", or "step" where batches have no size


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What observing cost."""

    probe_us_per_step: float | None = None
    probe_share: float | None = None  # of the step
    profiler_window: str | None = None  # one sentence: own launch, how many steps


@dataclass(frozen=True, kw_only=True)
class WorkloadRecord:
    """What was run, exactly as it was typed."""

    command: list[str]
    cwd: str = ""
    script_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What fixing one branch of the tree could give at most.

    source: "experiment" (measured), or "replay" (a model; see `replay_ceilings` for `speedup`).
    """

    speedup: Interval
    source: str = "experiment"


@dataclass(frozen=True, kw_only=True)
class TriedCeiling:
    """A cost that was taken away for real, in blocks of a launch that was thrown away.

    `whole`: it is all of its branch, so that `Report.ceilings` has the same figure.
    """

    ceiling: str  # its id
    branch: str
    removes: str  # what, as in "without ..."
    share: float | None = None  # of the step, by what was observed
    speedup: Interval | None = None  # None: it did not come to figures
    # gain | hidden | nothing | slower | unclear | abandoned | not-tried
    verdict: str = "abandoned"
    whole: bool = True
    reason: str | None = (
        None  # of one that was abandoned, not tried, or unclear in spite of figures
    )

    @property
    def decided(self) -> bool:
        """Whether its figures say what its cost is worth."""
        return self.speedup is not None and self.verdict not in ("unclear", "slower")

    pairs: int = 0


@dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """Where a run stands, said whenever something begins or ends. Never stored.

    phase: "observe", "profile", "screen", "confirm", "stack" or another single word.
    """

    phase: str
    message: str  # what happens now, e.g. "loader-workers num_workers=4"
    launches_done: int = 0
    number: int | None = None  # of the pair, round or launch that runs now; None: not planned
    most: int | None = None  # of them in this phase; it may end earlier
    unit: str = "launch"  # "pair" | "round" | "launch"
    left_s: float | None = None  # of this phase, where launches were timed before
    elapsed_s: float = 0.0  # since the run began
    budget_s: float | None = None
    best: str | None = None  # the best so far, e.g. "loader-workers num_workers=4 1.83x"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a run says. Renderers read this and compute nothing."""

    schema_version: str = SCHEMA_VERSION
    torchdoctor_version: str = ""
    created: str = ""  # ISO 8601, UTC
    workload: WorkloadRecord
    environment: Environment
    settings: list[Setting] = field(default_factory=list)  # empty for a trace
    baseline: Baseline = field(default_factory=Baseline)
    diagnosis: Diagnosis
    # By branch of the tree; None: not measured.
    ceilings: dict[str, Ceiling | None] = field(default_factory=lambda: dict.fromkeys(BRANCHES))
    ceiling_trials: list[TriedCeiling] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    training_trials: list[TrainingTrial] = field(default_factory=list)  # of advice on training
    no_trials_reason: str | None = None  # where nothing was tried, why: one sentence
    recommendation: Recommendation = field(default_factory=Recommendation)
    noise_floor: Interval | None = None
    overhead: Overhead = field(default_factory=Overhead)
    steps: StepStatistics | None = None
    trace: TraceStatistics | None = None  # the profiler window, or the trace that was given
    ranks: list[RankTime] = field(default_factory=list)  # of several traces
    scaling: Scaling | None = None  # None: it does not train on a GPU, or was not profiled
    sensors: SensorStatistics = field(default_factory=SensorStatistics)
    doubts: list[str] = field(default_factory=list)
    failure: ProgramFailure | None = None  # None: the observed program did not fail
    interrupted: bool = False
    run_folder: str | None = None
    memory_snapshot: str | None = None  # of the device's memory in the analysed steps
    reproduce: list[str] = field(default_factory=list)  # commands
