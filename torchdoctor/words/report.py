"""The report of a run: diagnosis, baseline, prediction, and the whole of report.json."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.words.environment import Environment, SensorStatistics
from torchdoctor.words.launches import ProgramFailure
from torchdoctor.words.program import Location
from torchdoctor.words.recording import StepStatistics
from torchdoctor.words.traced import RankTime, Shares, TraceStatistics
from torchdoctor.words.trials import (
    Ceiling,
    Interval,
    Recommendation,
    TrainingTrial,
    Trial,
    TriedCeiling,
)

SCHEMA_VERSION = "1.0"
TWO_MODES = 0.15  # mean and median apart by more: steps come in two kinds
# The branches of the decision tree, in its order.
BRANCHES = ("data_loader", "memcpy", "communication", "gpu", "cpu", "other")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Something that the program's author chooses, as it was while it trained."""

    name: str  #: What is set.
    value: str  #: As it was while the program trained, in words.


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem that a check saw."""

    check: str  #: Id of the check; `torchdoctor explain ID` shows its page.
    #: What it costs, as a share of the step; null: not measured.
    share_of_step: float | None = None
    evidence: list[str] = field(default_factory=list)  #: Sentences with the figures it rests on.
    location: Location | None = None  #: Where in the source; null where there is no such place.
    #: high, moderate or advice.
    severity: Annotated[str, "high", "moderate", "advice"] = "advice"
    fixes: list[str] = field(default_factory=list)  #: Ids of the fixes that treat it.


@dataclass(frozen=True, kw_only=True)
class Question:
    """One branch of the tree as it was answered."""

    question: str  #: What was asked.
    #: yes, no, no GPU, or not measured.
    answer: Annotated[str, "yes", "no", "no GPU", "not measured"]
    metric: str  #: What the figure is.
    value: float | None  #: The figure measured.
    threshold: float | None  #: From where on the answer is yes.
    source: str  #: Where the threshold comes from.
    unit: str = "share"  #: Of value and threshold; "share": 0 to 1.


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What slows the step: the path through the tree, and all that the checks saw."""

    #: The branch of the tree that holds the step back.
    bottleneck: Annotated[
        str, "data_loader", "memcpy", "communication", "gpu", "cpu", "other", "none"
    ]
    detail: str | None = None  #: The check below that branch that explains it most precisely.
    sentence: str = ""  #: The verdict in one sentence.
    #: The questions of the tree in the order they were asked.
    path: list[Question] = field(default_factory=list)
    #: Everything that the checks saw: high severity first, then moderate, then advice; within
    #: each the largest share first, where one without a share counts as 0.25. Shares overlap, so
    #: they do not add up.
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Time of one training iteration in seconds, over the measured window."""

    median: float  #: Median, in seconds.
    p10: float  #: 10th percentile, in seconds.
    p90: float  #: 90th percentile, in seconds.
    steps: int  #: Iterations measured.
    mean: float | None = None  #: Mean, in seconds; it decides where some steps take far longer.

    @classmethod
    def of(cls, times_s: Iterable[float]) -> "StepTime":
        """Return the statistics of these times (at least one), with quantiles as numpy's are."""
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
        """Return True if steps come in two kinds, so that the median hides one of them."""
        return self.mean is not None and abs(self.mean - self.median) > TWO_MODES * self.median

    @property
    def deciding(self) -> float:
        """Return the median in seconds, or the mean if the median hides a kind of steps."""
        return self.mean if self.mean is not None and self.two_modes else self.median


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The untouched program: its timed launches where there are any, else the observed one.

    `shares` are always those of the observed launch and the profiler window.
    """

    step_time_s: StepTime | None = None  #: Time of one training iteration.
    #: A step's samples over its deciding time; null without batch sizes.
    samples_per_s: float | None = None
    shares: Shares = field(default_factory=Shares)  #: Where the time of a step goes.
    #: Memory at its highest: of the GPU where one trains, else of the process tree.
    peak_memory_bytes: int | None = None
    #: Time per sample (per step where the batch is not known) of each launch.
    launches_s: list[float] = field(default_factory=list)
    #: How its launches were compared with those of fixes: side by side (both run, in alternate
    #: blocks), in turns (one launch after the other); null: they were not.
    measured: str | None = None
    #: What launches_s holds of a launch's steps: their median, or where some take far longer
    #: their mean; null: no launch was timed.
    launches_by: str | None = None
    launches_per: str | None = None  #: What launches_s is per; null: no launch was timed.


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What observing cost."""

    #: Time that the probe itself takes in each step, in microseconds.
    probe_us_per_step: float | None = None
    probe_share: float | None = None  #: The same as a share of the step.
    #: Where and how long the profiler ran; its cost is in no timing.
    profiler_window: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkloadRecord:
    """What was run, exactly as it was typed."""

    command: list[str]  #: The command as it was typed, one string for each argument.
    cwd: str = ""  #: The folder it was started in.
    #: Of the script's bytes, so that two reports can tell whether it changed.
    script_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class PredictedSpeedup:
    """Samples per second against one GPU, between the slowest and the fastest link assumed."""

    low: float  #: Samples per second against one GPU, with the slowest link assumed.
    high: float  #: With the fastest.


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """The prediction for one number of GPUs."""

    gpus: int  #: All GPUs together.
    machines: int = 1  #: Machines that they are in.
    #: Assumed speed of each machine's network; null: one machine.
    network_gbit_per_s: float | None = None
    ddp: PredictedSpeedup  #: With DistributedDataParallel.
    fsdp: PredictedSpeedup  #: With fully sharded data parallel.


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What more GPUs would give: a prediction and all that it rests on; times are per step."""

    #: One number of GPUs each; empty where something is missing.
    rows: list[ScalingRow] = field(default_factory=list)
    gradient_bytes: float | None = None  #: Bytes of all gradients of a step; null: not known.
    #: Where that is known from: "all-reduce", "reduce-scatter" or "backward" of the trace,
    #: "program" (what its optimizers update).
    gradients_from: str | None = None
    #: Bytes that are exchanged when the backward pass is over: the last bucket.
    last_bytes: float | None = None
    alone_s: float | None = None  #: A step without any exchange, in seconds.
    #: The part of it from the first to the last kernel of the backward pass.
    backward_s: float | None = None
    #: The slowest link assumed, in one direction; null: not known.
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None  #: The fastest link assumed.
    links_from: str | None = None  #: "collectives" of the trace, or "data sheet" of the GPU.
    links_of: str | None = None  #: The GPU as the table of data sheets names it; null: not listed.
    ranks: int | None = None  #: Processes that the trace was recorded among; null: one.
    #: The exchange of those ranks by the data sheet's fastest link, in seconds per step.
    sheet_low_s: float | None = None
    sheet_high_s: float | None = None  #: The same by a slow one.
    #: How long their exchange really took per step, waits included.
    measured_exchange_s: float | None = None
    #: Share of the step that waits for data, which the prediction leaves as it is.
    loader_share: float | None = None
    #: What a prediction would have needed and was not known.
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """Where a run stands, sent whenever something begins or ends. Never stored.

    phase: "observe", "profile", "screen", "confirm", "stack" or another single word.
    """

    phase: str
    message: str  # what happens now, e.g. "loader-workers num_workers=4"
    launches_done: int = 0
    elapsed_s: float = 0.0  # since the run began
    budget_s: float | None = None
    best: str | None = None  # the best so far, e.g. "loader-workers num_workers=4 1.83x"


@dataclass(frozen=True, kw_only=True)
class Note:
    """One remark on a report: of severity "beware" where it may change a decision, else "detail".

    Never stored: a report has the sentences.
    """

    severity: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a run says. Renderers read this and compute nothing."""

    #: Version of these names, "1.x". Fields are added with x; none is renamed or removed.
    schema_version: str = SCHEMA_VERSION
    torchdoctor_version: str = ""  #: The version that wrote the file.
    created: str = ""  #: When, ISO 8601 in UTC.
    workload: WorkloadRecord  #: What was run.
    environment: Environment  #: The machine and the software it was measured on.
    #: What the program trained with that its author sets: loader, model, optimizer, torch.
    #: `compare` tells them apart; empty for a trace.
    settings: list[Setting] = field(default_factory=list)
    baseline: Baseline = field(default_factory=Baseline)  #: The untouched program's speed.
    diagnosis: Diagnosis  #: What slows the step, and how that was found.
    #: What fixing a branch of the tree could give at most, by experiment or by replay; null:
    #: neither. Never a recommendation.
    ceilings: dict[str, Ceiling | None] = field(default_factory=lambda: dict.fromkeys(BRANCHES))
    #: Costs of the step that were taken away for real, in blocks of a launch that was thrown
    #: away: what fixing them could give at most. Never a recommendation.
    ceiling_trials: list[TriedCeiling] = field(default_factory=list)
    #: Every fix that was tried or refused, each against launches of the untouched program.
    trials: list[Trial] = field(default_factory=list)
    #: Advice on training in short launches of its own; never a recommendation, and never about
    #: speed.
    training_trials: list[TrainingTrial] = field(default_factory=list)
    no_trials_reason: str | None = None  #: Where nothing was tried, why.
    recommendation: Recommendation = field(default_factory=Recommendation)  #: What to change.
    #: The untouched program against itself (A/A). An interval that excludes 1 means that the
    #: machine was too noisy.
    noise_floor: Interval | None = None
    overhead: Overhead = field(default_factory=Overhead)  #: What observing cost.
    #: How steps were found, and where the time of one goes by phase.
    steps: StepStatistics | None = None
    #: The profiler window's figures, or those of the trace that was given.
    trace: TraceStatistics | None = None
    #: One row for each of several traces, in order of rank.
    ranks: list[RankTime] = field(default_factory=list)
    #: What more GPUs and machines would give: a prediction, never a measurement; null: it does
    #: not train on a GPU, or no trace was taken.
    scaling: Scaling | None = None
    #: What processor, memory, disk and GPU did meanwhile.
    sensors: SensorStatistics = field(default_factory=SensorStatistics)
    #: Everything that weakens what the report says, one sentence each.
    doubts: list[str] = field(default_factory=list)
    #: Those doubts that may change a decision: the first screen shows them.
    beware: list[str] = field(default_factory=list)
    #: How the observed, untouched program failed by itself after enough steps to measure; the
    #: report is of the steps before. null: it did not.
    failure: ProgramFailure | None = None
    #: The run ended early; the report holds what was measured until then.
    interrupted: bool = False
    run_folder: str | None = None  #: Where traces, logs and this file were written.
    #: File of `torch.cuda.memory._dump_snapshot`, of the steps after the profiler window. null:
    #: not on a GPU, or not taken.
    memory_snapshot: str | None = None
    reproduce: list[str] = field(default_factory=list)  #: Shell commands that repeat the run.
