"""Much of what a model gets is padding.

## What it means
Rows of tokens are filled up to one length, and the model computes the filling too. Padding that all
rows of a batch share is there because the length is fixed; the rest, because long and short rows
share a batch.

## How it is measured
The probe counts, in the first calls, the tokens behind the last one of each row that is no padding.

## Not to be confused with
Padding to a multiple of 8, which adds a few tokens and gains more.
"""

from torchdoctor.queries.lookup import phase_share, training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    for model in training_models(recording):
        padding = model.padding_share or 0.0
        common = model.common_padding_share or None
        if padding < CHECK.threshold:
            continue
        backward = () if recording.infers else ("backward_s",)
        computed = phase_share(recording, "forward_s", *backward)
        yield Symptom(
            share=None if computed is None else computed * padding,
            evidence=fact("padding", padding=padding, common=common),
            location=model.call.location if model.call else model.location,
        )


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}, "forward_s": 0.01}
_MODEL = {"ident": 0, "forwards": 9, "common_padding_share": 0.8}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.1,
    unit="of the tokens are padding",
    source="torchdoctor: a gain that outlasts the noise of a pair",
    sentences={
        "padding": "{padding:.0%} of the tokens that the model gets are padding"
        "[, {common:.0%} at the end of all rows of a batch].",
    },
    examine=_examine,
    closes_verdict=True,
    fires=[
        {"steps": _STEPS, **process(models=[{**_MODEL, "padding_share": 0.9}])},
        {"steps": {"forward_s": 0.01}, **process(models=[{**_MODEL, "padding_share": 0.9}])},
    ],
    quiet=[{"steps": _STEPS, **process(models=[{**_MODEL, "padding_share": 0.05}])}],
)
