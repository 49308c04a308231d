"""What a profiler trace says: the window of a launch, or a file that the user gave."""

from dataclasses import dataclass, field

from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.location import Location

KNOWN_ENOUGH = 0.9  # of the matrix kernels' time must be of known sizes, or there is no MFU
LISTED_OPERATORS = 40  # of a trace; an operator that is not listed may still have run
REPRODUCED_WITHIN = 0.02  # a replay further from the measured step is not believed
MATTERS = 1.05  # of a gain by replay: less is not worth saying


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Exposed shares of the step, 0 to 1, that sum to 1; None where not measured (no GPU)."""

    gpu: float | None = None  #: GPU kernels.
    memcpy: float | None = None  #: Copies to and from the device that nothing hides.
    memset: float | None = None  #: Device memory being cleared.
    communication: float | None = None  #: Communication between devices that nothing hides.
    runtime: float | None = None  #: The host blocked in, or calling, the GPU driver.
    data_loader: float | None = None  #: Waiting for data.
    cpu: float | None = None  #: Operators on the CPU, and Python.
    other: float | None = None  #: Everything else.


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Time of one operator or kernel name per step."""

    name: str  #: Its name.
    calls_per_step: float  #: How often a step calls it.
    self_s: float  #: Host time per step in it, without the operators that it calls.
    calling_s: float = 0.0  #: Of it, where it makes driver calls: it launches, or waits.
    device_s: float | None = None  #: Time per step of the kernels that it launched.
    shapes: str | None = None  #: Sizes of its inputs, where they were recorded.


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """All kernels of one name in the steps of a trace, collectives left out."""

    name: str  #: Its name, with the first of its template's arguments that is a name.
    calls_per_step: float  #: How often a step runs it.
    device_s: float  #: Time per step in which it runs; overlaps count once.


@dataclass(frozen=True, kw_only=True)
class RuntimeCall:
    """A call of the CUDA or HIP runtime or driver in the steps of a trace."""

    name: str  #: Its name.
    calls_per_step: float  #: How often a step makes it.
    host_s: float  #: Host time per step in it, all threads; the outer of nested calls.
    covered_s: float | None = None  #: Time of a step in which any thread is in it.
    threads: int = 1  #: How many threads make it.
    operator: str | None = None  #: The operator in which it waits, such as aten::item; null: none.


@dataclass(frozen=True, kw_only=True)
class PythonCall:
    """A function that a place of the user's calls, often a library's, and its exposed time."""

    file: str  #: The file as the trace names it.
    line: int  #: Where the function begins.
    function: str  #: Its name.
    host_s: float  #: Exposed time per step in it, and in what it calls, outside any operator.


@dataclass(frozen=True, kw_only=True)
class PythonPlace:
    """A function of the user's, and the exposed host time per step in it and its libraries."""

    file: str  #: The file as the trace names it, often relative to a folder of sys.path.
    line: int  #: Where the function begins, or the line that is running, as the profiler has it.
    function: str  #: Its name.
    runtime_s: float = 0.0  #: Exposed time per step in it that driver calls take.
    data_loader_s: float = 0.0  #: The same of waiting for data.
    cpu_s: float = 0.0  #: The same of operators on the CPU.
    other_s: float = 0.0  #: The same of Python alone.
    waiting_s: float = 0.0  #: Of that, in sleeps, locks, input and output.
    calls: list[PythonCall] = field(default_factory=list)  #: Which functions it calls take most.

    @property
    def total_s(self) -> float:
        """Return the time in it altogether."""
        return self.runtime_s + self.data_loader_s + self.cpu_s + self.other_s


@dataclass(frozen=True, kw_only=True)
class TracedCompilation:
    """What a trace shows of torch.compile; per step means."""

    compiles_per_step: float  #: Functions compiled per step.
    compile_s: float  #: Host time per step in compiling, that of backward graphs included.
    steps_with: int  #: Steps in which something is compiled.
    again: int | None = None  #: Compilations of a further version of a function; null: not known.
    resumed: list[Location] = field(default_factory=list)  #: Lines after graph breaks, by stacks.


