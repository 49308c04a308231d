"""What the probe saw inside one process of the user's program.

`ProcessFacts`, at the end, is the whole; the types above it are its parts:

- what the program made: loaders, optimizers, models, and the lines that call these;
- how torch was set, what it compiled, what fixes became in this process;
- where the time of the main thread went, by lines of the user's code (`StackSample`);
- what the launch with the profiler window looked at more closely (`ANALYSED`).

The probe writes a process as JSON: `process-<number>.json` in the channel folder of a launch. A
field that the file lacks has its default (None: not measured; else nothing was seen), and a field
that is not known is ignored. So a new field of a type needs a default.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.location import Location

FillingWay = Literal["fixed", "asked", "whole-set"]

# Fields of ProcessFacts that only the launch with the profiler window fills in. Together they are
# taken over into the first process of the observed launch: a new one has to be named here.
ANALYSED = (
    "analysed_steps",
    "tensor_calls",
    "kept_graphs",
    "gradient_norms",
    "gradient_products",
    "sample_check",
    "input_mean",
    "input_std",
    "input_channels",
    "padded_products",
    "memory_snapshot",
)


@dataclass(frozen=True, kw_only=True)
class CompileReason:
    """Why a graph broke, or why a function was compiled again, by torch's own words."""

    reason: str
    location: Location | None = None  # of the user's line
    text: str = ""  # the source line there
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class GaveUp:
    """A function that is no longer compiled for new inputs: too many versions of it."""

    function: str  # as torch names it: "'forward' (/home/me/train.py:5)"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """torch's counters of one process that compiled something, since its start."""

    graphs: int = 0
    compile_s: float = 0.0
    breaks: list[CompileReason] = field(default_factory=list)  # most frequent first, at most 8
    recompile_reasons: list[CompileReason] = field(default_factory=list)  # the same
    gave_up: list[GaveUp] = field(default_factory=list)
    # What training itself had to wait for, after the first backward pass or optimizer step ended.
    watched_s: float = 0.0  # time since then
    later_recompiles: int = 0  # further versions of what was compiled before
    later_most: int = 0  # of these, the versions of the function that has most
    later_s: float = 0.0  # spent on them, at most `watched_s`


@dataclass(frozen=True, kw_only=True)
class PaddedSize:
    """A size of a product, and the larger one that it was padded to."""

    dimension: str  # "columns", "output channels"
    size: int
    padded: int


@dataclass(frozen=True, kw_only=True)
class PaddedProduct:
    """A matrix product or convolution of the step, timed alone beside one with padded sizes."""

    operator: str
    sizes: str  # of its inputs, "[8192, 768], [768, 50257]"
    padded_sizes: list[PaddedSize] = field(default_factory=list)  # those that were padded
    precision: str  # float32, float16, bfloat16
    device: str  # "cpu" or an accelerator's, such as "cuda:0"
    calls_per_step: float
    alone_s: float  # one call as it is, median
    speedups: list[float] = field(default_factory=list)  # of the padded one, a turn each


