"""A good part of the step goes into filling memory with zeros or another constant.

## What it means
A tensor of zeros is written at the speed of the memory before anything is computed with it.
Frequent reasons are zero_grad(set_to_none=False), which clears every gradient and lets the backward
pass add to it; torch.zeros, ones or full of large tensors in each step; and the gradient of an
embedding, a dense tensor of the whole table of which a few rows are used.

## How it is measured
With a GPU, the trace gives the exposed time of memset and the exposed device time of operators that
fill (zero_, fill_, zeros, full); the larger counts. Without a GPU, the time in these operators
counts. Memory that is cleared beside a running kernel costs nothing.

## Not to be confused with
Copies (memcpy-share). Kernels that compute and write zeros, as a mask or a dropout does.
"""

import re

from torchdoctor.queries.lookup import spent_s
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace

_NAMED = 3
_FILLS = re.compile(r"aten::(?:(?:_foreach_)?zero_|fill_|(?:new_)?(?:zeros|ones|full)(?:_like)?)")
_EMBEDDING = "aten::embedding_dense_backward"


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    flags = recording.main.flags
    if traced is None or not traced.step_s:
        return
    fills = [
        operator
        for operator in traced.operators
        if _FILLS.fullmatch(operator.name) and spent_s(operator) > 0
    ]
    share = max(sum(map(spent_s, fills)) / traced.step_s, recording.shares.memset or 0.0)
    if share < CHECK.threshold:
        return
    share = min(share, 1.0)
    evidence = [fact("fills", share=share)]
    for fill in sorted(fills, key=spent_s, reverse=True)[:_NAMED]:
        evidence.append(
            fact(
                "fill",
                name=fill.name,
                calls=fill.calls_per_step,
                seconds=spent_s(fill),
                sizes=fill.shapes or None,
            )
        )
    if flags.zero_grad_to_zero:
        evidence.append(fact("zero-grad"))
    if any(operator.name == _EMBEDDING for operator in traced.operators):
        evidence.append(fact("embedding"))
    evidence.append(fact("make-once"))
    yield Symptom(share=share, evidence=evidence, location=flags.zero_grad_location)


_FILL = {"name": "aten::fill_", "calls_per_step": 8.0, "self_s": 0.02, "shapes": "[4096, 4096]"}
_LITTLE = {**_FILL, "self_s": 1e-3}
CHECK = CheckSpec(
    branch="memcpy",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as for other time that computes nothing (XProf: 5 % of input)",
    sentences={
        "fills": "Filling memory with a constant takes {share:.0%} of {each_step}.",
        "fill": "{name}: {calls:.3g} calls and {seconds:seconds} {a_step}[, most often {sizes}].",
        "zero-grad": "zero_grad(set_to_none=False) is one reason: set_to_none=True writes nothing.",
        "embedding": "The gradient of an embedding is a tensor of the whole table: "
        "nn.Embedding(..., sparse=True), with an optimizer that takes it, writes the rows used "
        "alone.",
        "make-once": "A tensor that is filled in every step can be made once before the loop, and "
        "one that is overwritten as a whole with torch.empty.",
    },
    examine=_examine,
    fires=[
        trace(operators=[_FILL, {**_FILL, "name": _EMBEDDING}]),
        {**trace(has_device=True), "shares": {"memset": 0.12, "gpu": 0.88}},
        {
            **trace(operators=[{**_LITTLE, "device_s": 0.01}]),
            **process(flags={"zero_grad_to_zero": 9}),
        },
    ],
    quiet=[
        trace(operators=[_LITTLE]),
        trace(operators=[{**_FILL, "device_s": 1e-4}]),  # the host's time to launch it is no cost
        trace(operators=[{**_FILL, "name": "aten::mm"}]),
    ],
)
