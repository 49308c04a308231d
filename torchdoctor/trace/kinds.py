"""What an event is by its category or its name, from Kineto of 2020 to today, of any vendor."""

import functools
import re
from collections.abc import Mapping

OUR_CATEGORY = "torchdoctor"  # of what `trace_annotate` adds to a copy
DEVICE_KINDS = ("kernel", "memcpy", "memset")
KERNEL, MEMCPY, MEMSET = range(3)
_TABLE_OF = {
    "operator": "operators",
    "cpu_op": "operators",
    "python": "operators",  # record_function of the first releases
    "runtime": "runtime",
    "driver": "runtime",
    "kernel": "kernel",
    "memcpy": "memcpy",
    "gpu_memcpy": "memcpy",
    "memset": "memset",
    "gpu_memset": "memset",
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
    "user_annotation": "annotations",
    "trace": "spans",
    "python_function": "python",
}
# Known, and nothing of it is counted: what the profiler itself cost, instants, marks on GPU tracks.
_LEFT_OUT = frozenset(
    (
        *("overhead", "cpu_instant_event", "gpu_user_annotation", "cuda_sync", "ac2g", "fwdbwd"),
        *("external_correlation", "cuda_profiler_range", "gpu_pm_counter", "mtia_insight"),
        *("collective_comm", OUR_CATEGORY),
    )
)
_NOTICED = 0.01  # share of all events from where on unknown ones are named
_COPY_NAME = re.compile(r"Memcpy |Copy(?:Host|Device)To(?:Host|Device)")


def table_of(category: str) -> str | None:
    """Return the table of a category, or its kind of device event; None: nothing reads it."""
    lower = category.lower()
    suffix = lower.rpartition("_")[2]  # cuda_runtime, hip_runtime, xpu_driver, ...
    if table := _TABLE_OF.get(lower):
        return table
    if suffix in DEVICE_KINDS:  # privateuse1_kernel, xpu_memcpy, ...
        return suffix
    return "runtime" if suffix in ("runtime", "driver") else None


def is_left_out(category: str) -> bool:
    """Return True if the category is known and nothing in it counts."""
    return category.lower() in _LEFT_OUT


def kind_by_name(name: str) -> int:
    """Return MEMCPY or MEMSET if the name of a device event says so, else -1."""
    if _COPY_NAME.match(name):
        return MEMCPY
    return MEMSET if name.startswith("Memset ") else -1


def doubt_about_unknown(unknown: Mapping[str, int], events: int) -> list[str]:
    """Return a sentence if events of unknown categories are many of all."""
    total = sum(unknown.values())
    if total <= _NOTICED * events:
        return []
    return [
        f"{total} events are of no known category ({', '.join(sorted(unknown))}) and were left "
        "out: if an accelerator ran them, its time is missing."
    ]


# NCCL ("ncclKernel_", "ncclDevKernel_", 2020's "ncclAllReduceRingLLKernel_"), RCCL (the same
# names, or "rccl"), and the all-reduce kernels of symmetric memory, vLLM, TensorRT-LLM, DeepEP.
_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|nvshmem|deep_ep::|oneccl|hccl|cross_device_reduce|(?:one|two)_shot_all_?reduce"
    r"|multimem_(?:one_shot_)?all_(?:reduce|gather)|symm_mem|all_?reduce_?fusion",
    re.IGNORECASE,
)
# Matrix products, convolutions and attention: the work that tensor cores could do.
_MATRIX = re.compile(
    r"(?<!fb)gemm(?!_gpu)|conv|wgrad|dgrad|fprop|xmma|scudnn|cutlass|matmul|bmm_|cijk_|winograd"
    r"|fmha|flash_|flash::|attention|attn_fwd|attn_bwd",
    re.IGNORECASE,
)
_NOT_MATRIX = re.compile(
    r"im2col|col2im|convertTensor|nchwToNhwc|nhwcToNchw|nchwToNchw|nhwcToNhwc|OffsetsKernel|"
    r"splitKreduce|elementwise|copy_kernel|bn_fw|bn_bw|batch_?norm|layer_?norm|softmax|reduce_kernel|"
    r"generateWinograd|CatArrayBatchedCopy|_conversion|convert_|embedding",
    re.IGNORECASE,
)
# Volta h884/s884, Turing and Ampere 1688/16816, CUTLASS tensorop, Hopper wgmma/GMMA and nvjet,
# Blackwell tcgen05/UTCMMA and TensorRT-LLM's bmm_<types> kernels, AMD's MFMA (Tensile's MI<m>x<n>).
_TENSOR_CORE = re.compile(
    r"[hsi]884|[hisc]?1688(?!\d)|16816|i8816|16832|168256|hmma|imma_|tensorop|tensor_op"
    r"|nvjet|wgmma|gmma|sm90_xmma|sm100_|sm103_|sm120_|tcgen05|utcmma|utchmma|umma"
    r"|xmma_(?:gemm|sparse|implicit|warp_specialized|wgrad|dgrad|fprop)|dgrad_1x1_stride_2x2"
    r"|first_layer_wgrad_kernel|conv2d_c1_k1|bmm_[a-z0-9]*(?:e\dm\d|bfloat16|fp16|mxe)"
    r"|fmha.*sm(?:80|90|100)|flash_fwd|flash_bwd|flash::|fmhaSm100|cudnn_generated_fort_native_sdpa"
    r"|mfma|_MI\d+x\d+|wmma",
    re.IGNORECASE,
)
# The same families, computed in plain float32 or float64 arithmetic.
_NO_TENSOR_CORE = re.compile(r"simt|ffma|_sgemm_(?!.*tf32)|dgemm", re.IGNORECASE)
_DOUBLE = re.compile(r"dgemm|_d884|f64f64|_f64|double", re.IGNORECASE)
# PyTorch's loops over all elements; kernels that gather and scatter (index_elementwise_kernel) are
# left out, as are those that a compiler or a foreach has fused already.
_POINTWISE = re.compile(r"(?<!index_)elementwise_(?:kernel|grid_stride)")
_once_a_name = functools.lru_cache(maxsize=1 << 16)


@_once_a_name
def is_communication(name: str) -> bool:
    """Return True for a collective or point-to-point kernel of a communication library."""
    return _COMMUNICATION.search(name) is not None


@_once_a_name
def is_matrix_work(name: str) -> bool:
    """Return True for a matrix product, a convolution or fused attention."""
    if _COMMUNICATION.search(name):
        return False
    return uses_tensor_cores(name) or (
        _MATRIX.search(name) is not None and _NOT_MATRIX.search(name) is None
    )


@_once_a_name
def uses_tensor_cores(name: str) -> bool:
    """Return True for a kernel that runs on tensor cores or AMD's matrix cores by its name."""
    return _TENSOR_CORE.search(name) is not None and _NO_TENSOR_CORE.search(name) is None


@_once_a_name
def computes_float32(name: str) -> bool:
    """Return True for matrix work in plain arithmetic that tensor cores could do in 16 bits."""
    return is_matrix_work(name) and not uses_tensor_cores(name) and _DOUBLE.search(name) is None


@_once_a_name
def is_pointwise(name: str) -> bool:
    """Return True for a kernel that computes each element by itself, and is not fused."""
    return _POINTWISE.search(name) is not None


COPY_CALL = re.compile(r"(?:cuda|hip|cu)Memcpy")
