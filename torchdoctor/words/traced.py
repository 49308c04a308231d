"""What a profiler trace says: the window of a launch, or a file that the user gave."""

from dataclasses import dataclass, field

from torchdoctor.words.program import Location

KNOWN_ENOUGH = 0.9  # of the matrix kernels' time must be of known sizes, or there is no MFU
LISTED_OPERATORS = 40  # of a trace; an operator that is not listed may still have run
REPRODUCED_WITHIN = 0.02  # a replay further from the measured step is not believed


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
    device_s: float | None = None  #: Time per step of the kernels that it launched.
    shapes: str | None = None  #: Sizes of its inputs, where they were recorded.


@dataclass(frozen=True, kw_only=True)
class RuntimeCall:
    """A call of the CUDA or HIP runtime or driver in the steps of a trace."""

    name: str  #: Its name.
    calls_per_step: float  #: How often a step makes it.
    #: Host time per step in it, all threads added up; of calls within each other on a thread the
    #: outer.
    host_s: float
    #: Time of a step in which any thread is in it: at most the step.
    covered_s: float | None = None
    threads: int = 1  #: How many threads make it.
    #: The operator in which it waits, such as aten::item; null: none, or no wait.
    operator: str | None = None


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
    regions_per_step: float  #: Compiled pieces of code that run in a step.
    #: Of the compilations in the steps, those of a further version of a function; null: the
    #: trace does not say.
    again: int | None = None
    #: Lines after which a graph breaks, by the trace's stacks; empty without stacks.
    resumed: list[Location] = field(default_factory=list)


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
    #: The arithmetic it runs in: float64, float32, tf32, float16, bfloat16 or float8; null: not
    #: known.
    precision: str | None
    calls_per_step: float  #: How often a step calls it with these sizes.
    flops: float  #: Floating-point operations per step.
    device_s: float  #: Time per step of the kernels that it launched.
    #: Share of the GPU's dense peak while it runs; null: not known.
    peak_share: float | None = None
    #: Whether arithmetic limits it, and not memory bandwidth, by its sizes; null: not known.
    compute_bound: bool | None = None
    #: Sizes that are no multiple of what the tensor cores want.
    uneven: list[UnevenSize] = field(default_factory=list)
    #: The user's line that calls it; null: no stacks in the trace, or a backward.
    location: Location | None = None


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """Arithmetic of the step, from recorded input sizes; means per step.

    Products that are computed twice (activation checkpointing) count twice.
    """

    #: Floating-point operations per step of products of known sizes, two for each multiplication
    #: and addition.
    flops: float
    device_s: float  #: Time per step of the kernels that these products launched.
    #: Share of the matrix kernels' time that belongs to products of known sizes.
    known_share: float
    gpu: str | None = None  #: The GPU as the table of data sheets names it; null: not listed.
    source: str | None = None  #: Where its figures are from.
    #: The time that the products would take at the dense peak of their precision, over the step;
    #: null: not known, or under 90 % of the matrix kernels have known sizes.
    mfu: float | None = None
    peak_share: float | None = None  #: The same over the time in which they run.
    #: Device time per step of products that arithmetic limits, by their sizes.
    compute_bound_s: float | None = None
    #: Device time per step of products that memory bandwidth limits, by their sizes.
    memory_bound_s: float | None = None
    #: The products that take most, at most 12.
    products: list[MatrixProduct] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PointwiseChain:
    """All chains of the same operators; means per step."""

    operators: list[str]  #: The operators that launch its kernels, in order, the first 8.
    kernels: int  #: How many kernels it has.
    times_per_step: float  #: How often a step runs it.
    device_s: float  #: Time per step in which it runs and nothing else does on the device.
    #: The user's line that calls its first operator; null: no stacks in the trace, or a
    #: backward.
    location: Location | None = None


