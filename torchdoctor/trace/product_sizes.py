"""Recorded input sizes of one call of a matrix operator -> its arithmetic, bytes and dimensions.

Counted as in torch.utils.flop_counter: attention without regard to a causal mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

Shape = tuple[int, ...]
_LARGEST = 1e24  # arithmetic of one call that no machine does in a day
_FUSED = "aten::_scaled_dot_product_"
_FUSED_BY = ("flash", "efficient", "cudnn")
# Where input, gradient of the output, and weight stand.
_BACKWARD_INPUTS = {
    "aten::convolution_backward": (1, 0, 2),
    "aten::cudnn_convolution_backward": (0, 1, 2),
}


class ProductInputs(NamedTuple):
    """What the trace says of one call, as JSON texts; b"" where it says nothing."""

    operator: str
    dims: bytes
    types: bytes
    strides: bytes
    concrete: bytes
    stack: bytes


@dataclass(frozen=True)
class ProductSizes:
    """`flops` and `elements` (read and written at least) of one call.

    `dimensions`: those whose length decides which kernels can run. `dtype`: as the trace names it.
    """

    flops: float
    elements: float
    dimensions: dict[str, int]
    dtype: str | None


@dataclass(frozen=True)
class _Call:
    """Decoded `ProductInputs`. `outputs`: of convolutions whose backward was seen, by inputs."""

    shapes: list[Shape]
    types: list[str]
    strides: list[Shape]
    concrete: list[str]
    gradients: int  # how many a backward computes; 0: not known
    outputs: dict[tuple[Shape, Shape], Shape]

    def dtype(self, index: int) -> str | None:
        return (self.types[index] or None) if index < len(self.types) else None

    def transposed(self, index: int) -> bool:
        """Return True if a matrix lies in memory column by column."""
        strides = self.strides[index] if index < len(self.strides) else ()
        return len(strides) > 1 and strides[-2] == 1 and strides[-1] != 1

    def numbers(self, index: int) -> list[int]:
        """Return an argument that is a list of numbers, such as a stride; else DecodeError."""
        return msgspec.json.decode(self.concrete[index].encode(), type=list[int])


def product_sizes(
    inputs: ProductInputs, gradients: int, outputs: dict[tuple[Shape, Shape], Shape]
) -> ProductSizes | None:
    """Return the arithmetic of one call, as `_Call` has it; None: the trace says too little."""
    call = _Call(
        shapes=_shapes(inputs.dims),
        types=types_of(inputs),
        strides=_shapes(inputs.strides),
        concrete=list(map(str, _entries(inputs.concrete))),
        gradients=gradients,
        outputs=outputs,
    )
    try:
        sizes = PRODUCT_OPERATORS[inputs.operator](call)
    except (IndexError, ValueError, TypeError, OverflowError, msgspec.DecodeError):
        return None
    if sizes is None or not max(sizes.flops, sizes.elements) < _LARGEST:
        return None
    return sizes if min(sizes.flops, sizes.elements) >= 0 else None


def types_of(inputs: ProductInputs) -> list[str]:
    """Return the type of each input as the trace names it; [] where it names none."""
    return list(map(str, _entries(inputs.types)))


def convolution_output(inputs: ProductInputs) -> tuple[tuple[Shape, Shape], Shape] | None:
    """Return ((input, weight), output) sizes, which the backward of a convolution names."""
    shapes = _shapes(inputs.dims)
    if inputs.operator not in _BACKWARD_INPUTS or len(shapes) < 3:
        return None
    image, output, weight = (shapes[index] for index in _BACKWARD_INPUTS[inputs.operator])
    return (image, weight), output


def _entries(text: bytes) -> list[Any]:
    try:
        entries = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return entries if isinstance(entries, list) else []


def _shapes(text: bytes) -> list[Shape]:
    """Return the sizes of each input; () where it has none."""
    return [
        tuple(entry)
        if isinstance(entry, list) and all(isinstance(size, int) for size in entry)
        else ()
        for entry in _entries(text)
    ]


def _product(
    left: Shape, right: Shape, dtype: str | None, turned: tuple[bool, bool] = (False, True)
) -> ProductSizes | None:
    """Return the sizes of batches of [rows, inner] by [inner, columns]."""
    *batch, rows, inner = left
    columns = right[-1]
    many = math.prod(batch)
    if right[-2] != inner or not min(rows, inner, columns, many):
        return None
    elements = many * (rows * inner + inner * columns + rows * columns)
    # The sizes that cuBLAS documents for its tensor core kernels: those along which factors and
    # result lie in memory.
    sizes = {"rows": rows, "inner": inner, "columns": columns}
    if not turned[0]:
        del sizes["rows"]
    elif not turned[1]:
        del sizes["inner"]
    return ProductSizes(2.0 * many * rows * inner * columns, float(elements), sizes, dtype)


def _matrices(first: int, call: _Call) -> ProductSizes | None:
    """Return the sizes of a product whose left factor is input `first`, its right one the next."""
    turned = call.transposed(first), call.transposed(first + 1)
    return _product(call.shapes[first], call.shapes[first + 1], call.dtype(first), turned)


def _convolution(call: _Call) -> ProductSizes | None:
    image, weight = call.shapes[:2]
    if call.concrete[6:7] == ["True"]:  # transposed: every input meets every weight of its channel
        return _convolved(image, image, weight, 1, call.dtype(0))
    output = call.outputs.get((image, weight)) or _output(call, image, weight)
    return _convolved(image, output, weight, 1, call.dtype(0))


def _output(call: _Call, image: Shape, weight: Shape) -> Shape:
    stride, padding, dilation = (call.numbers(index) for index in (3, 4, 5))
    sizes = []
    for axis, (size, kernel) in enumerate(zip(image[2:], weight[2:], strict=True)):
        step, pad, apart = (each[min(axis, len(each) - 1)] for each in (stride, padding, dilation))
        sizes.append((size + 2 * pad - apart * (kernel - 1) - 1) // step + 1)
    return (image[0], weight[0], *sizes)


def _convolved(
    image: Shape, output: Shape, weight: Shape, times: int, dtype: str | None
) -> ProductSizes | None:
    if len(weight) < 3 or len(image) != len(weight) or len(output) != len(weight):
        return None
    flops = 2.0 * output[0] * math.prod(output[2:]) * math.prod(weight)
    elements = math.prod(image) + math.prod(weight) + math.prod(output)
    grouped = weight[1] != image[1]  # then channels are few by intention
    sizes = {} if grouped else {"input channels": image[1], "output channels": weight[0]}
    return ProductSizes(times * flops, float(times * elements), sizes, dtype) if flops else None


def _convolution_backward(operator: str, call: _Call) -> ProductSizes | None:
    image, output, weight = (call.shapes[index] for index in _BACKWARD_INPUTS[operator])
    times = call.gradients
    if len(call.concrete) > 10:
        times = call.concrete[10].strip("[]").split(", ")[:2].count("True")
    transposed = call.concrete[7:8] == ["True"]
    return _convolved(image, image if transposed else output, weight, times or 2, call.dtype(0))


def _attention(first: int, products: float, call: _Call) -> ProductSizes | None:
    """Return the sizes of fused attention; `products`: 1 for each of the forward's two."""
    query, key, value = call.shapes[first : first + 3]
    if len(query) < 3 or not math.prod(query):
        return None
    flops = 2.0 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]) * products
    moved = 2 * math.prod(query) + math.prod(key) + math.prod(value)
    return ProductSizes(flops, products * moved, {}, call.dtype(first))


# An operator that calls another one of these is left to it: autocast and dispatch lie between.
PRODUCT_OPERATORS: dict[str, Callable[[_Call], ProductSizes | None]] = {
    "aten::mm": partial(_matrices, 0),
    "aten::bmm": partial(_matrices, 0),
    "aten::_scaled_mm": partial(_matrices, 0),
    "aten::addmm": partial(_matrices, 1),
    "aten::baddbmm": partial(_matrices, 1),
    "aten::addbmm": partial(_matrices, 1),
    "aten::linear": lambda call: _product(
        (math.prod(call.shapes[0][:-1]), call.shapes[0][-1]), call.shapes[1][1::-1], call.dtype(0)
    ),
    "aten::convolution": _convolution,
    **{name: partial(_convolution_backward, name) for name in _BACKWARD_INPUTS},
    "aten::scaled_dot_product_attention": partial(_attention, 0, 1.0),
    **{f"{_FUSED}{how}_attention": partial(_attention, 0, 1.0) for how in _FUSED_BY},
    **{f"{_FUSED}{how}_attention_backward": partial(_attention, 1, 2.5) for how in _FUSED_BY},
}
