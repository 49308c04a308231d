"""The host waits for the GPU inside the step.

What it means
-------------
`.item()`, `.cpu()`, `print(tensor)`, `nonzero()` and control flow on a tensor wait until the
GPU has caught up. Afterwards its queue is empty, and it waits for the host in turn.

How it is measured
------------------
Synchronising driver calls of the trace, and copies to the host, which wait until all is done that
was launched before: how many a step, and how long they block. The lines that
make them are seen in a few steps after the profiler window, which are in no timing.

Not to be confused with
-----------------------
The one wait at the end of a step that reads the loss now and then.
"""

from collections.abc import Iterator

from torchdoctor.facts.analysed import calls_of
from torchdoctor.facts.counts import counted
from torchdoctor.facts.lookup import place
from torchdoctor.words import CheckSpec, Recording, Symptom, TraceStatistics

THRESHOLD = 0.05
_NAMED = 4


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    if trace is None or trace.sync_s is None or not trace.step_s:
        return
    blocked = (trace.sync_s + (trace.d2h_wait_s or 0.0)) / trace.step_s
    share = min(blocked, _idle_share(trace))
    if share < THRESHOLD:
        return
    waits = calls_of(recording, "wait")
    lines = [
        f"{place(recording, call.location, '')}: {call.name.strip('_')}, "
        f"{counted(call.calls_per_step, 'time')} a step, {call.host_s * 1e3:.2f} ms."
        for call in waits[:_NAMED]
    ]
    yield Symptom(
        share=share,
        evidence=[
            f"The host waits for the GPU {blocked:.0%} of each step, in {_waits(trace)} a "
            f"step; what the GPU then waits for the host is at most {share:.0%}.",
            *lines,
        ],
        location=waits[0].location if waits else None,
        severity="moderate",
    )


def _waits(trace: TraceStatistics) -> str:
    """ "2 synchronisations and 6 copies to the host"; copies that hold nobody are left out."""
    waits = []
    if trace.syncs_per_step:
        waits.append(counted(trace.syncs_per_step, "synchronisation"))
    if trace.d2h_copies and trace.d2h_wait_s:
        waits.append(counted(trace.d2h_copies, "copy to the host", "copies to the host"))
    return " and ".join(waits)


def _idle_share(trace: TraceStatistics) -> float:
    """Share of the step in which the GPU waits for the host, other than for data."""
    shares = trace.shares
    return (shares.cpu or 0.0) + (shares.runtime or 0.0) + (shares.other or 0.0)


_TRACE = {"path": "t", "steps": 4, "step_s": 0.01, "has_device": True}
_IDLE = {"gpu": 0.5, "cpu": 0.3, "runtime": 0.1, "other": 0.1}
_BUSY = {"gpu": 0.99, "cpu": 0.01, "runtime": 0.0, "other": 0.0}
_WAIT = {
    "kind": "wait",
    "name": "item",
    "location": {"file": "/w/train.py", "line": 30},
    "text": "total += loss.item()",
    "calls_per_step": 1.0,
    "host_s": 0.004,
    "sure": True,
}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor; Nsight Systems' expert rule cuda_api_sync lists the same calls",
    examine=_examine,
    fires=[
        {"trace": {**_TRACE, "sync_s": 0.004, "syncs_per_step": 3.0, "shares": _IDLE}},
        {
            "trace": {**_TRACE, "sync_s": 0.004, "syncs_per_step": 3.0, "shares": _IDLE},
            "processes": [{"pid": 1, "analysed_steps": 6, "tensor_calls": [_WAIT]}],
        },
    ],
    quiet=[
        {"trace": {**_TRACE, "sync_s": 0.0001, "syncs_per_step": 1.0, "shares": _IDLE}},
        {"trace": {**_TRACE, "sync_s": 0.004, "syncs_per_step": 3.0, "shares": _BUSY}},
    ],
)
