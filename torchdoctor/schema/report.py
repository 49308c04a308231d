"""The report of a run: diagnosis, baseline, prediction, and the whole of report.json."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.schema.efficiency import Efficiency
from torchdoctor.schema.environment import Environment, SensorStatistics
from torchdoctor.schema.evidence import Evidence, Remark
from torchdoctor.schema.launches import ProgramFailure
from torchdoctor.schema.location import Location
from torchdoctor.schema.network import NetworkUse
from torchdoctor.schema.recording import StepStatistics
from torchdoctor.schema.summary import Summary
from torchdoctor.schema.traced import RankTime, Shares, TraceStatistics
from torchdoctor.schema.trials import (
    Ceiling,
    Interval,
    Recommendation,
    RefusedFixes,
    TrainingTrial,
    Trial,
    TriedCeiling,
)
from torchdoctor.schema.verdict import Verdict

SCHEMA_VERSION = "2.1"
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
    share_of_step: float | None = None  #: Its cost as a share of the step; null: not measured.
    evidence: list[Evidence] = field(default_factory=list)  #: The facts that it rests on.
    location: Location | None = None  #: Where in the source; null where there is no such place.
    severity: Annotated[str, "high", "moderate", "advice"] = "advice"  #: How grave it is.
    fixes: list[str] = field(default_factory=list)  #: Ids of the fixes that treat it.
    shape: str | None = None  #: Id of the known shape of the code there; null: none is known.


@dataclass(frozen=True, kw_only=True)
class Question:
    """One branch of the tree as it was answered."""

    question: str  #: What was asked.
    answer: Annotated[str, "yes", "no", "no GPU", "not measured"]  #: The answer to it.
    metric: str  #: What the figure is.
    value: float | None  #: The figure measured.
    threshold: float | None  #: From where on the answer is yes.
    source: str  #: Where the threshold comes from.
    unit: str = "share"  #: Of value and threshold; "share": 0 to 1.


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What slows the step: the path through the tree, and all that the checks saw."""

    bottleneck: Annotated[  #: The branch of the tree that holds the step back.
        str, "data_loader", "memcpy", "communication", "gpu", "cpu", "other", "none"
    ]
    detail: str | None = None  #: The check below that branch that explains it most precisely.
    verdict: Verdict = field(default_factory=lambda: Verdict(kind="earlier"))  #: What it comes to.
    sentence: str = ""  #: The verdict in words, for readers.
    path: list[Question] = field(default_factory=list)  #: Questions in the order they were asked.
    #: Highest severity first, then the largest share (none: 0.25). Shares overlap.
    findings: list[Finding] = field(default_factory=list)

    @property
    def explaining(self) -> Finding | None:
        """Return the finding that explains the bottleneck, else the first severe one."""
        named = [finding for finding in self.findings if finding.check == self.detail]
        severe = [finding for finding in self.findings if finding.severity == "high"]
        return next(iter(named or severe), None)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of ascending figures (at least one), as numpy gives it."""
    below, part = divmod(share * (len(ordered) - 1), 1)
    low = ordered[int(below)]
    high = ordered[min(int(below) + 1, len(ordered) - 1)]
    return low + part * (high - low)


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
        """Return the statistics of these times (at least one)."""
        ordered = sorted(times_s)
        return cls(
            median=quantile(ordered, 0.5),
            p10=quantile(ordered, 0.1),
            p90=quantile(ordered, 0.9),
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
    """The untouched program: its timed launches, else the observed one, whose shares these are."""

    step_time_s: StepTime | None = None  #: Time of one training iteration.
    samples_per_s: float | None = None  #: A step's samples over its time; null: no batch sizes.
    shares: Shares = field(default_factory=Shares)  #: Where the time of a step goes.
    peak_memory_bytes: int | None = None  #: Highest: of the GPU if one trains, or the process tree.
    launches_s: list[float] = field(default_factory=list)  #: Of each launch, per `launches_per`.
    measured: str | None = None  #: side by side (in blocks) with fixes, or in turns; null: alone.
    launches_by: str | None = None  #: Whether `launches_s` is by median or mean; null: none timed.
    launches_per: str | None = None  #: What launches_s is per; null: no launch was timed.


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What observing cost."""

    probe_us_per_step: float | None = None  #: Time of the probe itself per step, in microseconds.
    probe_share: float | None = None  #: The same as a share of the step.
    profiler_window: str | None = None  #: Where and how long the profiler ran, outside all timings.


@dataclass(frozen=True, kw_only=True)
class WorkloadRecord:
    """What was run, exactly as it was typed."""

    command: list[str]  #: The command as it was typed, one string for each argument.
    cwd: str = ""  #: The folder it was started in.
    python: str | None = None  #: The interpreter that started it; null: another command did.
    #: What named it: --python, the command, the active virtual environment, ./.venv, ...
    python_from: str | None = None
    script_sha256: str | None = None  #: Of the script's bytes, to tell whether it changed.


