"""What limits one matrix product on one GPU, and which of its sizes its kernels dislike."""

from __future__ import annotations

from torchdoctor.facts.gpu_data_sheets import DataSheet
from torchdoctor.trace.product_sizes import ProductSizes
from torchdoctor.words.traced import UnevenSize

_PRECISION = {"double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16"}
_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
# Bytes that rows of a matrix should be a multiple of, by NVIDIA's guide to matrix multiplication:
# without the first the fast kernels of the tensor cores cannot run, and with the second they are
# most efficient since compute capability 8.0.
_ALIGNED_BYTES, _BEST_BYTES = 16, 128
_WITH_BEST = (8, 0)


def precision_of(dtype: str | None, on_tensor_cores: bool, sheet: DataSheet | None) -> str | None:
    """The arithmetic that a call runs in, by its inputs' type and its kernels; None: not known."""
    named = (dtype or "").lower().removeprefix("c10::")
    if not named and not on_tensor_cores:
        return "float32"  # the first releases wrote no types
    if named.startswith("float8"):
        return "float8"
    known = _PRECISION.get(named)
    if known == "float32" and on_tensor_cores and (sheet is None or "tf32" in sheet.tflops):
        return "tf32"
    return known


def compute_bound(
    sizes: ProductSizes, precision: str | None, sheet: DataSheet | None
) -> bool | None:
    """Whether arithmetic takes longer than moving the data once; None: no data sheet says."""
    peak = sheet.peak(precision) if sheet and precision else None
    if peak is None or sheet is None or precision is None:
        return None
    return sizes.flops / peak >= sizes.elements * _BYTES[precision] / sheet.bandwidth


def uneven_sizes(
    sizes: ProductSizes, precision: str | None, capability: tuple[int, int]
) -> list[UnevenSize]:
    """Sizes that are no multiple of what tensor cores want: 8 for float16, 4 for tf32.

    Where none is, those that are no multiple of 64 (tf32: 32) on a GPU that likes that better.
    Sizes below the multiple are left out: padding them would multiply the work.
    """
    if precision not in _BYTES or precision == "float64":
        return []
    width = _BYTES[precision]
    found = _no_multiples(sizes.dimensions, _ALIGNED_BYTES // width)
    if not found and capability >= _WITH_BEST:
        found = _no_multiples(sizes.dimensions, _BEST_BYTES // width)
    return found


def _no_multiples(dimensions: dict[str, int], multiple: int) -> list[UnevenSize]:
    return [
        UnevenSize(dimension=name, size=size, multiple=multiple)
        for name, size in dimensions.items()
        if size > multiple and size % multiple
    ]
