"""Attention is computed operator by operator.

## What it means
Scores, softmax and weighted sum as three operators write the whole matrix of scores to memory and
read it again, several times, forward and backward. One fused operator (scaled dot product
attention) never writes it: less memory, and two to four times as fast for long sequences.

## How it is measured
The trace has batched matrix products and softmax, at least two products to each softmax but one (a
classifier's), and no scaled dot product attention. The share is theirs.

## Not to be confused with
The softmax at the end of a classifier, which no batched products surround.
"""

from torchdoctor.queries.lookup import spent_s
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, trace

_FUSED = ("scaled_dot_product", "flash_attn")


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or not traced.step_s:
        return
    operators = traced.operators
    if any(mark in operator.name for operator in operators for mark in _FUSED):
        return
    softmax = [operator for operator in operators if operator.name == "aten::_softmax"]
    products = [
        operator for operator in operators if operator.name in ("aten::bmm", "aten::baddbmm")
    ]
    backward = [
        operator
        for operator in operators
        if "_softmax_back" in operator.name and "_log_" not in operator.name
    ]
    count = sum(operator.calls_per_step for operator in softmax)
    if count < 1 or sum(product.calls_per_step for product in products) < 2 * max(count - 1, 1):
        return
    share = min(sum(map(spent_s, [*softmax, *products, *backward])) / traced.step_s, 1.0)
    if share >= CHECK.threshold:
        yield Symptom(
            share=share,
            evidence=fact("unfused", share=share, softmax=count),
            severity="moderate",
        )


_SOFTMAX = {"name": "aten::_softmax", "calls_per_step": 6.0, "self_s": 0.01}
_BMM = {"name": "aten::bmm", "calls_per_step": 36.0, "self_s": 0.02}
_FLASH = {**_SOFTMAX, "name": "aten::_scaled_dot_product_flash_attention"}
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: a share of the step that is worth a change",
    sentences={
        "unfused": "{softmax:.0f} softmax and their batched products take {share:.0%} of "
        "{the_step}, and no fused attention is among the operators.",
    },
    examine=_examine,
    fires=[
        trace(operators=[_SOFTMAX, _BMM]),
        trace(operators=[{**_SOFTMAX, "calls_per_step": 19.0}, _BMM]),
    ],
    quiet=[trace(operators=[_SOFTMAX]), trace(operators=[_SOFTMAX, _BMM, _FLASH])],
)
