"""A good part of the step goes into filling memory with zeros or another constant.

What it means
-------------
A tensor of zeros is written before anything is computed with it, at the speed of the memory, and
most of it is read again right after. Frequent reasons: zero_grad(set_to_none=False), which clears
every gradient and lets the backward pass add to it; torch.zeros, ones or full of large tensors in
each step; the gradient of an embedding, a dense tensor of the whole table of which a few rows are
used.

How it is measured
------------------
From the profiler's trace. With a GPU: the exposed time of memset, or the exposed device time of
what operators that fill (zero_, fill_, zeros, full) launch, whichever is more. Without: the time in
these operators. Memory that is cleared beside a running kernel costs nothing.

Not to be confused with
-----------------------
Copies (memcpy-share). Kernels that compute and write zeros, as a mask or a dropout does.
"""

import re
from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Operator, Recording, Symptom

THRESHOLD = 0.05
_HIGH = 0.2
_NAMED = 3
_FILLS = re.compile(r"aten::(?:(?:_foreach_)?zero_|fill_|(?:new_)?(?:zeros|ones|full)(?:_like)?)")
_EMBEDDING = "aten::embedding_dense_backward"


def _examine(recording: Recording) -> Iterator[Symptom]:
    fills, share = _fills(recording), _share(recording)
    if share is None or share < THRESHOLD:
        return
    evidence = [f"Filling memory with a constant takes {share:.0%} of each step."]
    for one in fills[:_NAMED]:
        sizes = f", most often {one.shapes}" if one.shapes else ""
        evidence.append(
            f"{one.name}: {one.calls_per_step:.3g} calls and {_spent(one) * 1e3:.3g} ms a step"
            f"{sizes}."
        )
    yield Symptom(
        share=share,
        evidence=evidence + _advice(recording),
        location=recording.main.flags.zero_grad_location,
        severity="high" if share >= _HIGH else "moderate",
    )


def _fills(recording: Recording) -> list[Operator]:
    """Operators that fill, the costliest first."""
    operators = recording.trace.operators if recording.trace is not None else []
    found = [one for one in operators if _FILLS.fullmatch(one.name) and _spent(one) > 0]
    return sorted(found, key=lambda one: -_spent(one))


def _spent(operator: Operator) -> float:
    return operator.self_s if operator.device_s is None else operator.device_s


def _share(recording: Recording) -> float | None:
    """Share of the step, 0 to 1; None without a trace."""
    trace = recording.trace
    if trace is None or not trace.step_s:
        return None
    by_operators = sum(map(_spent, _fills(recording))) / trace.step_s
    return min(max(by_operators, recording.shares.memset or 0.0), 1.0)


def _advice(recording: Recording) -> list[str]:
    flags, trace = recording.main.flags, recording.trace
    said = []
    if flags.zero_grad_to_zero:
        said.append("zero_grad(set_to_none=False) is one reason: set_to_none=True writes nothing.")
    if trace is not None and any(one.name == _EMBEDDING for one in trace.operators):
        said.append(
            "The gradient of an embedding is a tensor of the whole table: nn.Embedding(..., "
            "sparse=True), with an optimizer that takes it, writes the rows used alone."
        )
    said.append(
        "A tensor that is filled in every step can be made once before the loop, and one that is "
        "overwritten as a whole with torch.empty."
    )
    return said


_FILL = {"name": "aten::fill_", "calls_per_step": 8.0, "self_s": 0.002, "shapes": "[4096, 4096]"}
_TRACE = {"path": "t", "steps": 4, "step_s": 0.01}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="memcpy",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: as for other time that computes nothing (XProf: 5 % of input)",
    examine=_examine,
    fires=[
        {"trace": {**_TRACE, "operators": [_FILL]}},
        {"trace": {**_TRACE, "operators": [_FILL, {**_FILL, "name": _EMBEDDING}]}},
        {"trace": {**_TRACE, "has_device": True}, "shares": {"memset": 0.12, "gpu": 0.88}},
        {
            "trace": {**_TRACE, "operators": [{**_FILL, "self_s": 1e-5, "device_s": 0.001}]},
            "processes": [{"pid": 1, "flags": {"zero_grad_to_zero": 30}}],
        },
    ],
    quiet=[
        {"trace": {**_TRACE, "operators": [{**_FILL, "self_s": 1e-4}]}},
        # On a GPU the host's time to launch it is not what is asked.
        {"trace": {**_TRACE, "operators": [{**_FILL, "device_s": 1e-5}]}},
        {"trace": {**_TRACE, "operators": [{**_FILL, "name": "aten::mm"}]}},
        {"trace": {**_TRACE, "has_device": True}, "shares": {"memset": 0.01, "gpu": 0.99}},
        {"shares": {"cpu": 1.0}},
    ],
)
