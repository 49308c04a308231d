"""Copies from pinned memory still hold the host.

## What it means
A batch lies in pinned memory, but is copied with a call that waits (without non_blocking=True).

## How it is measured
The probe's step log holds copies whose source is pinned and that were not asked to be non_blocking.

## Not to be confused with
Copies from pageable memory, which wait in any case.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact


def _examine(recording: Recording) -> Symptoms:
    steps = recording.steps
    blocking = steps.blocking_copies_per_step if steps is not None else None
    if steps is None or blocking is None or blocking < CHECK.threshold:
        return
    yield Symptom(
        share=steps.h2d_copy_s / steps.mean_s,
        evidence=fact("blocking", copies=blocking),
        severity="moderate",
    )


CHECK = CheckSpec(
    branch="memcpy",
    threshold=1.0,
    unit="blocking copy in each step",
    source="PyTorch Performance Tuning Guide",
    share_field="memcpy",
    sentences={
        "blocking": "The host waits for {copies:counted copy, copies} {a_step} from pinned memory.",
    },
    examine=_examine,
    fires=[{"steps": {"blocking_copies_per_step": 2.0, "h2d_copy_s": 0.001}}],
    quiet=[{"steps": {"blocking_copies_per_step": 0.0}}, {}],
)
