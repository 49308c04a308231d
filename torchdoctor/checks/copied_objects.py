"""A line copies what may only be read.

## What it means
`clone()`, `copy()` and `deepcopy` write every byte again, and `deepcopy` goes through each Python
object as well. A copy is needed where it or its original is changed while it lives.

## What to do
Leave the copy out where it is only read, or copy less often: `detach()` for a tensor without its
graph, a view (`x[a:b]`) for a part, `copy_` into a buffer that is made once.

## How it is measured
Sampled stacks of the main thread: lines with a call that copies, and samples within Python's copy
module, among all samples of the steps. A trial answers such calls with the original, once earlier
copies were seen to be only read.

## Not to be confused with
Copies between host and device (memcpy-share), and tensors made of NumPy arrays (copied-arrays).
"""

from typing import Any

from torchdoctor.queries.copies import copying_code
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_NAMED = 2


def _examine(recording: Recording) -> Symptoms:
    for code in copying_code(recording)[:_NAMED]:
        if code.share < CHECK.threshold:
            continue
        evidence = fact(
            "copies",
            share=code.share,
            location=code.location,
            function=code.location.function,
            text=code.text,
        )
        yield Symptom(share=code.share, evidence=evidence, location=code.location)


_ROW: dict[str, Any] = {
    "location": {"file": "/w/train.py", "line": 12, "function": "remember"},
    "phase": "after_step",
    "count": 30,
    "text": "kept = copy.deepcopy(batch)",
    "leaf_file": "python3.11/copy.py",
    "leaf_function": "_deepcopy_dict",
}
_LOOP = {
    "location": {"file": "/w/train.py", "line": 40, "function": "main"},
    "phase": "backward",
    "count": 70,
}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: a twentieth of the step is worth a look at a single line",
    sentences={
        "copies": "Copies take {share:.0%} of {each_step}[ in {function}], at {location:place}"
        "[ ({text})].",
    },
    examine=_examine,
    fires=[process(stacks=[_ROW, _LOOP])],
    quiet=[
        process(stacks=[{**_ROW, "count": 2}, _LOOP]),
        process(
            stacks=[
                {
                    **_ROW,
                    "text": "kept = batch",
                    "leaf_file": "train.py",
                    "leaf_function": "remember",
                },
                _LOOP,
            ]
        ),
    ],
)
