"""One function of the program's own holds much of the step.

## What it means
A function that is called in each step takes a good part of it: it may compute again what it
computed before, build anew what it could keep, or only report.

## What to do
Ask whether its result is the same in each step (keep it), whether what it opens or builds is the
same each time (keep that), whether only a report reads it (call it every so many steps), and
whether it goes through a history or through elements one by one.

## How it is measured
Sampled stacks of the main thread: the samples in the function's own lines, and in the libraries
that these call, among all samples of the steps. The loop itself does not count, and of a forward
pass only a line whose cure is known (`known_shapes.toml`).

## Not to be confused with
Work outside the model (work-outside-model), of which such a function may be a part.
"""

from typing import Any

from torchdoctor.queries.hot_calls import SampledCode, hot_calls, lines_of_passes
from torchdoctor.queries.known_shapes import shape_of
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_NAMED = 3


def _has_shape(call: SampledCode) -> bool:
    top = call.rows[0]
    return shape_of(top.text, call.function, top.leaf) is not None


def _examine(recording: Recording) -> Symptoms:
    passes = [call for call in lines_of_passes(recording) if _has_shape(call)]
    for call in passes[:1]:
        evidence = fact("line", share=call.share, location=call.location, text=call.text or "")
        yield Symptom(
            share=call.share, evidence=evidence, location=call.location, severity="moderate"
        )
    for call in hot_calls(recording)[:_NAMED]:
        if call.share < CHECK.threshold:
            continue
        evidence = fact(
            "function",
            share=call.share,
            location=call.location,
            function=call.function,
            text=call.text,
        )
        yield Symptom(
            share=call.share, evidence=evidence, location=call.location, severity="moderate"
        )


_ROW: dict[str, Any] = {
    "location": {"file": "/w/train.py", "line": 12, "function": "normalized"},
    "phase": "forward",
    "count": 30,
    "text": "degree = adjacency.sum(1)",
}
_LOOP = {
    "location": {"file": "/w/train.py", "line": 40, "function": "main"},
    "phase": "backward",
    "count": 70,
}
_CELL = {
    **_ROW,
    "location": {**_ROW["location"], "function": "forward"},
    "text": "h, c = self.cell(x[:, t], (h, c))",
}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.10,
    unit="% of the step",
    source="torchdoctor: a tenth of the step is worth a look",
    sentences={
        "line": "{location:place} takes {share:.0%} of {each_step} in the forward pass ({text}).",
        "function": "{function} takes {share:.0%} of {each_step}, most often at {location:place}"
        "[ ({text})].",
    },
    of_own_code=True,
    examine=_examine,
    fires=[process(stacks=[_ROW, _LOOP]), process(stacks=[_CELL, _LOOP])],
    quiet=[
        process(stacks=[{**_ROW, "count": 3}, _LOOP]),
        process(stacks=[{**_LOOP, "phase": "forward", "count": 70}, _LOOP]),
        process(stacks=[{**_ROW, "location": {**_ROW["location"], "function": "forward"}}, _LOOP]),
    ],
)
