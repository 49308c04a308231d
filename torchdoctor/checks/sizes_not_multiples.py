"""Matrix products have sizes that tensor cores handle badly.

What it means
-------------
Tensor cores read matrices in pieces of 16 bytes: 8 numbers of float16 or bfloat16, 4 of TF32. Where
a size along which a matrix lies in memory is no multiple of that, a slower kernel has to run, often
several times slower. Since the A100, multiples of 128 bytes (64 numbers, or 32) are best. A
vocabulary of 50257 padded to 50304, or a sequence of 5185 tokens padded to 5192, costs little and
gives the fast kernels back.

How it is measured
------------------
Recorded input sizes (and strides, where the trace has them) of matrix products and convolutions
whose kernels ran on tensor cores, and the time of these kernels. The line is named where the trace
has Python stacks.

Not to be confused with
-----------------------
Sizes below such a multiple (a layer with one output): padding would multiply the work. Arithmetic
without tensor cores, such as float32 with TF32 off, to which this does not apply.
"""

from collections.abc import Iterator
from typing import Any

from torchdoctor.words import CheckSpec, MatrixProduct, Recording, Symptom

THRESHOLD = 0.05
_NEEDED = 16  # a larger multiple is only better
_NAMED = 3


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    if trace is None or trace.matrix_work is None or not trace.step_s:
        return
    products = [one for one in trace.matrix_work.products if one.uneven]
    slow = [one for one in products if any(size.multiple <= _NEEDED for size in one.uneven)]
    found = slow if _share(slow, trace.step_s) >= THRESHOLD else products
    share = _share(found, trace.step_s)
    if share < THRESHOLD:
        return
    yield Symptom(
        share=share,
        evidence=[_said(one, trace.step_s) for one in found[:_NAMED]],
        location=next((one.location for one in found if one.location), None),
        severity=None if found is slow else "advice",
    )


def _share(products: list[MatrixProduct], step_s: float) -> float:
    return min(sum(one.device_s for one in products) / step_s, 1.0)


def _said(one: MatrixProduct, step_s: float) -> str:
    sizes = " and ".join(
        f"{size.dimension} {size.size} (no multiple of {size.multiple}; "
        f"{-(-size.size // size.multiple) * size.multiple} would be)"
        for size in one.uneven
    )
    reached = "" if one.peak_share is None else f", at {one.peak_share:.0%} of the GPU's peak"
    return (
        f"{one.operator} of {one.sizes} in {one.precision} takes {one.device_s / step_s:.0%} of "
        f"the step{reached}: {sizes}."
    )


def _recording(**product: Any) -> dict[str, Any]:
    one = {
        "operator": "aten::bmm",
        "sizes": "[16, 5185, 64], [16, 64, 5185]",
        "precision": "bfloat16",
        "calls_per_step": 24.0,
        "flops": 1e12,
        "device_s": 0.03,
        **product,
    }
    work = {"flops": 1e12, "device_s": 0.03, "known_share": 1.0, "products": [one]}
    return {"trace": {"path": "t", "steps": 4, "step_s": 0.1, "matrix_work": work}}


_ODD = {"dimension": "columns", "size": 5185, "multiple": 8}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="% of the step in such products",
    source="torchdoctor; the sizes: NVIDIA, Matrix Multiplication Background",
    examine=_examine,
    fires=[
        _recording(uneven=[_ODD], peak_share=0.05, location={"file": "model.py", "line": 40}),
        _recording(uneven=[{"dimension": "inner", "size": 1000, "multiple": 64}]),
    ],
    quiet=[_recording(), _recording(uneven=[_ODD], device_s=0.001)],
)