@dataclass(frozen=True, kw_only=True)
class PointwiseChains:
    """Two pointwise kernels and more in a row on a stream; means per step, optimizers left out."""

    #: Chains per step: two pointwise kernels and more in a row on a stream; optimizers left out.
    chains: float
    kernels: float  #: Kernels in them per step.
    device_s: float  #: Time per step in which they run and nothing else does on the device.
    saved_s: float  #: What of it one kernel for each chain would save at most.
    #: The chains of equal operators that take most, at most 3.
    costliest: list[PointwiseChain] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """Gradients and their exchange; means per step.

    Bytes are those of whole gradients, also where each rank keeps a part of them. Bandwidths are
    bus bandwidths as nccl-tests defines them: the bytes that each link carries in a ring.
    """

    #: Processes of the job; null: the trace does not say, as of a single one.
    ranks: int | None = None
    #: What the bytes were read from: "all-reduce" or "reduce-scatter" (collectives with their
    #: sizes), "backward" (the gradients that the backward pass accumulates); null: not known.
    known_from: str | None = None
    gradient_bytes: float | None = None  #: Bytes of all gradients of a step.
    last_bytes: float | None = None  #: Bytes of the collective that begins last in a step.
    backward_s: float | None = None  #: From the first to the last kernel of the backward pass.
    #: Time per step in the collectives that exchange gradients (and gather weights), added up.
    exchange_s: float | None = None
    other_s: float = 0.0  #: Time per step in other collectives, broadcasts left out.
    #: Bus bandwidth (as nccl-tests defines it) of all large ones together, waits for other ranks
    #: included.
    mean_bytes_per_s: float | None = None
    best_bytes_per_s: float | None = None  #: Bus bandwidth of the fastest of them.


