"""Operators that have too little to do to be called large, however long they took.

On a machine that others use too, threads of a tiny product wait for a core, and every call of it
lasts long: only its sizes tell that it computes next to nothing.
"""

from __future__ import annotations

import math
import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Table, Trace
from torchdoctor.trace.product_sizes import product_sizes

# A slow core does this in under 50 us: 5 GFLOP/s, and 25 ns for each result of an exponential.
_FEWEST_FLOPS = 250_000
_FEWEST_ELEMENTS = 2_000
# What computes about once for each element of its inputs, broadcast.
_BY_ELEMENT = re.compile(
    r"aten::_?(add|sub|rsub|mul|div|neg|abs|sign|exp|log|log1p|sqrt|rsqrt|pow|reciprocal|tanh|relu"
    r"|sigmoid|gelu|silu|elu|leaky_relu|clamp|clamp_min|clamp_max|threshold|(log_)?softmax"
    r"|(log_)?softmax_backward_data|(tanh|sigmoid|gelu|silu|elu|threshold|leaky_relu)_backward"
    r"|nll_loss_(forward|backward)|mse_loss(_backward)?|sum|mean|dot|norm|linalg_vector_norm|max"
    r"|min|amax|amin|argmax|eq|ne|lt|gt|le|ge|where|lerp|addcmul|addcdiv|fill|zero|copy|cat|stack"
    r"|native_(layer|batch)_norm(_backward)?)_?"
)


def too_small(trace: Trace, table: Table) -> NDArray[np.bool_]:
    """For each row whether its sizes, where they were recorded, rule out that it computes much."""
    rows = np.column_stack([table.name, table["shapes"], table["product"]]).astype(np.int64)
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    by_element = [_BY_ELEMENT.fullmatch(name) is not None for name in trace.names]
    small = np.zeros(len(kinds), dtype=bool)
    for number, (name, shapes, product) in enumerate(kinds.tolist()):
        if product >= 0:
            sizes = product_sizes(trace.products[product], 0, {})
            small[number] = sizes is not None and sizes.flops < _FEWEST_FLOPS
        elif shapes >= 0 and by_element[name]:
            elements = _broadcast(trace.shapes[shapes])
            small[number] = elements is not None and elements < _FEWEST_ELEMENTS
    result: NDArray[np.bool_] = small[kind.reshape(-1)]
    return result


def _broadcast(text: bytes) -> int | None:
    """Elements of the inputs broadcast to each other; None: not all of them are known."""
    try:
        shapes = msgspec.json.decode(text, type=list[list[int]])
    except msgspec.DecodeError:  # lists of tensors among them
        return None
    if not any(shapes):
        return None
    longest = max(map(len, shapes))
    padded = [[1] * (longest - len(shape)) + shape for shape in shapes]
    return math.prod(max(sizes) for sizes in zip(*padded, strict=True))
