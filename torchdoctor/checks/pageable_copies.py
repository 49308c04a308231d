"""Batches are copied to the GPU from pageable memory.

## What it means
From memory that is not page-locked, the driver first copies into a buffer and holds the host.

## How it is measured
The trace marks copies as pageable, and the probe's step log holds calls of Tensor.to and
Tensor.cuda whose source is not pinned.

## Not to be confused with
Small copies of a few bytes, such as a learning rate: they are not worth pinning. Copies to the
host: they wait for the device, whatever memory they end in (see sync-in-step).
"""

from torchdoctor.queries.analysed import TO_DEVICE, calls_of
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace

_LEAST_SHARE = 0.005  # of the step; less is not worth pinning for


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    steps = recording.steps
    pageable = traced.pageable_copies if traced is not None else None
    if pageable is None and steps is not None:
        pageable = steps.pageable_copies_per_step
    if pageable is None or pageable < CHECK.threshold:
        return
    evidence = [fact("pageable", copies=pageable)]
    share = None
    if traced is not None and traced.pageable_wait_s is not None and traced.step_s:
        # What kernels hide costs nothing: only the exposed part of the wait is the step's.
        exposed = (traced.shares.memcpy or 0.0) + (traced.shares.runtime or 0.0)
        share = min(traced.pageable_wait_s / traced.step_s, exposed)
        if share < _LEAST_SHARE:
            return
        evidence.append(
            fact("held", share=share, seconds=traced.pageable_wait_s, step_s=traced.step_s)
        )
    calls = calls_of(recording, "pageable", *TO_DEVICE)
    yield Symptom(
        share=share,
        evidence=evidence,
        location=calls[0].location if calls else None,
        severity="high" if (share or 0.0) >= 0.1 else "moderate",
    )


_AT = {"kind": "pageable", "name": "to", "location": {"file": "/w/train.py", "line": 12}}
_COPIES = trace(pageable_copies=2, pageable_wait_s=0.02, shares={"memcpy": 0.1, "runtime": 0.2})
CHECK = CheckSpec(
    branch="memcpy",
    threshold=1.0,
    unit="pageable copy in each step",
    source="Nsight Systems' expert rule cuda_memcpy_async: pageable memory",
    share_field="memcpy",
    sentences={
        "pageable": "From pageable memory: {copies:counted copy, copies} {a_step}.",
        "held": "They hold the host {seconds:seconds} of {each_step}, which takes "
        "{step_s:seconds}.",
    },
    examine=_examine,
    fires=[_COPIES, {**_COPIES, **process(tensor_calls=[_AT])}],
    quiet=[
        trace(pageable_copies=0.0),
        trace(pageable_copies=9.0, pageable_wait_s=0.00007, shares={"runtime": 0.5}),
        {},
    ],
)
