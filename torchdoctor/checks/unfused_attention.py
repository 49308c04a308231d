"""Attention is computed operator by operator.

What it means
-------------
Scores, softmax and weighted sum as three operators write the whole matrix of scores to memory and
read it again, several times, forward and backward. One fused operator (scaled dot product
attention) never writes it: less memory, and two to four times as fast for long sequences.

How it is measured
------------------
Batched matrix products and softmax of the trace, at least two products to each softmax, and no
scaled dot product attention among the operators. Their share of the step.

Not to be confused with
-----------------------
The softmax at the end of a classifier, which no batched products surround.
"""

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.05


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    if trace is None or not trace.step_s:
        return
    names = [operator.name for operator in trace.operators]
    if any("scaled_dot_product" in name or "flash_attn" in name for name in names):
        return
    softmax = [x for x in trace.operators if x.name == "aten::_softmax"]
    products = [x for x in trace.operators if x.name in ("aten::bmm", "aten::baddbmm")]
    count = sum(x.calls_per_step for x in softmax)
    if count < 1 or sum(x.calls_per_step for x in products) < 2 * count:
        return
    scores = [*softmax, *products, *(x for x in trace.operators if "_softmax_back" in x.name)]
    scores = [x for x in scores if "_log_" not in x.name]
    time_s = sum(x.device_s if x.device_s is not None else x.self_s for x in scores)
    share = min(time_s / trace.step_s, 1.0)
    if share < THRESHOLD:
        return
    yield Symptom(
        share=share,
        evidence=[
            f"{count:.0f} softmax and their batched products take {share:.0%} of the step, "
            "and no fused attention is among the operators."
        ],
        severity="moderate",
    )


_TRACE = {"path": "t", "steps": 4, "step_s": 0.010}
_SOFTMAX = {"name": "aten::_softmax", "calls_per_step": 6.0, "self_s": 0.001}
_BMM = {"name": "aten::bmm", "calls_per_step": 36.0, "self_s": 0.002}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: a share of the step that is worth a change",
    examine=_examine,
    fires=[{"trace": {**_TRACE, "operators": [_SOFTMAX, _BMM]}}],
    quiet=[
        {"trace": {**_TRACE, "operators": [_SOFTMAX]}},
        {
            "trace": {
                **_TRACE,
                "operators": [{**_SOFTMAX, "self_s": 1e-5}, {**_BMM, "self_s": 1e-5}],
            }
        },
        {
            "trace": {
                **_TRACE,
                "operators": [
                    _SOFTMAX,
                    _BMM,
                    {
                        "name": "aten::_scaled_dot_product_flash_attention",
                        "calls_per_step": 6.0,
                        "self_s": 0.001,
                    },
                ],
            }
        },
    ],
)