@dataclass(frozen=True, kw_only=True)
class BranchReplay:
    """A step without one of its costs."""

    step_s: float  #: Step time without this cost, replayed.
    lowest_s: float  #: The same without the waits of unknown cause.


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Replays of consecutive steps of a trace: a model, no measurement; means per step."""

    #: Steps that were replayed, in a row; 0: steps unknown, the whole trace counts as one.
    steps: int
    of_steps: int  #: Steps in the trace.
    measured_s: float  #: Mean time of these steps as measured.
    replayed_s: float  #: Their mean time in the replay with nothing taken away.
    #: The same without the waits of the device whose cause the trace does not show.
    explained_s: float
    #: Each device event was replayed with its own delay, because usual ones do not reproduce the
    #: step.
    own_delays: bool = False
    #: The step without each cost: data_loader, memcpy, communication, gpu, cpu (operators,
    #: Python, launches), runtime (synchronisation and other driver calls); null: the trace
    #: cannot say.
    branches: dict[str, BranchReplay | None] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)  #: Why the what-ifs may not hold.

    @property
    def reproduced(self) -> bool:
        """Return True if the replay with nothing taken away is close to what was measured."""
        return abs(self.replayed_s - self.measured_s) <= REPRODUCED_WITHIN * self.measured_s

    def speedup(self, branch: str) -> float | None:
        """Return the replayed step with nothing taken away over the step without the branch."""
        replayed = self.branches.get(branch)
        return self.replayed_s / replayed.step_s if replayed and replayed.step_s > 0 else None


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """What the profiler window (or a trace that the user gave) says; per step means."""

    path: str  #: The trace file.
    steps: int  #: Steps in it; 0: it has no step annotation, and all of it counts as one span.
    step_s: float | None = None  #: Mean time of a step.
    step_times_s: list[float] = field(default_factory=list)  #: Time of each step, in order.
    shares: Shares = field(default_factory=Shares)  #: Exposed shares of the average step.
    has_device: bool = False  #: Whether anything ran on a GPU while the profiler watched.
    #: Why the trace holds next to nothing of what the host launched on a GPU, so that no
    #: bottleneck is named; null: it holds it, or nothing was launched.
    device_missing: str | None = None
    kernels_per_step: float | None = None  #: GPU kernels in a step.
    #: Share of the kernels that take less than 10 microseconds.
    short_kernels_share: float | None = None
    kernel_median_us: float | None = None  #: Median length of a kernel.
    #: Share of the steps in which a kernel runs, mean over the devices.
    gpu_busy_share: float | None = None
    communication_s: float | None = None  #: Time in collectives per step, hidden or not.
    communication_exposed_s: float | None = None  #: The part of it that no computing kernel hides.
    #: The torch.distributed backend that the trace names; null: it names none.
    backend: str | None = None
    world_size: int | None = None  #: Processes of the job; null: the trace does not say.
    #: Time per step of collectives that run on the host (gloo, MPI) while no kernel runs, in a
    #: trace with a GPU.
    host_collective_s: float | None = None
    h2d_bytes: int | None = None  #: Bytes copied from host to device per step.
    d2h_bytes: int | None = None  #: Bytes copied from device to host per step.
    pageable_copies: float | None = None  #: Copies from pageable memory to the device per step.
    pageable_wait_s: float | None = None  #: Time per step that the host is blocked in those.
    d2h_copies: float | None = None  #: Copies from the device to the host per step.
    #: Time per step that the host is blocked in those: until all is done that was launched
    #: before them.
    d2h_wait_s: float | None = None
    blocking_copy_s: float | None = None  #: Time per step that the host is blocked in copy calls.
    blocking_copy_exposed_s: float | None = None  #: Of that, while neither kernels nor copies run.
    sync_s: float | None = None  #: Time per step that the host is blocked in synchronisation.
    syncs_per_step: float | None = None  #: Synchronising calls per step.
    #: Share of the matrix and convolution kernels' time that ran on tensor cores.
    tensor_core_share: float | None = None
    #: Kernel time per step in matrix products, convolutions and attention that use no tensor
    #: cores, double precision left out.
    float32_matrix_s: float | None = None
    #: Operators on the CPU per step, those that call no other.
    operator_calls_per_step: float | None = None
    operator_median_us: float | None = None  #: Median self time of these operators.
    compute_s: float | None = None  #: Host time per step in operators of at least 50 microseconds.
    #: The part of it in operators that look rows up or scatter them (embedding, index_select,
    #: gather); with a GPU the time of the kernels that they launch.
    gather_s: float | None = None
    small_operator_s: float | None = None  #: Host time per step in shorter operators.
    python_s: float | None = None  #: Host time per step outside any operator.
    #: Of that, time in stretches of 0.5 ms and longer: the program's own Python, or waiting, not
    #: what links one operator to the next.
    outside_s: float | None = None
    #: The operators that take most, at most 40.
    operators: list[Operator] = field(default_factory=list)
    #: Calls of the CUDA or HIP runtime and driver by host time, at most 8.
    runtime_calls: list[RuntimeCall] = field(default_factory=list)
    #: Calls per step that ask the driver for device memory or return it.
    allocations_per_step: float | None = None
    allocation_s: float | None = None  #: Host time per step in them.
    #: Operators per step that returned device memory to the driver and asked again, because
    #: there was not enough.
    allocator_retries_per_step: float | None = None
    #: Calls per step that return device memory outside of any operator, as
    #: torch.cuda.empty_cache() does.
    releases_per_step: float | None = None
    #: Arithmetic of matrix products, convolutions and attention; null: no GPU, or no input sizes
    #: (record_shapes) in the trace.
    matrix_work: MatrixWork | None = None
    #: Pointwise kernels that run in a row and could be one; null: no GPU.
    pointwise: PointwiseChains | None = None
    #: What torch.compile does in the steps; null: nothing compiled is in them.
    compilation: TracedCompilation | None = None
    #: The user's functions that take most exposed host time, at most 5; empty without stacks.
    python_places: list[PythonPlace] = field(default_factory=list)
    #: The trace replayed as it is, and without each of its costs; null: not replayed.
    what_if: WhatIf | None = None
    #: Gradients and how devices exchange them; null: no GPU, no steps, or no backward pass.
    exchange: GradientExchange | None = None
    doubts: list[str] = field(default_factory=list)  #: What of the trace cannot be trusted.

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
    #: Time per step that its collectives wait until the last rank has come, hidden or not; null:
    #: the ranks' clocks could not be aligned.
    wait_s: float | None = None
    #: Share of the collectives that it came to last; null: the same.
    last_share: float | None = None
    #: How far its clock is ahead of the first rank's, by collectives that end together; null:
    #: the same.
    clock_offset_s: float | None = None
