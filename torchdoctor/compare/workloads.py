"""Whether two traces plainly are of different workloads, by the layers that ran in their steps.

A change to a program may add, fuse and remove most operators (an optimizer, autocast,
torch.compile) and change its batches. What it leaves alone are convolutions against matrix
products, and the sizes of the weights.
"""

from __future__ import annotations

import re

from torchdoctor.words import MatrixProduct, Report, TraceStatistics
from torchdoctor.words.figures import counted

_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm"))
_CONVOLUTIONS = re.compile(
    r"aten::(cudnn_convolution|miopen_convolution|mkldnn_convolution|thnn_conv2d|"
    r"slow_conv2d_forward|_slow_conv2d_forward|_conv_depthwise2d|convolution)$"
)
_FEWEST = 10  # layers in a step: fewer say nothing of the kind of model
_OTHER_KINDS = 0.4  # cosine of (convolutions, products): below, they are other kinds of layers
_OTHER_COUNT = 4.0  # times as many products
_OTHER_SIZES = 0.1  # of the arithmetic: less of it has sizes that the other has too
_LEAST_SIZE = 16  # smaller ones (kernels, strides, small batches) are common to many models
_SHARED = 2  # such sizes that make two products those of one layer


def different(a: Report, b: Report) -> str | None:
    """Return what makes them different workloads; None where they may be one program."""
    if a.trace is None or b.trace is None:
        return None
    kinds = _kinds(a.trace), _kinds(b.trace)
    if min(map(sum, kinds)) < _FEWEST:
        return None
    words = [
        f"{counted(convs, 'convolution')} and {counted(products, 'matrix product')}"
        for convs, products in kinds
    ]
    counts = f"A's step has {words[0]}, B's {words[1]}"
    if _cosine(*kinds) < _OTHER_KINDS:
        return f"{counts}: these are not the layers of one model"
    more = max(map(sum, kinds)) / min(map(sum, kinds))
    if more < _OTHER_COUNT or not _other_sizes(a.trace, b.trace):
        return None
    return f"{counts}, hardly any of the same sizes: these are not the layers of one model"


def _kinds(trace: TraceStatistics) -> tuple[float, float]:
    """Convolutions and matrix products in a step, each counted once however it is nested."""
    convolutions = [
        operator.calls_per_step
        for operator in trace.operators
        if _CONVOLUTIONS.fullmatch(operator.name)
    ]
    products = [
        operator.calls_per_step for operator in trace.operators if operator.name in _PRODUCTS
    ]
    return max(convolutions, default=0.0), sum(products)


def _cosine(a: tuple[float, float], b: tuple[float, float]) -> float:
    lengths: float = sum(x * x for x in a) ** 0.5 * sum(x * x for x in b) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths


def _other_sizes(a: TraceStatistics, b: TraceStatistics) -> bool:
    """Return True if both recorded sizes of products and hardly share any."""
    old = a.matrix_work.products if a.matrix_work else []
    new = b.matrix_work.products if b.matrix_work else []
    if not old or not new:
        return False
    return max(_in_both(old, new), _in_both(new, old)) < _OTHER_SIZES


def _in_both(products: list[MatrixProduct], known_products: list[MatrixProduct]) -> float:
    """Share of the arithmetic of `some` whose sizes are those of a product among `others`."""
    known = [_sizes(product) for product in known_products]
    shared = sum(
        product.flops
        for product in products
        if any(
            len(_sizes(product) & sizes) >= min(_SHARED, len(_sizes(product))) for sizes in known
        )
    )
    return shared / (sum(product.flops for product in products) or 1.0)


def _sizes(product: MatrixProduct) -> set[int]:
    return {size for size in map(int, re.findall(r"\d+", product.sizes)) if size >= _LEAST_SIZE}
