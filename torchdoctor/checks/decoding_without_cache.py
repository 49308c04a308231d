"""Tokens are decoded without a cache of keys and values.

## What it means
Each call gets the whole sequence again with one more token, and computes all of it anew. With the
keys and values of earlier tokens kept, a call computes one token.

## How it is measured
The probe compares the tokens of each of the first calls with those of the call before.

## Not to be confused with
A model that is not causal: each new token changes all others there, and nothing can be kept.
"""

from torchdoctor.queries.lookup import phase_share, training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    if not recording.infers:
        return
    for model in training_models(recording):
        calls = min(model.forwards, _LOOKED_AT)
        if not calls or model.grown_calls < CHECK.threshold * calls:
            continue
        yield Symptom(
            share=phase_share(recording, "forward_s"),
            evidence=fact("grown", grown=model.grown_calls, calls=calls),
            location=model.call.location if model.call else model.location,
        )


_LOOKED_AT = 128  # calls, by the probe
_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}, "forward_s": 0.01}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.5,
    unit="of the calls repeat the sequence of the call before",
    source="torchdoctor: more than half of the calls decode",
    sentences={
        "grown": "{grown:,} of {calls:counted call} got the tokens of the call before and one "
        "more: all of them are computed anew for each token.",
    },
    examine=_examine,
    closes_verdict=True,
    fires=[{"steps": _STEPS, **process(models=[{"ident": 0, "forwards": 99, "grown_calls": 90}])}],
    quiet=[{"steps": _STEPS, **process(models=[{"ident": 0, "forwards": 99}])}],
)
