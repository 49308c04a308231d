"""What an event is by its category or its name, from Kineto of 2020 to today, of any vendor."""

import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.record_files import parsed_toml

OUR_CATEGORY = "torchdoctor"  # of what `trace_annotate` adds to a copy
DEVICE_KINDS = ("kernel", "memcpy", "memset")
KERNEL, MEMCPY, MEMSET = range(3)
_NAMES = parsed_toml(Path(__file__).with_name("kernels.toml").read_text(encoding="utf-8"))
_TABLE_OF: dict[str, str] = {
    category: table for table, categories in _NAMES["categories"].items() for category in categories
}
LEFT_OUT = frozenset({*_NAMES["left_out"], OUR_CATEGORY})
# The first argument of a template that says what it computes, without the places that it is in.
_NAMED_ARGUMENT = re.compile(
    r"(?:\w+::)*\b(?!gpu_kernel_impl|(?:[AB]?Unary|Binary)Functor|TensorListMetadata|ReduceOp"
    r"|func_wrapper_t|decltype|unsigned|bool|float|double|long|true|false|BFloat16|__nv_bfloat16|Half)"
    r"([A-Za-z_]\w{3,})\b(?!::)"
)
_NOTICED = 0.01  # share of all events from where on unknown ones are named
# CUDA and today's ROCm, older ROCm, MTIA
_COPY_NAME = re.compile(r"Memcpy |Copy(?:Host|Device)To(?:Host|Device)|dma_request$")
_CONVOLVES = re.compile(r"conv(?!ert)|wgrad|dgrad|fprop|scudnn|winograd", re.IGNORECASE)
# Of any maker's driver: cudaMemcpyAsync, hipMemcpy, musaMemcpyAsync, urEnqueueUSMMemcpy, ...
COPY_CALL = re.compile(
    r"[a-z]+(?:Enqueue)?(?:USM)?(?:Memcpy|MemBuffer(?:Read|Write))|zeCommandListAppendMemoryCopy"
)
# What holds the host until the device is there: cudaStreamSynchronize, zeEventHostSynchronize, ...
SYNC_CALL = re.compile(r"\w*Synchronize|ur(?:QueueFinish|EventWait)\b")
ACCUMULATED = "torch::autograd::AccumulateGrad"  # its input is the gradient of one parameter
READS_VALUE = "aten::_local_scalar_dense"  # waits for the value, in whatever call of a driver


def table_of(category: str) -> str | None:
    """Return the table of a category, or its kind of device event; None: nothing reads it."""
    lower = category.lower()
    suffix = lower.rpartition("_")[2]  # cuda_runtime, hip_runtime, xpu_driver, ...
    if table := _TABLE_OF.get(lower):
        return table
    if suffix in DEVICE_KINDS:  # privateuse1_kernel, xpu_memcpy, ...
        return suffix
    return "runtime" if suffix in ("runtime", "driver") else None


def kind_by_name(name: str) -> int:
    """Return MEMCPY or MEMSET if the name of a device event says so, else -1."""
    if _COPY_NAME.match(name):
        return MEMCPY
    return MEMSET if name.startswith("Memset ") else -1


def doubt_about_unknown(unknown: Mapping[str, int], events: int) -> list[Evidence]:
    """Return a fact if events of unknown categories are many of all."""
    total = sum(unknown.values())
    if total <= _NOTICED * events:
        return []
    return [fact("events-unknown", events=total, categories=sorted(unknown))]


def is_wait(name: str) -> bool:
    """Return True for a device event that only waits for other work, or marks a point in it."""
    return "wait" in kernel_kinds(name)


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Return for each kind of kernels.toml what its names hold."""
    names: dict[str, list[str]] = defaultdict(list)
    for entry in _NAMES["entry"]:
        names[entry["kind"]] += entry["names"]
    return {
        kind: re.compile("|".join(kind_names), re.IGNORECASE) for kind, kind_names in names.items()
    }


@functools.lru_cache(maxsize=1 << 16)
def kernel_kinds(name: str) -> frozenset[str]:
    """Return the kinds of kernels.toml whose names are found in this one."""
    return frozenset(kind for kind, pattern in _patterns().items() if pattern.search(name))


def is_communication(name: str) -> bool:
    """Return True for a collective or point-to-point kernel of a communication library."""
    return "communication" in kernel_kinds(name)


def convolves(name: str) -> bool:
    """Return True for a kernel that convolves, by its name."""
    return is_matrix_work(name) and _CONVOLVES.search(name) is not None


def is_matrix_work(name: str) -> bool:
    """Return True for a matrix product, a convolution or fused attention."""
    kinds = kernel_kinds(name)
    if "communication" in kinds:
        return False
    return uses_tensor_cores(name) or ("matrix" in kinds and "helper" not in kinds)


def uses_tensor_cores(name: str) -> bool:
    """Return True for a kernel that runs on tensor cores or AMD's matrix cores by its name."""
    return kernel_kinds(name) & {"tensor-core", "plain"} == {"tensor-core"}


def computes_float32(name: str) -> bool:
    """Return True if the name says that a kernel multiplies float32 in plain arithmetic."""
    return may_compute_float32(name) and "float32" in kernel_kinds(name)


def may_compute_float32(name: str) -> bool:
    """Return True for matrix work in no other arithmetic by its name."""
    other = kernel_kinds(name) & {"low-precision", "float64"}
    return is_matrix_work(name) and not uses_tensor_cores(name) and not other


def short_name(name: str) -> str:
    """Return such as "vectorized_elementwise_kernel<CUDAFunctor_add>" of a kernel's whole name."""
    bare = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    bare, _, arguments = re.split(r"\(", bare)[0].partition("<")
    argument = _NAMED_ARGUMENT.search(arguments)
    return bare.rpartition("::")[2] + (f"<{argument[1]}>" if argument else "")
