"""Matrix products have sizes that tensor cores handle badly.

## What it means
Tensor cores read matrices in pieces of 16 bytes: 8 numbers of float16 or bfloat16, 4 of TF32. If a
size along which a matrix lies in memory is no multiple of that, a slower kernel has to run, often
several times slower. Since the A100, multiples of 128 bytes are best. A vocabulary of 50257 padded
to 50304 costs little and gives the fast kernels back.

## How it is measured
The trace records input sizes (and strides) of matrix products and convolutions, and the time of
their kernels on tensor cores. If the trace has Python stacks, the finding names the line.

## Not to be confused with
Sizes below such a multiple (a layer with one output): padding would multiply the work. Arithmetic
without tensor cores, such as float32 with TF32 off, to which this does not apply.
"""

from typing import Any

from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    MatrixProduct,
    Recording,
    Symptom,
    Symptoms,
    fact,
    trace,
)

_NEEDED = 16  # a larger multiple is only better
_NAMED = 3


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or traced.matrix_work is None or not traced.step_s:
        return
    uneven = [product for product in traced.matrix_work.products if product.uneven]
    slow = [p for p in uneven if any(size.multiple <= _NEEDED for size in p.uneven)]
    severe = _share(slow, traced.step_s) >= CHECK.threshold
    products = slow if severe else uneven
    share = _share(products, traced.step_s)
    if share < CHECK.threshold:
        return
    yield Symptom(
        share=share,
        evidence=[_described(product, traced.step_s) for product in products[:_NAMED]],
        location=next((product.location for product in products if product.location), None),
        severity=None if severe else "advice",
    )


def _share(products: list[MatrixProduct], step_s: float) -> float:
    return min(sum(product.device_s for product in products) / step_s, 1.0)


def _described(product: MatrixProduct, step_s: float) -> Evidence:
    uneven = [
        {
            "dimension": size.dimension,
            "size": size.size,
            "multiple": size.multiple,
            "even": -(-size.size // size.multiple) * size.multiple,
        }
        for size in product.uneven
    ]
    return fact(
        "product",
        share=product.device_s / step_s,
        operator=product.operator,
        sizes=product.sizes,
        precision=product.precision,
        reached=product.peak_share,
        uneven=uneven,
    )


_COST = {"flops": 1e12, "device_s": 0.03}
_CALLS = {"operator": "aten::bmm", "sizes": "", "precision": "bfloat16", "calls_per_step": 24.0}


def _product(**changes: Any) -> dict[str, Any]:
    product = {**_COST, **_CALLS, **changes}
    return trace(matrix_work={**_COST, "known_share": 1.0, "products": [product]})


_ODD = {"dimension": "columns", "size": 5185, "multiple": 8}
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.05,
    unit="% of the step in such products",
    source="torchdoctor; the sizes: NVIDIA, Matrix Multiplication Background",
    sentences={
        "product": "{operator} of {sizes} in {precision} takes {share:.0%} of {the_step}[, at "
        "{reached:.0%} of the {device}'s peak]: {uneven:each size| and }.",
        "size": "{dimension} {size} (no multiple of {multiple}; {even} would be)",
    },
    examine=_examine,
    fires=[
        _product(uneven=[_ODD], peak_share=0.05, location={"file": "model.py", "line": 40}),
        _product(uneven=[{"dimension": "inner", "size": 1000, "multiple": 64}]),
    ],
    quiet=[_product(), _product(uneven=[_ODD], device_s=0.001)],
)
