"""Python's garbage collector interrupts the steps.

## What it means
A full collection walks through every Python object: of millions, in a good part of a second.

## How it is measured
Python's own gc callbacks give the collections longer than 0.1 ms, compared with the step.

## Not to be confused with
Freeing tensors, which needs no collection.
"""

from torchdoctor.queries.lookup import phase_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact


def _examine(recording: Recording) -> Symptoms:
    share = phase_share(recording, "gc_s")
    if share is not None and share >= CHECK.threshold:
        yield Symptom(
            share=share,
            evidence=fact("share", share=share),
            severity="moderate",
        )


CHECK = CheckSpec(
    branch="cpu",
    threshold=0.02,
    unit="% of the step",
    source="torchdoctor: the least share of a step that is worth a trial",
    phases=("gc_s",),
    sentences={
        "share": "Garbage collection takes {share:.1%} of {each_step}.",
    },
    examine=_examine,
    fires=[{"steps": {"gc_s": 0.001}}],
    quiet=[{"steps": {"gc_s": 0.00001}}],
)
