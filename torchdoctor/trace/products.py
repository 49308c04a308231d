"""What limits one matrix product on one GPU, and which of its sizes its kernels dislike."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.queries.gpu_data_sheets import DataSheet, data_sheet
from torchdoctor.schema import MatrixProduct, MatrixWork
from torchdoctor.schema.traced import KNOWN_ENOUGH, UnevenSize
from torchdoctor.trace import kinds
from torchdoctor.trace.columns import Ints, Mask, Table, Trace, named, once
from torchdoctor.trace.device import device_time
from torchdoctor.trace.nesting import Nesting, innermost, launch_rows, nest
from torchdoctor.trace.product_sizes import (
    ProductSizes,
    convolution_output,
    product_sizes,
    types_of,
)
from torchdoctor.trace.program import gpus
from torchdoctor.trace.python import user_frame
from torchdoctor.trace.timeline import Timeline

_PRECISION = {"double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16"}
_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
# Bytes that rows of a matrix should be a multiple of, by NVIDIA's guide to matrix multiplication:
# without the first the fast kernels of the tensor cores cannot run, and with the second they are
# most efficient since compute capability 8.0.
_ALIGNED_BYTES = 16
_BEST_BYTES = 128
_WITH_BEST = (8, 0)
_LISTED = 12
_GRADIENTS = {f"aten::cudnn_convolution_backward_{part}" for part in ("input", "weight")}
_SAYS_ENOUGH = 0.95  # of the FLOPs must have a peak, or there is no MFU


def precision_of(
    dtype: str | None, on_tensor_cores: bool, float32_by_name: bool, sheet: DataSheet | None
) -> str | None:
    """Return the arithmetic that a call runs in by its inputs' type and kernels; None: unknown."""
    named = (dtype or "").lower().removeprefix("c10::")
    if not named and float32_by_name:
        return "float32"  # the first releases wrote no types
    if named.startswith("float8"):
        return "float8"
    precision = _PRECISION.get(named)
    if precision == "float32" and on_tensor_cores and (sheet is None or "tf32" in sheet.tflops):
        return "tf32"
    return precision


def compute_bound(
    sizes: ProductSizes, precision: str | None, sheet: DataSheet | None
) -> bool | None:
    """Return True if arithmetic takes longer than moving the data once; None: not known."""
    peak = sheet.peak(precision) if sheet and precision else None
    if peak is None or sheet is None or precision is None:
        return None
    return sizes.flops / peak >= sizes.elements * _BYTES[precision] / sheet.bandwidth


def uneven_sizes(
    sizes: ProductSizes, precision: str | None, capability: tuple[int, int]
) -> list[UnevenSize]:
    """Return the sizes that are no multiple of what tensor cores want: 8 for float16, 4 for tf32.

    If none is, those that are no multiple of 64 (tf32: 32) on a GPU that likes that better. Sizes
    below the multiple are left out: padding them would multiply the work.
    """
    if precision not in _BYTES or precision == "float64":
        return []
    uneven: list[UnevenSize] = []
    for alignment in (_ALIGNED_BYTES, _BEST_BYTES)[: 1 + (capability >= _WITH_BEST)]:
        multiple = alignment // _BYTES[precision]
        uneven = uneven or [
            UnevenSize(dimension=name, size=size, multiple=multiple)
            for name, size in sizes.dimensions.items()
            if size > multiple and size % multiple
        ]
    return uneven


@dataclass(frozen=True)
class _Calls:
    """Calls of products, one entry a row; what they launched in the steps."""

    table: Table
    device_ns: NDArray[np.float64]
    tensor_share: NDArray[np.float64]  # of their matrix kernels
    float32_share: NDArray[np.float64]  # of the same, by name
    sizes: list[ProductSizes | None]  # None: unknown, or nothing launched
    known_share: float  # of the time of all matrix kernels