@dataclass(frozen=True, kw_only=True)
class UnevenSize:
    """A size that is no multiple of `multiple`, which the hardware's fast path wants."""

    dimension: str  #: Which: rows, inner, columns, input channels or output channels.
    size: int  #: What it is.
    multiple: int  #: What it should be a multiple of.


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """All calls of one operator with the same input sizes and precision; means per step."""

    operator: str  #: The operator.
    sizes: str  #: Sizes of its inputs.
    precision: str | None  #: float64, float32, tf32, float16, bfloat16, float8; null: not known.
    calls_per_step: float  #: How often a step calls it with these sizes.
    flops: float  #: Floating-point operations per step.
    device_s: float  #: Time per step of the kernels that it launched.
    peak_share: float | None = None  #: Share of the dense peak while it runs; null: not known.
    compute_bound: bool | None = None  #: Arithmetic, not memory, limits it; null: not known.
    flop_per_byte: float | None = None  #: Operations for each byte moved once; null: not known.
    #: Share of what the data sheet's peak and memory bandwidth allow (roofline) while it runs.
    roofline_share: float | None = None
    uneven: list[UnevenSize] = field(default_factory=list)  #: Sizes that miss the fast path.
    location: Location | None = None  #: The user's line; null: no stacks, or a backward.


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """Arithmetic of the step by input sizes, repeated work included; means per step."""

    flops: float  #: Operations per step of products of known sizes; a multiply-add is two.
    device_s: float  #: Time per step of the kernels that these products launched.
    known_share: float  #: Share of the matrix kernels' time in products of known sizes.
    gpu: str | None = None  #: The GPU as the table of data sheets names it; null: not listed.
    source: str | None = None  #: Where its figures are from.
    #: Time at dense peak over the step; null: no `gpu`, known_share < 0.9.
    mfu: float | None = None
    peak_share: float | None = None  #: The same over the time in which they run.
    compute_bound_s: float | None = None  #: Device time per step that arithmetic limits.
    memory_bound_s: float | None = None  #: The same that memory bandwidth limits.
    products: list[MatrixProduct] = field(default_factory=list)  #: The at most 12 that take most.
    kinds: int = 0  #: How many there are, by operator, sizes and precision.


@dataclass(frozen=True, kw_only=True)
class PointwiseChain:
    """All chains of the same operators; means per step."""

    operators: list[str]  #: The operators that launch its kernels, in order, the first 8.
    kernels: int  #: How many kernels it has.
    times_per_step: float  #: How often a step runs it.
    device_s: float  #: Time per step in which it runs and nothing else does on the device.
    location: Location | None = None  #: Line of the first operator; null: no stacks, or a backward.


@dataclass(frozen=True, kw_only=True)
class PointwiseChains:
    """Two pointwise kernels and more in a row on a stream; means per step, optimizers left out."""

    chains: float  #: Chains per step.
    kernels: float  #: Kernels in them per step.
    device_s: float  #: Time per step in which they run and nothing else does on the device.
    saved_s: float  #: What of it one kernel for each chain would save at most.
    costliest: list[PointwiseChain] = field(default_factory=list)  #: The at most 3 that take most.


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """Gradients and their exchange; means per step.

    Bytes are those of whole gradients, also where each rank keeps a part of them. Bandwidths are
    bus bandwidths as nccl-tests defines them: the bytes that each link carries in a ring.
    """

    ranks: int | None = None  #: Processes of the job; null: the trace does not say.
    known_from: str | None = None  #: all-reduce, reduce-scatter or backward; null: not known.
    gradient_bytes: float | None = None  #: Bytes of all gradients of a step.
    last_bytes: float | None = None  #: Bytes of the collective that begins last in a step.
    backward_s: float | None = None  #: From the first to the last kernel of the backward pass.
    exchange_s: float | None = None  #: Time per step in collectives that exchange gradients.
    other_s: float = 0.0  #: Time per step in other collectives, broadcasts left out.
    mean_bytes_per_s: float | None = None  #: Bus bandwidth of all large ones, waits included.
    best_bytes_per_s: float | None = None  #: Bus bandwidth of the fastest of them.


@dataclass(frozen=True, kw_only=True)
class CollectiveKind:
    """Collectives of one kind on the device; means per step."""

    kind: str  #: all-reduce, all-to-all, broadcast and so on.
    calls_per_step: float  #: How often a step makes one.
    device_s: float  #: Time per step in them, the waits for other ranks included.
    bytes_per_step: float | None = None  #: Bytes that they exchange; null: not recorded.
    best_bytes_per_s: float | None = None  #: Bus bandwidth of the fastest of at least 1 MiB.


@dataclass(frozen=True, kw_only=True)
class TracedPart:
    """Events on the host and the device that a fix may work on; means per step."""

    seconds: float  #: Time in which any of them runs, on whichever timeline.
    device_s: float = 0.0  #: Of it, on the device.
    beside_s: float = 0.0  #: Time in which the device does anything else, which stays.
    remains_s: float = 0.0  #: What is left of chains of kernels if each were its longest.
    bytes: int | None = None  #: Bytes that they move; null: not known, or no copies.