@dataclass(frozen=True, kw_only=True)
class DatasetWrite:
    """A line that changes the data set while it prepares a sample, by its source."""

    name: str  # "self.seen"
    location: Location
    text: str = ""  # the source line
    cache: bool = False  # it keeps a value under a key that had none yet


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """What one tensor of a batch, or of the inputs of a call, is like."""

    sizes: list[int]  # of each dimension; -1: it has no number, while torch traces
    dtype: str  # "float32"
    device: str = "cpu"  # or an accelerator's, such as "cuda:0"
    element_bytes: int | None = None

    @property
    def total_bytes(self) -> int | None:
        """Return the bytes of all elements; None: they are not known."""
        if self.element_bytes is None or min(self.sizes, default=0) < 0:
            return None
        return math.prod(self.sizes) * self.element_bytes

    @property
    def is_floating(self) -> bool:
        """Return True for floating-point numbers of any precision."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_whole(self) -> bool:
        """Return True for signed whole numbers, as tokens are."""
        return self.dtype.startswith("int")


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """One `torch.utils.data.DataLoader`, numbered by its order of construction (`ident`)."""

    ident: int
    location: Location | None = None  # where the user's code constructed it
    cls: str = "torch.utils.data.dataloader.DataLoader"
    num_workers: int = 0
    batch_size: int | None = None  # None: a batch sampler, or no automatic batching
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True
    iterable: bool = False  # IterableDataset
    shards_by_worker: bool | None = None  # IterableDataset: calls get_worker_info; None: unknown
    dataset_cls: str = ""  # of the data set itself, where torch's Subset and the like are around it
    dataset_length: int | None = None
    shuffles: bool | None = None  # by torch's random sampler; None: a sampler of another kind
    # How it was used.
    iterators_before: int | None = None  # of all loaders, started before this one was made
    iterators: int = 0  # how many times it was iterated (epochs)
    batches: int = 0
    samples: int = 0
    # Waits for its workers: which of them was slow, or whether the hand-over was.
    overtaken: int = 0  # batches that were waited for while a later one lay ready
    overtaken_s: float = 0.0  # of all these waits, from when the first later one lay ready
    looks: int = 0  # times that the workers' queue was looked into, but each epoch's first ones
    taken_over_s: float = 0.0  # waits that began with a batch in the queue
    awaited_s: float = 0.0  # waits that began with an empty queue
    # The first 4 tensors of batches, at most 8 distinct ones.
    batch_tensors: list[list[TensorFacts]] = field(default_factory=list)
    # How samples are made; the times are of a loader without workers (num_workers=0) alone.
    sample_time_s: float | None = None  # median time of dataset[i] (+ collate)
    sample_cpu_share: float | None = None  # of a fetch: on a CPU, or in its queue
    sample_queue_share: float | None = None  # of a fetch: in the queue; None: not counted here
    # Hashes of the samples of the first batches, in order; a label's is None where there is none.
    input_hashes: list[str] = field(default_factory=list)
    label_hashes: list[str | None] = field(default_factory=list)
    dataset_writes: list[DatasetWrite] = field(default_factory=list)  # one for each attribute
    no_second: Evidence | None = None  # why none over its data can run beside it; None: one can


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """One `torch.optim.Optimizer`, numbered by its order of construction."""

    ident: int
    location: Location | None = None
    cls: str = ""  # e.g. "torch.optim.adam.Adam"
    parameters: int = 0  # tensors
    elements: int = 0  # of all parameters
    device: str = "cpu"
    dtype: str = "float32"
    fused: bool | None = None
    foreach: bool | None = None
    supports_fused: bool = False
    first_lr: float | None = None  # learning rate when it was made
    lr: float | None = None  # the latest one, of its first parameter group
    distinct_lrs: int = 1  # different ones of its parameter groups
    weight_decay: float | None = None
    steps: int = 0
    inside_backwards: int = 0  # backward calls inside step(closure)


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A line of the user's code, and the expression that an object goes by there."""

    location: Location
    name: str  # "model", "self.net"


@dataclass(frozen=True, kw_only=True)
class TrainingPass:
    """From a training forward to the backward that ends it: the user's lines, innermost first."""

    model: int = 0  # `ident` of the model that was called first
    name: str | None = None  # what the user's line calls it: "model", "self.net"
    forward: list[Location] = field(default_factory=list)
    backward: list[Location] = field(default_factory=list)
    library: str | None = None  # module of what the user called, if that makes the backward pass


@dataclass(frozen=True, kw_only=True)
class FilledRows:
    """A line of the source that fills rows of tokens up to one length, for the call of a model.

    "fixed": a length that does not depend on the batch; "asked": padding="max_length" of a
    tokenizer; "whole-set": the longest row of the whole data set, before batches are made.
    """

    location: Location
    way: FillingWay = "fixed"
    text: str = ""  # the source line