def matrix_work(trace: Trace, timeline: Timeline) -> MatrixWork | None:
    """Return the arithmetic of the steps; None without a GPU, input sizes or products."""
    calls = _calls(trace, timeline) if trace.has_device and timeline.steps.total else None
    if calls is None or not any(calls.sizes):
        return None
    used = gpus(trace)
    sheets = [data_sheet(gpu.name) for gpu in used]
    sheet = sheets[0] if sheets and all(sheet == sheets[0] for sheet in sheets) else None
    versions = [(gpu.compute_capability or "0.0").split(".") for gpu in used]
    capability = min(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    products = _products(trace, calls, sheet, capability, len(timeline.steps))
    step_s = timeline.steps.total / len(timeline.steps) / 1e9
    devices = len(np.unique(trace.device["device"][trace.device["kind"] == kinds.KERNEL]))
    peak_s = _at_peak_s(products, sheet) if calls.known_share >= KNOWN_ENOUGH else None
    device_s = sum(product.device_s for product in products)
    bound_s: dict[bool | None, float] = defaultdict(float)
    for product in products:
        bound_s[product.compute_bound] += product.device_s
    is_told = any(product.compute_bound is not None for product in products)
    return MatrixWork(
        flops=sum(product.flops for product in products),
        device_s=device_s,
        known_share=calls.known_share,
        gpu=sheet.name if sheet else None,
        source=sheet.source if sheet else None,
        mfu=None if peak_s is None else peak_s / step_s / devices,
        peak_share=None if peak_s is None or not device_s else peak_s / device_s,
        compute_bound_s=bound_s[True] if is_told else None,
        memory_bound_s=bound_s[False] if is_told else None,
        products=products[:_LISTED],
        kinds=len(products),
    )


@once
def _launching(trace: Trace) -> tuple[Table, Nesting, Ints]:
    """Return the calls of products, and for every device event the one that launched it, or -1."""
    table = trace.operators.where(trace.operators["product"] >= 0)
    table = table.where(nest(table).leaves)
    nesting = nest(table)
    runtime = trace.runtime
    call = launch_rows(trace)
    launched_by = np.full(len(call), -1)
    events = np.flatnonzero(call >= 0)
    asked = call[events]
    launched_by[events] = innermost(table, nesting, runtime.thread[asked], runtime.start[asked])
    return table, nesting, launched_by


@once
def float32_matrix_kernels(trace: Trace) -> Mask:
    """Return which device events are matrix kernels in plain float32, by name or by inputs."""
    table, _, row = _launching(trace)
    first = [next(filter(None, types_of(inputs)), "") for inputs in trace.products]
    single = np.array([dtype.lower().removeprefix("c10::") == "float" for dtype in first] + [False])
    # Input types say nothing of a kernel whose name denies it, such as TF32 on tensor cores.
    by_inputs = single[np.append(table["product"], -1)[row]]
    by_inputs &= named(trace, trace.device, kinds.may_compute_float32)
    float32: Mask = by_inputs | named(trace, trace.device, kinds.computes_float32)
    float32 &= trace.device["kind"] == kinds.KERNEL
    return float32


def float32_matrix_s(trace: Trace, timeline: Timeline) -> float:
    """Return the time per step of matrix kernels in plain float32."""
    float32 = float32_matrix_kernels(trace) & (timeline.steps.index(trace.device.start) >= 0)
    return float(device_time(trace)[float32].sum()) / len(timeline.steps) / 1e9


def _calls(trace: Trace, timeline: Timeline) -> _Calls | None:
    table, nesting, launched_by = _launching(trace)
    if not len(table):
        return None
    is_kernel = trace.device["kind"] == kinds.KERNEL
    kernels, launched_by = trace.device.where(is_kernel), launched_by[is_kernel]
    in_steps = timeline.steps.index(kernels.start) >= 0
    launched = np.flatnonzero(in_steps & (launched_by >= 0))
    row = launched_by[launched]
    added = device_time(trace)[is_kernel].astype(np.float64)
    matrix = named(trace, kernels, kinds.is_matrix_work)

    def per_call(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(row, weights[launched], len(table)).astype(np.float64)

    launches = np.bincount(row, minlength=len(table)).tolist()
    every = zip(_sizes(trace, table, nesting), launches, strict=True)
    sizes = [sizes_of_call if number else None for sizes_of_call, number in every]
    # Kernels that only prepare or finish a product count for it, but are no arithmetic of its own.
    in_matrix = per_call(added * matrix)
    has_sizes = np.array([sizes_of_call is not None for sizes_of_call in sizes], dtype=bool)
    total = float(added[in_steps & matrix].sum())
    tensor, float32 = (
        per_call(added * named(trace, kernels, kind)) / np.maximum(in_matrix, 1.0)
        for kind in (kinds.uses_tensor_cores, kinds.computes_float32)
    )
    return _Calls(
        table=table,
        device_ns=per_call(added),
        tensor_share=tensor,
        float32_share=float32,
        sizes=sizes,
        known_share=min(float(in_matrix[has_sizes].sum()) / total, 1.0) if total else 1.0,
    )


def _sizes(trace: Trace, table: Table, nesting: Nesting) -> list[ProductSizes | None]:
    """Return the sizes of every row of `table`; each kind of call is read once."""
    parts = trace.operators.where(named(trace, trace.operators, _GRADIENTS.__contains__))
    inside = innermost(table, nesting, parts.thread, parts.start)
    gradients = np.bincount(inside[inside >= 0], minlength=len(table))
    outputs = dict(filter(None, map(convolution_output, trace.products)))

    @functools.cache
    def sizes(product: int, computed: int) -> ProductSizes | None:
        return product_sizes(trace.products[product], computed, outputs)

    return list(map(sizes, table["product"].tolist(), gradients.tolist()))


def _products(
    trace: Trace, calls: _Calls, sheet: DataSheet | None, capability: tuple[int, int], steps: int
) -> list[MatrixProduct]:
    """Return calls of one operator, sizes and precision together; the longest first."""
    table = calls.table
    groups: dict[tuple[str, str, str | None, bool], list[int]] = defaultdict(list)
    for row, sizes in enumerate(calls.sizes):
        if sizes is not None:
            inputs = trace.products[table["product"][row]]
            tensor = bool(calls.tensor_share[row] > 0.5)
            single = bool(calls.float32_share[row] > 0.5)
            precision = precision_of(sizes.dtype, tensor, single, sheet)
            groups[inputs.operator, _written(inputs.dims), precision, tensor].append(row)
    ranking = sorted(groups, key=lambda group: -calls.device_ns[groups[group]].sum())
    products = []
    for place, group in enumerate(ranking):
        (operator, written, precision, tensor), rows = group, groups[group]
        every = [sizes for row in rows if (sizes := calls.sizes[row]) is not None]
        device_s = float(calls.device_ns[rows].sum()) / 1e9 / steps
        flops = sum(sizes.flops for sizes in every) / steps
        peak = sheet.peak(precision) if sheet and precision else None
        size = _BYTES.get(precision or "")
        intensity = every[0].flops / every[0].elements / size if size else None
        limit = min(peak, intensity * sheet.bandwidth) if sheet and peak and intensity else None
        longest = max(rows, key=lambda row: calls.device_ns[row])
        stack = trace.products[table["product"][longest]].stack
        at = int(table.thread[longest]), int(table.start[longest])
        products.append(
            MatrixProduct(
                operator=operator,
                sizes=written,
                precision=precision,
                calls_per_step=len(rows) / steps,
                flops=flops,
                device_s=device_s,
                peak_share=flops / peak / device_s if peak and device_s else None,
                compute_bound=compute_bound(every[0], precision, sheet),
                flop_per_byte=intensity,
                roofline_share=flops / limit / device_s if limit and device_s else None,
                uneven=uneven_sizes(every[0], precision, capability) if tensor else [],
                location=user_frame(trace, *at, stack) if place < _LISTED else None,
            )
        )
    return products


def _at_peak_s(products: Sequence[MatrixProduct], sheet: DataSheet | None) -> float | None:
    """Return the time of the products at the peak of their precision; None: not known."""
    if sheet is None:
        return None
    peaks = [(product.flops, sheet.peak(product.precision or "")) for product in products]
    flops_with_peak = sum(flops for flops, peak in peaks if peak)
    if flops_with_peak < _SAYS_ENOUGH * sum(flops for flops, _ in peaks):
        return None
    return sum(flops / peak for flops, peak in peaks if peak)


@functools.lru_cache(1024)
def _written(dims: bytes) -> str:
    """Return the sizes of the inputs that have any, as "[32, 64], [64, 10]"."""
    return ", ".join(str(size) for size in msgspec.json.decode(dims) if size)
