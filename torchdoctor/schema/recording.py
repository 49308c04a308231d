"""What one launch of the program showed: its steps, sensors, trace and environment.

A `Recording` is a summary that fits in JSON: checks and fixes read only this. The raw columns
stay in files of the run folder (`Recording.folder`).
"""

import re
from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.schema import secret_values
from torchdoctor.schema.environment import Environment, SensorStatistics, StorageFacts
from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.launches import ProgramFailure
from torchdoctor.schema.network import NetworkUse
from torchdoctor.schema.program import ProcessFacts
from torchdoctor.schema.traced import RankTime, Shares, TraceStatistics
from torchdoctor.schema.units import unit_of

_RELEASE = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The user's command, exactly as it was started."""

    command: list[str]
    cwd: str
    python: str | None = None  # the interpreter, where it is known
    python_from: str | None = None  # what named it: "--python", "./.venv", ...
    script: str | None = None  # absolute path of the script, where there is one
    notebook: str | None = None  # as it was typed, where the script was made of one
    remark: Evidence | None = None  # what was left out of it

    @property
    def is_cell(self) -> bool:
        """Return True for a cell of a notebook that is open, which the notebook alone can run."""
        return self.notebook is not None and self.notebook.startswith("In[")

    @property
    def typed(self) -> list[str]:
        """Return the command as it was typed, a notebook by its own name, and without secrets."""
        command = secret_values.masked(self.command)
        if self.notebook is not None:
            command[1] = self.notebook  # behind the interpreter, which torchdoctor chose
        return command


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The event that separates two iterations, chosen from the observed event sequence.

    An iteration begins when a training batch is fetched (loader), an optimizer step ends
    (optimizer), a backward pass begins (backward) or `torchdoctor.step()` is called (explicit); in
    a program that infers, when a batch is fetched (loader), a known function of a library is
    called (entry) or a model is (forward).
    """

    kind: Annotated[  #: The kind of event.
        str, "loader", "optimizer", "backward", "entry", "forward", "explicit"
    ]
    ident: int = 0  #: Which loader or optimizer, as constructed; which model, as called first.
    every: int = 1  #: An iteration begins at every n-th such event.
    learned_by: Annotated[  #: What besides optimizer steps shows that something is learned.
        str, "backward", "autograd.grad", "torch.func", "create_graph", "batch", "forward"
    ] = "backward"

    @property
    def infers(self) -> bool:
        """Return whether the program computes no gradients: its models are called, not trained."""
        return self.learned_by == "forward"

    @property
    def program(self) -> str:
        """Return what the program does: training or inference."""
        return "inference" if self.infers else "training"

    @property
    def unit(self) -> str:
        """Return what an iteration is called: a step, a batch or a call."""
        return unit_of(self.program, self.kind)


@dataclass(frozen=True, kw_only=True)
class UnobservedPhase:
    """A phase of the training that came beside the measured steps, and within none of them."""

    kind: Annotated[str, "evaluation", "rollout"]  #: What went on: with batches, or without.
    seconds: float  #: Time of one, on average.
    times: int  #: How often it was seen.
    calls: int  #: Forward passes in one, on average.
    steps_between: int | None = None  #: Steps from one to the next; null: only one was seen.


@dataclass(frozen=True, kw_only=True)
class StepGrowth:
    """How a step becomes longer with its number, by a straight line through the measured steps."""

    slope_s: float  #: Seconds that each step takes longer than the one before.
    first_s: float  #: Time of a step by that line where the measured ones begin.
    last_s: float  #: The same where they end.
    phase: str  #: The phase that grows most, such as "other" or "backward".
    anew_every: int | None = None  #: Steps after which it begins anew; null: it was not seen to.


@dataclass(frozen=True, kw_only=True)
class CallFigures:
    """What the user of a program that infers waits for, over the measured window.

    A call is one of a known function of a library where steps are such calls, else a step.
    """

    latency_median_s: float  #: Median time of a call.
    latency_p95_s: float  #: 95th percentile of the same.
    samples_per_s: float | None = None  #: Samples over the time of the steps; null: not known.
    tokens_per_s: float | None = None  #: Tokens generated over the time of the steps.
    first_token_s: float | None = None  #: Median time from a generation's begin to its first token.
    prefill_s: float | None = None  #: Part of a step until the first token, mean.
    decode_s: float | None = None  #: Part of a step for the tokens after it, mean.


@dataclass(frozen=True, kw_only=True)
class StepStatistics:
    """Iterations of the measured window. Times are seconds; `*_s` phase fields are means per step.

    The phases data_wait, h2d_copy, forward, backward, optimizer and other sum to `mean_s`.
    `before_forward_s` is inline batch preparation: it begins at a boundary or the end of a fetch.
    Without a loader each batch of a step counts, up to its own forward. If no module's call shows
    a forward, it ends at the first backward pass and holds the forward too.
    """

    boundary: Boundary  #: The event that separates two iterations.
    how_found: str = ""  #: How steps were found, in one sentence.
    evidence: Evidence | None = None  #: The same as data.
    steps: int  #: Iterations measured.
    warmup_steps: int  #: Iterations before them that were left out.
    median_s: float  #: Median time of an iteration.
    mean_s: float  #: Mean time; the phases below sum to it.
    p10_s: float  #: 10th percentile.
    p90_s: float  #: 90th percentile.
    p99_s: float | None = None  #: 99th percentile.
    first_step_s: float | None = None  #: Time of the very first iteration.
    samples_per_step: float | None = None  #: Samples in a batch, on average.
    data_wait_s: float = 0.0  #: Waiting for the data loader, mean of a step.
    h2d_copy_s: float = 0.0  #: Copies to the device, mean of a step.
    forward_s: float = 0.0  #: Forward pass, mean of a step.
    backward_s: float = 0.0  #: Backward pass, mean of a step.
    optimizer_s: float = 0.0  #: Optimizer, mean of a step.
    other_s: float = 0.0  #: The rest, mean of a step.
    before_forward_s: float = 0.0  #: Part of other_s before the forward pass, outside a loader.
    evaluation_s: float = 0.0  #: Part of the phases above: evaluation.
    evaluation_wait_s: float = 0.0  #: Part of data_wait_s: evaluation waiting for its loader.
    evaluations: int = 0  #: Evaluation sections in the measured window.
    evaluation_every: int | None = None  #: Steps from one to the next; null: it varies.
    between_epochs_s: float = 0.0  #: Part of other_s after the end of a loader's pass.
    loader_start_s: float = 0.0  #: Starting an iterator and its workers, mean of a step.
    gc_s: float = 0.0  #: Pauses of Python's garbage collector, mean of a step.
    first_batch_s: float = 0.0  #: Waiting for first batches beyond a usual wait, mean of a step.
    fetch_median_s: float | None = None  #: Median time of one fetch of the training loader.
    fetch_p99_s: float | None = None  #: 99th percentile of the same.
    pageable_copies_per_step: float | None = None  #: Copies to the device from pageable memory.
    blocking_copies_per_step: float | None = None  #: Pinned copies to the device that still block.
    backwards_per_step: float = 1.0  #: Backward passes in an iteration.
    optimizer_steps_per_step: float = 1.0  #: Optimizer steps in an iteration.
    optimizers_per_step: int = 1  #: Different optimizers in an iteration.
    update_s: list[float] = field(default_factory=list)  #: Updates by optimizer, closures left out.
    batches_per_step: float = 1.0  #: Batches in an iteration.
    trainers: int = 1  #: Processes that trained.
    two_modes: bool = False  #: Some steps take far longer: the mean decides, not the median.
    cycle_steps: int | None = None  #: Steps of a regular cycle, such as an epoch or a rollout.
    settled_after: int | None = None  #: Steps until the last ten showed no downward slope.
    unobserved: list[UnobservedPhase] = field(default_factory=list)  #: What no such step shows.
    device_clock: bool = False  #: Times are those at which the GPU came to each event.
    device_busy_s: float | None = None  #: Of a step, surely: it came to events behind the host.
    growth: StepGrowth | None = None  #: How steps become longer; null: they do not, for certain.
    still_warming: bool = False  #: The last steps measured were still getting faster or slower.
    calls: CallFigures | None = None  #: Of a program that infers; null: it trains.
    program_ended: bool = False  #: The program ended by itself within the launch.
    total_steps_seen: int = 0  #: Iterations seen in all, warm-up included.


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One observed program: all that the checks and fixes may look at."""

    workload: Workload
    environment: Environment
    steps: StepStatistics | None = None
    processes: list[ProcessFacts] = field(default_factory=list)  # trainers first, main one [0]
    sensors: SensorStatistics = field(default_factory=SensorStatistics)
    trace: TraceStatistics | None = None
    shares: Shares = field(default_factory=Shares)
    ranks: list[RankTime] = field(default_factory=list)  # where there are several
    storage: StorageFacts | None = None  # None: not looked at, or no read was seen
    network: NetworkUse | None = None  # of the launches so far; None: there was none
    folder: str | None = None
    failure: ProgramFailure | None = None  # of the observed launch
    doubts: list[Evidence] = field(default_factory=list)  # what weakens a report on it

    @property
    def main(self) -> ProcessFacts:
        """Return the main training process; an empty one if no process stepped."""
        return self.processes[0] if self.processes else ProcessFacts(pid=0)

    @property
    def torch_release(self) -> tuple[int, int] | None:
        """Return major and minor number of the program's torch; None: not known."""
        match = _RELEASE.match(self.main.torch or self.environment.torch or "")
        return (int(match[1]), int(match[2])) if match else None

    @property
    def unit(self) -> str:
        """Return what a step of it is called: a step, a batch or a call."""
        return self.steps.boundary.unit if self.steps is not None else "step"

    @property
    def infers(self) -> bool:
        """Return True if its steps are calls of models whose gradients nobody computes."""
        return self.steps is not None and self.steps.boundary.infers

    @property
    def accelerator(self) -> str | None:
        """Return whose device the main process trained on, such as "cuda"; None: not known."""
        devices = [m.device for m in self.main.models] + [o.device for o in self.main.optimizers]
        for name in (device.partition(":")[0] for device in devices):
            if name not in ("", "cpu", "meta"):
                return "rocm" if name == "cuda" and self.main.hip else name
        return self.trace.platform if self.trace is not None and self.trace.has_device else None

    @property
    def has_gpu(self) -> bool:
        """Return True if the main process trained on a GPU or another accelerator."""
        traced = self.trace is not None and self.trace.has_device
        return traced or self.accelerator is not None
