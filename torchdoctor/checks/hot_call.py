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
that these call, among all samples of the steps. Forward passes and the loop itself do not count.

## Not to be confused with
Work outside the model (work-outside-model), of which such a function may be a part.
"""

from typing import Any

from torchdoctor.facts.hot_calls import hot_calls
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, fact, process

_NAMED = 3
_SHOWN = 60  # characters of a line


def _examine(recording: Recording) -> Symptoms:
    for call in hot_calls(recording)[:_NAMED]:
        if call.share < CHECK.threshold:
            continue
        text = call.rows[0].text[:_SHOWN].strip()
        evidence = fact(
            "function",
            share=call.share,
            location=call.top,
            function=call.function,
            text=text or None,
        )
        yield Symptom(share=call.share, evidence=evidence, location=call.top, severity="moderate")


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
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.10,
    unit="% of the step",
    source="torchdoctor: a tenth of the step is worth a look",
    sentences={
        "function": "{function} takes {share:.0%} of {each_step}, most often at {location:place}"
        "[ ({text})].",
    },
    of_own_code=True,
    examine=_examine,
    fires=[process(stacks=[_ROW, _LOOP])],
    quiet=[
        process(stacks=[{**_ROW, "count": 3}, _LOOP]),
        process(stacks=[{**_LOOP, "phase": "forward", "count": 70}, _LOOP]),
        process(stacks=[{**_ROW, "location": {**_ROW["location"], "function": "forward"}}, _LOOP]),
    ],
)