@dataclass(frozen=True, kw_only=True)
class UnevenLinear:
    """A linear layer with a size that is no multiple of 8."""

    name: str  # "head", as the model names it
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One root module (a module that is no other module's child and owns parameters)."""

    ident: int
    cls: str = ""
    location: Location | None = None  # where its forward is defined
    # What it is made of: numbers of parameters, and of layers within it.
    parameters: int = 0  # tensors
    elements: int = 0  # of all parameters
    device: str = "cpu"
    dtypes: list[str] = field(default_factory=list)
    float64_elements: int = 0  # of `elements`
    modules: int = 0
    conv2d: int = 0
    conv_bias_before_norm: int = 0  # convolutions with a bias right before a batch norm
    conv_channels_last: bool = False
    linear: int = 0
    embeddings: int = 0
    attention: int = 0
    recurrent: int = 0
    norms: int = 0  # normalization layers of any kind
    repeated_blocks: int = 0  # children of one class that one container repeats
    repeated_block: str = ""  # their class
    uneven_linears: list[UnevenLinear] = field(default_factory=list)  # large ones, at most 8
    dense_embeddings: list[Location] = field(default_factory=list)  # lines that make large ones
    compiled: bool = False
    data_parallel: str | None = None  # "DataParallel", "DistributedDataParallel", "FSDP"
    # How it was called.
    # The first 4 tensors of calls, those that train where any does; at most 8 distinct ones.
    input_tensors: list[list[TensorFacts]] = field(default_factory=list)
    forwards: int = 0  # in any mode
    overlapping_forwards: int = 0  # not among these: begun in a thread while another had one open
    eval_forwards: int = 0  # of these, with self.training False
    eval_forwards_with_grad: int = 0  # of these, those that autograd recorded
    eval_sizes: int = 0  # distinct shapes of inputs of evaluation, at most 3
    eval_with_grad_location: Location | None = None
    autocast_forwards: int = 0
    # The same of a program that infers, and what its calls get.
    forwards_with_grad: int = 0
    mode_dependent: list[str] = field(default_factory=list)  # layers that training mode changes
    made_anew: int = 0  # times that another one of its class was called after it was gone
    padding_share: float | None = None  # of its tokens; None: it gets none
    common_padding_share: float | None = None  # at the end of all rows of a batch
    padding_token: int = 0  # what its embedding takes for padding; 0 where it says none
    filled: FilledRows | None = None  # by the source, where there is such padding
    grown_calls: int = 0  # calls that got the last call's tokens and one more
    # Where the user's code has it.
    call: Binding | None = None  # the user's line of its first call, of those that train
    holder: Binding | None = None  # the outermost line above that has a name for it
    holder_depth: int | None = None  # the user's frames above the holder's; 0: none


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """A known function of a library by which the program infers."""

    ident: int  # its place in the list of these functions that the probe is given
    name: str  # "generate", "pipeline"
    calls: int = 0  # but those from within another such call


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Global switches of torch as they were after the last measured step; None: not seen."""

    anomaly_enabled: bool | None = None
    anomaly_location: Location | None = None
    deterministic: bool | None = None
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    matmul_tf32: bool | None = None
    cudnn_tf32: bool | None = None
    sets_fp32_precision: bool = False  # the program does: reading `allow_tf32` would raise
    num_threads: int | None = None
    num_threads_location: Location | None = None  # where set_num_threads was called
    grad_scaler: bool | None = None
    profiler_on: bool | None = None  # the user's own torch.profiler / autograd profiler
    profiler_location: Location | None = None
    zero_grad_to_zero: int = 0  # calls of zero_grad(set_to_none=False)
    zero_grad_location: Location | None = None
    backward_location: Location | None = None  # the first backward pass
    gradient_location: Location | None = None  # the first torch.autograd.grad that ends a pass
    retain_graph: int = 0  # calls of backward(retain_graph=True)
    gradcheck_calls: int = 0
    schedulers: int = 0  # learning-rate schedulers made
    clip_calls: int = 0  # of torch.nn.utils.clip_grad_norm_ and clip_grad_value_
    averaged_by_loop: int = 0  # AveragedModels with an avg_fn, which averages tensor by tensor
    averaged_location: Location | None = None
    environment: dict[str, str] = field(default_factory=dict)  # CUDA_LAUNCH_BLOCKING, OMP_*, ...


@dataclass(frozen=True, kw_only=True)
class StackSample:
    """How often a line of the user's code was on top of the main thread's stack.

    `phase`: what it fell into or after: "loader", "forward", "backward", "optimizer", "after_step",
    "before_forward" (after a fetch), "after_backward", "between_epochs" (of a loader), "other".
    """

    location: Location  # the innermost frame of the user's own code
    phase: str
    count: int
    leaf_file: str = ""  # of the innermost frame of all, its last parts: "numpy/core/memmap.py"
    leaf_function: str = ""  # of the same frame: "__getitem__"
    text: str = ""  # the source line at `location`
    records_graph: bool = False  # autograd recorded operations since the last event
    loops: int = 0  # for and while loops and comprehensions around the line, in its function
    behind_forward: bool = False  # the line of the loop stands below that of the model's call

    @property
    def leaf(self) -> str:
        """Return the innermost frame of all as one text, for patterns: file, space, function."""
        return f"{self.leaf_file} {self.leaf_function}".strip()

    @property
    def in_own_line(self) -> bool:
        """Return True if the innermost frame is that of the line: no library works there."""
        named = Path(self.location.file).name
        function = self.location.function
        return self.leaf_file.endswith(named) and self.leaf_function == function


@dataclass(frozen=True, kw_only=True)
class TensorCall:
    """Calls of one line that copy, move or wait, per step of the analysed window.

    kind: "array-copy" (`torch.tensor` of an array), "arrays-copy" (of a list of arrays),
    "made-then-moved" (made on the host, then moved to a device), "moved-again" (the same tensor as
    in the step before), "pageable" (another move from memory that is not pinned), "wait" (the host
    waits for a device tensor's value), "element" (a few elements are read or written repeatedly).
    """

    kind: str
    name: str  # of the function: "tensor", "zeros", "item"
    location: Location
    text: str = ""  # the source line
    calls_per_step: float = 0.0
    bytes_per_step: float = 0.0
    host_s: float = 0.0  # per step; of "element" with the rest of the loop's turns
    # An edit of the line is safe: nobody else held the array, its values are the same on any
    # device, and the line itself makes the call.
    sure: bool = False


@dataclass(frozen=True, kw_only=True)
class DoubleCall:
    """A line of the user's code that asks for float64 or float16.

    Such lines are looked for until the first backward pass has ended.
    """

    kind: str  # "model" (`Module.double`, `.to`), "default" (`set_default_dtype`) or "data"
    name: str  # of the function: "double", "to", "from_numpy"
    location: Location
    sure: bool = False  # the line itself makes the call, and all that it gave was float64


@dataclass(frozen=True, kw_only=True)
class KeptGraph:
    """Autograd graphs of steps that are long over, and that a name still leads to."""

    kind: str  # "sum" (one tensor that each step adds to), "collection" (a list, a dict), "unknown"
    name: str | None = None  # in the training loop
    location: Location | None = None  # the line that keeps them
    text: str = ""
    nodes_per_step: float = 0.0  # nodes of the graph that stay


@dataclass(frozen=True, kw_only=True)
class GrownObject:
    """A container, tensor or array of the training loop that was larger at each look.

    Of kind "hooks" it is what one method has registered on a model and on the modules in it.
    """

    name: str  # in the function, "metric.scores"; of hooks the method, "register_forward_hook"
    kind: str  # its type, "list", or "hooks"
    model: str | None = None  # of hooks: the class that has them
    location: Location | None = None  # the function that it was seen in
    first: int = 0  # elements at the first look
    last: int = 0  # elements at the last look
    per_step: float = 0.0  # elements that each step adds


@dataclass(frozen=True, kw_only=True)
class SampleCheck:
    """Whether a data set gave the same samples, byte by byte, when it was asked for them again."""

    loader: int
    samples: int = 0  # that were asked for twice
    same: bool = False
    why: Evidence | None = None  # they are not the same
    draws_random: bool = False  # preparing them draws random numbers, or may
    sample_s: float | None = None  # median time of making one, in the training process


@dataclass(frozen=True, kw_only=True)
class AppliedFix:
    """What became of one fix in one process."""

    fix: str
    state: str  # "applied" | "refused" | "failed" | "pending" (nothing to apply it to yet)
    why: Evidence | None = None  # it is in that state
    details: dict[str, Any] = field(default_factory=dict)  # e.g. {"compile_s": 12.3}


@dataclass(frozen=True, kw_only=True)
class UsedDevice:
    """An accelerator that a process has memory on, as its torch describes it; None: not told."""

    index: int  # in the process's own order, of those that it may see
    name: str
    uuid: str | None = None  # without the prefix ("GPU-", "MIG-") that the driver writes
    compute_capability: str | None = None
    memory_bytes: int | None = None
    # Of its memory, when the facts were written.
    free_bytes: int | None = None  # that no process had
    reserved_bytes: int | None = None  # that this process had from the driver
    # At most so far.
    peak_bytes: int | None = None  # of this process's tensors
    peak_reserved_bytes: int | None = None  # of what it had from the driver


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """One process of the program, as its probe saw it."""

    # The process, and what it ran with.
    pid: int
    argv: list[str] = field(default_factory=list)
    python: str = ""
    torch: str = ""
    cuda: str | None = None
    hip: str | None = None  # version of ROCm's HIP that torch was built with
    accelerator: str | None = None  # name in torch of the device that was used, such as "cuda"
    devices: list[str] = field(default_factory=list)  # names of all that it may see
    used_devices: list[UsedDevice] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    is_loader_worker: bool = False
    first_step_s: float | None = None  # from its start to its first backward pass or step
    peak_memory_bytes: int | None = None  # RSS high-water mark of the process
    peak_gpu_memory_bytes: int | None = None
    # What it made and called.
    loaders: list[LoaderFacts] = field(default_factory=list)
    optimizers: list[OptimizerFacts] = field(default_factory=list)
    models: list[ModelFacts] = field(default_factory=list)
    entry_points: list[EntryPoint] = field(default_factory=list)
    passes: list[TrainingPass] = field(default_factory=list)  # distinct ones of the first steps
    flags: Flags = field(default_factory=Flags)
    # What lines of the user's code did.
    stacks: list[StackSample] = field(default_factory=list)
    grown_objects: list[GrownObject] = field(default_factory=list)  # at most 8, the fastest first
    double_calls: list[DoubleCall] = field(default_factory=list)  # at most 16
    half_calls: list[DoubleCall] = field(default_factory=list)  # the same for float16
    # What the steps at the end of the profiler window showed: the fields of `ANALYSED`.
    analysed_steps: int = 0  # how many these were; 0: nothing of it was looked for
    tensor_calls: list[TensorCall] = field(default_factory=list)
    kept_graphs: list[KeptGraph] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)  # at the analysed optimizer steps
    sample_check: SampleCheck | None = None  # None: not looked at
    gradient_products: list[list[float]] = field(default_factory=list)  # of each gradient with each
    input_mean: float | None = None  # of the model's first input; None: it is token numbers
    input_std: float | None = None
    input_channels: list[tuple[float, float]] = field(default_factory=list)  # both, of each channel
    padded_products: list[PaddedProduct] = field(default_factory=list)  # those that take most
    memory_snapshot: str | None = None  # file of torch.cuda.memory._dump_snapshot
    # What became of it, and what else ran with it.
    fixes: list[AppliedFix] = field(default_factory=list)
    backend: str | None = None  # torch.distributed backend
    backend_location: Location | None = None  # of its process group
    compilation: Compilation | None = None  # None: it compiled nothing
    frameworks: list[str] = field(default_factory=list)  # "transformers", "lightning", ...
    sources: list[str] = field(default_factory=list)  # loaded files, of a package `__init__.py`
    # The probe itself.
    probe_errors: list[str] = field(default_factory=list)
    probe_cost_us_per_step: float | None = None  # its logging timed in place, times a factor
