"""The host waits for the GPU inside the step.

## What it means
`.item()`, `.cpu()`, `print(tensor)`, `nonzero()` and control flow on a tensor wait until the
GPU has caught up. Afterwards its queue is empty, and it waits for the host in turn.

## How it is measured
The trace shows synchronising driver calls and copies to the host, which wait for all work that was
launched before: how many a step, and how long they block. The lines are noted in a few steps after
the profiler window, which are in no timing.

## Not to be confused with
One wait at the end of a step that reads the loss now and then.
"""

from torchdoctor.facts.analysed import calls_of
from torchdoctor.facts.lookup import training_loaders
from torchdoctor.words import (
    CheckSpec,
    Recording,
    Symptom,
    Symptoms,
    fact,
    process,
    tensor_call,
    trace,
)

_NAMED = 4


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or traced.sync_s is None or not traced.step_s:
        return
    blocked = (traced.sync_s + (traced.d2h_wait_s or 0.0)) / traced.step_s
    shares, loaders = traced.shares, training_loaders(recording)
    idle = (shares.cpu or 0.0) + (shares.runtime or 0.0) + (shares.other or 0.0)
    if loaders and not loaders[0].num_workers:  # the host fetches while the GPU could compute
        idle += shares.data_loader or 0.0
    share = min(blocked, idle)
    if traced.after_sync_s is not None:
        share = min(share, traced.after_sync_s / traced.step_s)
    if share < CHECK.threshold:
        return
    copies = traced.d2h_copies if traced.d2h_wait_s else None  # others hold nobody
    syncs = traced.syncs_per_step
    waited_in = "waits-copies" if not syncs else "waits" if copies else "waits-syncs"
    calls = calls_of(recording, "wait")
    yield Symptom(
        share=share,
        evidence=[
            fact(waited_in, share=share, blocked=blocked, syncs=syncs, copies=copies),
            *(
                # For how long is not known: these steps waited for the analysis as well.
                fact(
                    "call",
                    location=call.location,
                    name=call.name.strip("_"),
                    times=call.calls_per_step,
                )
                for call in calls[:_NAMED]
            ),
        ],
        location=calls[0].location if calls else None,
        severity="moderate",
    )


_IDLE = {"gpu": 0.5, "cpu": 0.3, "runtime": 0.1, "other": 0.1}
_BUSY = {"gpu": 0.99, "cpu": 0.01, "runtime": 0.0, "other": 0.0}
_SYNCS = {"has_device": True, "sync_s": 0.04, "syncs_per_step": 3.0}
_WAIT = tensor_call("wait", "item", host_s=0.004)
_BLOCKED = "The host waits for the {device} {blocked:.0%} of {each_step}, in"
_IN_SYNCS = "{syncs:counted synchronisation}"
_IN_COPIES = "{copies:counted copy to the host, copies to the host}"
_AT_MOST = "{a_step}; what the {device} then waits for the host is at most {share:.0%}."
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor; Nsight Systems' expert rule cuda_api_sync lists the same calls",
    sentences={
        "waits": f"{_BLOCKED} {_IN_SYNCS} and {_IN_COPIES} {_AT_MOST}",
        "waits-copies": f"{_BLOCKED} {_IN_COPIES} {_AT_MOST}",
        "waits-syncs": f"{_BLOCKED} {_IN_SYNCS} {_AT_MOST}",
        "call": "{location:place}: {name}, {times:counted time} {a_step}.",
    },
    examine=_examine,
    fires=[
        {**trace(**_SYNCS, shares=_IDLE), **process(tensor_calls=[_WAIT])},
        {
            **trace(**_SYNCS, shares={"gpu": 0.92, "cpu": 0.04, "data_loader": 0.04}),
            **process(loaders=[{"ident": 0, "num_workers": 0, "batches": 9}]),
        },
    ],
    quiet=[
        trace(**_SYNCS, shares=_BUSY),
        trace(**_SYNCS, after_sync_s=0.001, shares=_IDLE),  # hardly anything follows the waits
    ],
)