@dataclass(frozen=True, kw_only=True)
class PredictedSpeedup:
    """Samples per second against one GPU, between the slowest and the fastest link assumed."""

    low: float  #: Samples per second against one GPU, with the slowest link assumed.
    high: float  #: With the fastest.


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """The prediction for one number of GPUs."""

    gpus: int  #: GPUs of one machine.
    ddp: PredictedSpeedup  #: With DistributedDataParallel.
    fsdp: PredictedSpeedup  #: With fully sharded data parallel.


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What more GPUs would give: a prediction and all that it rests on; times are per step."""

    rows: list[ScalingRow] = field(default_factory=list)  #: One for each number of GPUs.
    gradient_bytes: float | None = None  #: Bytes of all gradients of a step; null: not known.
    gradients_from: str | None = None  #: all-reduce, reduce-scatter, backward (trace), or program.
    last_bytes: float | None = None  #: Of the last bucket, exchanged after the backward pass.
    alone_s: float | None = None  #: A step without any exchange, in seconds.
    backward_s: float | None = None  #: Of it, first to last kernel of the backward pass.
    low_bytes_per_s: float | None = None  #: Slowest link assumed, one direction; null: not known.
    high_bytes_per_s: float | None = None  #: The fastest link assumed.
    links_from: str | None = None  #: "collectives" of the trace, or "data sheet" of the GPU.
    links_of: str | None = None  #: The GPU as the table of data sheets names it; null: not listed.
    ranks: int | None = None  #: Processes that the trace was recorded among; null: one.
    missing: list[str] = field(default_factory=list)  #: What is not known, so that `rows` is empty.


@dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """Where a run stands, with a word for its phase, sent whenever something begins or ends."""

    phase: str
    message: str  # what is measured now: a sentence without its full stop
    why: str = ""  # why it is measured next: the same
    launches_done: int = 0
    elapsed_s: float = 0.0  # since the run began
    budget_s: float | None = None
    diagnosis: str = ""  # the verdict with its place, from when it is known
    best: str | None = None  # "loader-workers (num_workers=4) 1.83x (1.79-1.88)"
    sends_to: list[str] = field(default_factory=list)  # other machines, by each launch


@dataclass(frozen=True, kw_only=True)
class Note:
    """A sentence in a document, "beware" where it may change a decision, else "detail"."""

    severity: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class OtherLoad:
    """Processors that programs other than this one held while fixes were tried."""

    held: float  #: On average; what gives way counts as what it takes.
    usable: float  #: Processors that this program may use.


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the search for fixes ended."""

    #: nothing to gain: no further measurement was worth its time; not tried: no fix was measured,
    #: so that nobody knows; time: more of it may find more; busy machine: nothing to gain, but for
    #: workers and threads, whose processors others held.
    reason: Annotated[
        str,
        "decided",
        "nothing to gain",
        "not tried",
        "busy machine",
        "time",
        "interrupted",
        "failed",
    ]
    after_s: float  #: Since the run began.
    budget_s: float  #: What the run was given.
    needed_s: float | None = None  #: A budget that tries the cheapest fix; null: it tried some.


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a run says. Renderers read this and compute nothing."""

    summary: Summary | None = None  #: The answer, in at most 2 KB; null: written without one.
    kind: Annotated[str, "training", "inference"] = "training"  #: What the program does.
    schema_version: str = SCHEMA_VERSION  #: Version of these names, "2.x"; x only adds fields.
    torchdoctor_version: str = ""  #: The version that wrote the file.
    created: str = ""  #: When, ISO 8601 in UTC.
    elapsed_s: float | None = None  #: How long the run took, in seconds; null: not a run.
    workload: WorkloadRecord  #: What was run.
    environment: Environment  #: The machine and the software it was measured on.
    settings: list[Setting] = field(default_factory=list)  #: Its author's choices; not of a trace.
    baseline: Baseline = field(default_factory=Baseline)  #: The untouched program's speed.
    efficiency: Efficiency | None = None  #: Tokens, MFU, energy, savings; null: none is known.
    diagnosis: Diagnosis  #: What slows the step, and how that was found.
    #: The most that fixing a branch could give; null: neither tried nor replayed. Not advice.
    ceilings: dict[str, Ceiling | None] = field(default_factory=lambda: dict.fromkeys(BRANCHES))
    ceiling_trials: list[TriedCeiling] = field(default_factory=list)  #: Costs taken away for real.
    trials: list[Trial] = field(default_factory=list)  #: Every fix that was tried.
    refused: list[RefusedFixes] = field(default_factory=list)  #: Fixes that cannot apply here.
    training_trials: list[TrainingTrial] = field(default_factory=list)  #: Advice tried on training.
    no_trials_reason: str | None = None  #: Where nothing was tried, why, in words.
    no_trials: Evidence | None = None  #: The same as data.
    ending: Ending | None = None  #: Why the search for fixes stopped; null: nothing was tried.
    recommendation: Recommendation = field(default_factory=Recommendation)  #: What to change.
    noise_floor: Interval | None = None  #: Untouched against itself (A/A); without 1: too noisy.
    overhead: Overhead = field(default_factory=Overhead)  #: What observing cost.
    steps: StepStatistics | None = None  #: How steps were found, and their time by phase.
    trace: TraceStatistics | None = None  #: Figures of the profiler window, or of the trace given.
    ranks: list[RankTime] = field(default_factory=list)  #: One row for each of several traces.
    scaling: Scaling | None = None  #: Prediction for more GPUs; null: no GPU, or no trace.
    sensors: SensorStatistics = field(default_factory=SensorStatistics)  #: What the sensors saw.
    other_load: OtherLoad | None = None  #: Of others, during trials; null: none, or not measured.
    network: NetworkUse | None = None  #: What launches sent to other machines; null: no launch.
    doubts: list[str] = field(default_factory=list)  #: What weakens the report, a sentence each.
    beware: list[str] = field(default_factory=list)  #: Doubts that may change a decision.
    remarks: list[Remark] = field(default_factory=list)  #: The same as data.
    failure: ProgramFailure | None = None  #: How the observed program failed; null: it did not.
    interrupted: bool = False  #: It ended early; the report holds what was measured until then.
    run_folder: str | None = None  #: Where traces, logs and this file were written.
    memory_snapshot: str | None = None  #: A torch.cuda.memory._dump_snapshot; null: none taken.
    reproduce: list[str] = field(default_factory=list)  #: Shell commands that repeat the run.