@dataclass(frozen=True, kw_only=True)
class BranchReplay:
    """A step without one of its costs."""

    step_s: float  #: Step time without this cost, replayed.
    lowest_s: float  #: The same without the waits of unknown cause.


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Replays of consecutive steps of a trace: a model, no measurement; means per step."""

    steps: int  #: Steps replayed, in a row; 0: not known, the whole trace is one.
    of_steps: int  #: Steps in the trace.
    measured_s: float  #: Mean time of these steps as measured.
    replayed_s: float  #: Their mean time in the replay with nothing taken away.
    explained_s: float  #: The same without the device's waits of unknown cause.
    own_delays: bool = False  #: Device events keep their own delays, as usual ones do not fit.
    #: Without data_loader, memcpy, communication, gpu, cpu or runtime; null: the trace cannot say.
    branches: dict[str, BranchReplay | None] = field(default_factory=dict)
    doubts: list[Evidence] = field(default_factory=list)  #: Why the what-ifs may not hold.

    @property
    def reproduced(self) -> bool:
        """Return True if the replay with nothing taken away is close to what was measured."""
        return abs(self.replayed_s - self.measured_s) <= REPRODUCED_WITHIN * self.measured_s

    @property
    def explains(self) -> bool:
        """Return True if some cost matters: else the time is of something that is not replayed."""
        return any((self.speedup(branch) or 0.0) >= MATTERS for branch in self.branches)

    def speedup(self, branch: str) -> float | None:
        """Return the replayed step with nothing taken away over the step without the branch.

        What is left counts as no less than what the replay may be off.
        """
        replayed = self.branches.get(branch)
        least_s = REPRODUCED_WITHIN * self.replayed_s
        return self.replayed_s / max(replayed.step_s, least_s) if replayed and least_s else None

    def gain(self, branch: str | None) -> float | None:
        """Return the speed-up without a branch of the tree, whose host makes the driver calls."""
        costs = ("cpu", "runtime") if branch == "cpu" else (branch or "",)
        return max(filter(None, map(self.speedup, costs)), default=None)


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """What the profiler window (or a trace that the user gave) says; per step means."""

    path: str  #: The trace file.
    steps: int  #: Steps in it; 0: it has no step annotation, and all of it counts as one span.
    step_s: float | None = None  #: Mean time of a step.
    step_times_s: list[float] = field(default_factory=list)  #: Time of each step, in order.
    shares: Shares = field(default_factory=Shares)  #: Exposed shares of the average step.
    has_device: bool = False  #: Whether anything ran on a GPU while the profiler watched.
    device_missing: Evidence | None = None  #: Why its GPU work is missing; null: none is.
    kernels_per_step: float | None = None  #: GPU kernels in a step.
    short_kernels_share: float | None = None  #: Share of kernels shorter than 10 microseconds.
    kernel_median_us: float | None = None  #: Median length of a kernel.
    gpu_busy_share: float | None = None  #: Share in which a kernel runs, mean of the devices.
    communication_s: float | None = None  #: Time in collectives per step, hidden or not.
    communication_exposed_s: float | None = None  #: The part of it that no computing kernel hides.
    backend: str | None = None  #: The torch.distributed backend; null: the trace names none.
    world_size: int | None = None  #: Processes of the job; null: the trace does not say.
    host_collective_s: float | None = None  #: Per step: host collectives while no kernel runs.
    h2d_bytes: int | None = None  #: Bytes copied from host to device per step.
    d2h_bytes: int | None = None  #: Bytes copied from device to host per step.
    pageable_copies: float | None = None  #: Copies from pageable memory to the device per step.
    pageable_wait_s: float | None = None  #: Time per step that the host is blocked in those.
    d2h_copies: float | None = None  #: Copies from the device to the host per step.
    d2h_wait_s: float | None = None  #: Time per step that the host is blocked in those.
    blocking_copy_s: float | None = None  #: Time per step that the host is blocked in copy calls.
    blocking_copy_exposed_s: float | None = None  #: Of that, while neither kernels nor copies run.
    blocking_copy_range: str | None = None  #: The range of the program that has most of that.
    unusual_s: float = 0.0  #: Per step: start-up, or a wait for work of before the window.
    unusual: Evidence | None = None  #: What that is; null: it is not much of the step.
    loader_workers: int | None = None  #: Of the loader; 0: none, -1: some; null: no loader.
    #: Per step: what the GPU idles after synchronisations and copies to the host, their length at
    #: most.
    after_sync_s: float | None = None
    sync_s: float | None = None  #: Time per step that the host is blocked in synchronisation.
    syncs_per_step: float | None = None  #: Synchronising calls per step.
    float32_matrix_s: float | None = None  #: Per step: matrix kernels in plain float32.
    operator_calls_per_step: float | None = None  #: CPU operators that call no other.
    operator_median_us: float | None = None  #: Median self time of these operators.
    compute_s: float | None = None  #: Host time per step in operators of at least 50 microseconds.
    gather_s: float | None = None  #: Of it, in embedding, gather and the like; kernels with a GPU.
    small_operator_s: float | None = None  #: Host time per step in shorter operators.
    python_s: float | None = None  #: Host time per step outside any operator.
    outside_s: float | None = None  #: Of it, in stretches from 0.5 ms on: own Python, or waiting.
    operators: list[Operator] = field(default_factory=list)  #: The at most 40 that take most.
    runtime_calls: list[RuntimeCall] = field(default_factory=list)  #: The at most 8 by host time.
    allocations_per_step: float | None = None  #: Driver calls for device memory, and to return it.
    allocation_s: float | None = None  #: Host time per step in them.
    allocator_retries_per_step: float | None = None  #: Operators that had to free and ask again.
    releases_per_step: float | None = None  #: Returns of memory as by torch.cuda.empty_cache().
    uncached_per_step: float | None = None  #: Calls that PyTorch's caching allocator never makes.
    matrix_work: MatrixWork | None = None  #: Arithmetic; null: no GPU, or no input sizes recorded.
    pointwise: PointwiseChains | None = None  #: Kernels in a row that could be one; null: no GPU.
    compilation: TracedCompilation | None = None  #: torch.compile in the steps; null: not in them.
    python_places: list[PythonPlace] = field(default_factory=list)  #: At most 5, the costliest.
    #: By name, as torchdoctor/trace/parts.py lists them; without a device those of the host alone.
    parts: dict[str, TracedPart] = field(default_factory=dict)
    what_if: WhatIf | None = None  #: The trace replayed without each of its costs; null: not done.
    collectives: list[CollectiveKind] = field(default_factory=list)  #: By kind, costliest first.
    exchange: GradientExchange | None = None  #: Of gradients; null: no GPU, steps or backward pass.
    doubts: list[Evidence] = field(default_factory=list)  #: What of the trace cannot be trusted.
    trains: bool | None = None  #: A backward pass or an optimizer ran; null: the trace cannot say.
    optimizes: bool = False  #: Marks or operators of an optimizer are in it.
    has_engine: bool = False  #: A server of language models (vLLM, SGLang, ...) ran the model.
    engine: str | None = None  #: Which: vllm, sglang, tensorrt_llm, lmdeploy; null: not known.
    compiled: bool = False  #: Code of torch.compile ran.
    graph_kernels_per_step: float | None = None  #: Kernels that a captured graph launched.
    active_dropouts: int = 0  #: Calls of the whole trace in which dropout drops.
    training_norms: int = 0  #: Kernels of the whole trace of batch norm in training mode.
    kernels: list[KernelTime] = field(default_factory=list)  #: The at most 8 that take most.
    platform: str | None = None  #: Whose device: cuda, rocm, xpu, mtia, hpu; null: not known.
    events: int | None = None  #: Operators, driver calls and device events of the steps.
    start_up_s: float = 0.0  #: The GPU's start-up, in front of the window and left out of it.
    with_stack: bool = False  #: Python stacks were recorded, which slows the host down.
    rank: int | None = None  #: Its rank; null: it is the only trace, or names none.
    of_traces: int = 1  #: How many traces were given.
    idle_gpus: list[str] = field(default_factory=list)  #: Names of those listed, if all idled.

    @property
    def kept_share(self) -> float:
        """Return the share of what was recorded that is left without the start-up."""
        whole_s = self.start_up_s + self.kept_s
        return self.kept_s / whole_s if whole_s > 0 else 1.0

    @property
    def kept_s(self) -> float:
        """Return the seconds of all steps, or of the window that stands for one."""
        return (self.step_s or 0.0) * max(self.steps, 1)

    @property
    def linking_s(self) -> float:
        """Return the host time that links operators: outside any of them, in short stretches."""
        return (self.python_s or 0.0) - (self.outside_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """One rank of a job, by its trace; means per step in seconds, None: not measured."""

    rank: int  #: Its number.
    path: str  #: Its trace file.
    step_s: float  #: Mean time of a step.
    kernel_s: float = 0.0  #: Exposed time of kernels per step, collectives left out.
    communication_s: float | None = None  #: Time in collectives per step, hidden or not.
    communication_exposed_s: float | None = None  #: The part of it that no computing kernel hides.
    data_loader_s: float = 0.0  #: Exposed time per step that it waits for data.
    wait_s: float | None = None  #: Per step until the last rank comes; null: clocks not aligned.
    last_share: float | None = None  #: Share of the collectives it came to last; null: the same.
    exchange_s: float | None = None  #: Per step in collectives after the last rank; null: the same.
    clock_offset_s: float | None = None  #: Of a watched run: its clock less the first rank's.
