"""What one launch of the program showed: steps, sensors, trace, environment.

A `Recording` is a summary that fits in JSON: checks and fixes read only this. The raw columns
stay in files of the run folder (`Recording.folder`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.compilation import TracedCompilation
from torchdoctor.words.environment import Environment
from torchdoctor.words.exchange import GradientExchange
from torchdoctor.words.launches import ProgramFailure
from torchdoctor.words.pointwise import PointwiseChains
from torchdoctor.words.products import MatrixWork
from torchdoctor.words.program import ProcessFacts
from torchdoctor.words.storage import StorageFacts
from torchdoctor.words.what_if import WhatIf


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The user's command, exactly as it was started."""

    command: list[str]
    cwd: str
    python: str | None = None  # the interpreter, where torchdoctor chose it
    script: str | None = None  # absolute path of the script, where there is one


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The event that separates two iterations, chosen from the observed event sequence.

    kind: "loader" (a training batch is fetched), "optimizer" (a step ends), "backward"
    (a backward begins), "explicit" (`torchdoctor.step()`); ident: which loader / optimizer.
    learned_by: what shows beside optimizer steps that something is learned: "backward", or in a
    program without any the calls of `torch.autograd.grad` of one kind ("autograd.grad",
    "torch.func", "create_graph"), or "batch": by the user's word each batch of the loader.
    """

    kind: str
    ident: int = 0
    every: int = 1  # boundary at every n-th such event
    learned_by: str = "backward"


@dataclass(frozen=True, kw_only=True)
class StepStatistics:
    """Iterations of the measured window. Times are seconds; `*_s` phase fields are means per step.

    The phases data_wait, h2d_copy, forward, backward, optimizer and other sum to `mean_s`.
    `before_forward_s` (part of `other_s`) is host time from a boundary or the end of a fetch to
    the first forward that is not inside a loader: inline batch preparation. Without a loader each
    batch of a step counts, up to its own forward. Where no module's call shows a forward it ends at
    the first backward, and holds the forward too.
    `evaluation_s` (part of `forward_s`/`other_s`/`data_wait_s`) is time in evaluation sections.
    """

    boundary: Boundary
    how_found: str  # one sentence for the report
    steps: int
    warmup_steps: int
    median_s: float
    mean_s: float
    p10_s: float
    p90_s: float
    p99_s: float | None = None
    first_step_s: float | None = None
    samples_per_step: float | None = None
    data_wait_s: float = 0.0
    h2d_copy_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    other_s: float = 0.0
    before_forward_s: float = 0.0
    evaluation_s: float = 0.0
    evaluations: int = 0  # evaluation sections seen, each with training before and after it
    loader_start_s: float = 0.0  # mean per step spent in iter(loader): workers being started
    gc_s: float = 0.0
    # Waits for the first batch of an iterator beyond a usual wait: workers warming up.
    first_batch_s: float = 0.0
    fetch_median_s: float | None = None  # one fetch of the training loader
    fetch_p99_s: float | None = None
    pageable_copies_per_step: float | None = None  # host-to-device copies not from pinned memory
    blocking_copies_per_step: float | None = None  # from pinned memory, but not non_blocking
    h2d_bytes_per_step: float | None = None
    backwards_per_step: float = 1.0
    optimizer_steps_per_step: float = 1.0
    optimizers_per_step: int = 1
    # Of each optimizer by its number: its updates, without what a closure of its step() does.
    update_s: list[float] = field(default_factory=list)
    batches_per_step: float = 1.0
    trainers: int = 1  # processes that stepped
    two_modes: bool = False  # mean and median differ by over 15 %: judge by the mean
    cycle_steps: int | None = None  # steps per regular cycle (epoch, rollout) if one was seen
    settled_after: int | None = None  # steps until the last ten showed no downward slope
    still_warming: bool = False  # the window's last steps still show a slope
    program_ended: bool = False  # the program ended by itself within the launch
    total_steps_seen: int = 0
    device_median_s: float | None = None  # from CUDA events


@dataclass(frozen=True, kw_only=True)
class SensorStatistics:
    """psutil and NVML samples over the measured window; None: not measured."""

    samples: int = 0
    window_s: float = 0.0
    cpu_share: float | None = None  # of the usable CPUs, whole machine
    cpu_per_core: list[float] = field(default_factory=list)
    program_cpus: float | None = None  # CPUs kept busy by the program's process tree
    main_process_cpus: float | None = None
    workers_cpus: float | None = None  # all children together
    workers_queued_cpus: float | None = None  # CPUs that they stood in the queue for
    other_load_cpus: float | None = None  # CPUs kept busy by everybody else
    iowait_share: float | None = None
    rss_peak_bytes: int | None = None
    memory_peak_bytes: int | None = None  # the same, what processes share counted once
    rss_growth_bytes_per_s: float | None = None
    swap_used_bytes: int | None = None
    context_switches_per_s: float | None = None
    involuntary_switches_per_s: float | None = None
    threads: int | None = None
    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    read_ops_per_s: float | None = None
    gpu_utilization: float | None = None  # mean, 0 to 1
    gpu_utilization_p5: float | None = None
    gpu_utilization_p95: float | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_power_w: float | None = None
    gpu_sm_clock_mhz: float | None = None
    gpu_throttle: list[str] = field(default_factory=list)  # reasons seen, share of samples appended
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    gpu_other_processes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Exposed shares of the step, 0 to 1, summing to 1; None where not measured (no GPU).

    gpu = kernels; runtime = host blocked in or calling the driver; cpu = operators and Python.
    """

    gpu: float | None = None
    memcpy: float | None = None
    memset: float | None = None
    communication: float | None = None
    runtime: float | None = None
    data_loader: float | None = None
    cpu: float | None = None
    other: float | None = None


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Time of one operator or kernel name per step."""

    name: str
    calls_per_step: float
    self_s: float  # host self time per step
    device_s: float | None = None  # exposed device time per step
    shapes: str | None = None


LISTED_OPERATORS = 40  # of a trace; an operator that is not listed may still have run


@dataclass(frozen=True, kw_only=True)
class RuntimeCall:
    """A call of the CUDA or HIP runtime or driver in the steps of a trace."""

    name: str
    calls_per_step: float
    host_s: float  # per step, threads added up
    covered_s: float | None = None  # per step, in which any thread is in it
    threads: int = 1
    operator: str | None = None  # that a waiting call is made in, such as aten::item


@dataclass(frozen=True, kw_only=True)
class PythonPlace:
    """A function of the user's, and the exposed host time per step in it and its libraries."""

    file: str  # as the trace names it: often relative to a folder of sys.path
    line: int
    function: str
    runtime_s: float = 0.0  # in driver calls
    data_loader_s: float = 0.0
    cpu_s: float = 0.0  # in operators
    other_s: float = 0.0  # in Python alone

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.runtime_s + self.data_loader_s + self.cpu_s + self.other_s


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """What the profiler window (or a trace that the user gave) says; per step means."""

    path: str
    steps: int  # 0: steps unknown
    step_s: float | None = None
    step_times_s: list[float] = field(default_factory=list)  # of each step, in order
    shares: Shares = field(default_factory=Shares)
    has_device: bool = False
    device_missing: str | None = None  # why what was launched is not in it; None: it is
    kernels_per_step: float | None = None
    short_kernels_share: float | None = None  # of kernels, under 10 us
    kernel_median_us: float | None = None
    gpu_busy_share: float | None = None
    communication_s: float | None = None  # total, per step
    communication_exposed_s: float | None = None
    backend: str | None = None  # torch.distributed backend, as the trace names it
    world_size: int | None = None  # processes of the job
    host_collective_s: float | None = None  # per step, on the host of a GPU's job, under no kernel
    h2d_bytes: int | None = None
    d2h_bytes: int | None = None
    pageable_copies: float | None = None  # to the device, per step
    pageable_wait_s: float | None = None  # host blocked in those, per step
    d2h_copies: float | None = None  # to the host, per step
    d2h_wait_s: float | None = None  # host blocked in those, per step
    blocking_copy_s: float | None = None  # host blocked in copies, per step
    blocking_copy_exposed_s: float | None = None  # of that while the device is idle
    sync_s: float | None = None  # host blocked in synchronisation, per step
    syncs_per_step: float | None = None
    tensor_core_share: float | None = None  # of GEMM/conv kernel time
    float32_matrix_s: float | None = None  # per step, GEMM/conv kernels without tensor cores
    operator_calls_per_step: float | None = None  # leaf CPU operators
    operator_median_us: float | None = None  # leaf CPU operators' self time
    compute_s: float | None = None  # host time inside leaf operators of at least 50 us
    gather_s: float | None = None  # of that (of kernels, on a GPU): rows looked up or scattered
    small_operator_s: float | None = None  # host time inside leaf operators under 50 us
    python_s: float | None = None  # host time of the step outside any operator
    outside_s: float | None = None  # of that in stretches too long for what links operators
    operators: list[Operator] = field(default_factory=list)  # by time, at most LISTED_OPERATORS
    runtime_calls: list[RuntimeCall] = field(default_factory=list)  # by host time, at most 8
    allocations_per_step: float | None = None  # calls that ask the driver for device memory
    allocation_s: float | None = None  # host time in them, per step
    allocator_retries_per_step: float | None = None  # operators that found memory full
    releases_per_step: float | None = None  # of memory to the driver, outside of any operator
    matrix_work: MatrixWork | None = None  # None: no GPU, or no input sizes recorded
    pointwise: PointwiseChains | None = None  # None: no GPU
    compilation: TracedCompilation | None = None  # None: nothing compiled is in it
    python_places: list[PythonPlace] = field(default_factory=list)  # by time, at most 5
    what_if: WhatIf | None = None  # None: nothing to replay
    exchange: GradientExchange | None = None  # None: no GPU, no steps, or no backward pass
    doubts: list[str] = field(default_factory=list)

    @property
    def linking_s(self) -> float:
        """Host time of the step that links operators: outside any, in short stretches."""
        return (self.python_s or 0.0) - (self.outside_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """One rank of a job, by its trace; means per step in seconds, None: not measured."""

    rank: int
    path: str
    step_s: float
    kernel_s: float = 0.0  # exposed kernels, collectives left out
    communication_s: float | None = None
    communication_exposed_s: float | None = None
    data_loader_s: float = 0.0
    wait_s: float | None = None  # in collectives until the last rank came; None: clocks unaligned
    last_share: float | None = None  # of the collectives, those that it came to last
    clock_offset_s: float | None = None  # its clock is ahead of the first rank's by this much


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
    folder: str | None = None
    failure: ProgramFailure | None = None  # of the observed launch
    doubts: list[str] = field(default_factory=list)

    @property
    def main(self) -> ProcessFacts:
        """The main training process (an empty one where no process stepped)."""
        return self.processes[0] if self.processes else ProcessFacts(pid=0)

    @property
    def has_gpu(self) -> bool:
        """Whether the program's main process trained on a CUDA device."""
        devices = [m.device for m in self.main.models] + [o.device for o in self.main.optimizers]
        if any(d.startswith("cuda") for d in devices):
            return True
        return self.trace is not None and self.trace.has_device
