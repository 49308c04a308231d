"""The host waits for the GPU inside the step.

## What it means
`.item()`, `.cpu()`, `print(tensor)`, `nonzero()` and control flow on a tensor wait until the
GPU has caught up. Afterwards its queue is empty, and it waits for the host in turn.

## How it is measured
The trace shows synchronising driver calls and copies to the host, which wait for all work that was
launched before: how many a step, and how long they block. Where the profiler does not see the
device, the operators that read values count, and the rest of the step bounds what it idles. The
lines are noted in a few steps after the profiler window, which are in no timing.

## Not to be confused with
One wait at the end of a step that reads the loss now and then; and inference that reads its outputs
after each batch (outputs-read-each-batch).
"""

from torchdoctor.queries.analysed import calls_of
from torchdoctor.queries.host_waits import host_wait, reads_of_outputs
from torchdoctor.schema import (
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
    calls = calls_of(recording, "wait")
    wait = host_wait(recording)
    if wait is None or wait.share < CHECK.threshold or reads_of_outputs(recording):
        return  # reading the outputs of each batch is a finding of its own
    reads = sum(call.calls_per_step for call in calls) or 1.0
    yield Symptom(
        share=wait.share,
        evidence=[
            fact(
                _waited_in(wait.syncs, wait.copies),
                share=wait.share,
                blocked=wait.blocked,
                syncs=wait.syncs,
                copies=wait.copies,
                reads=reads,
            ),
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


def _waited_in(syncs: float | None, copies: float | None) -> str:
    """Return the fact that names what the host waited in."""
    if syncs and copies:
        return "waits"
    if syncs:
        return "waits-syncs"
    return "waits-copies" if copies else "waits-reads"


_IDLE = {"gpu": 0.5, "cpu": 0.3, "runtime": 0.1, "other": 0.1}
_BUSY = {"gpu": 0.99, "cpu": 0.01, "runtime": 0.0, "other": 0.0}
_SYNCS = {"has_device": True, "sync_s": 0.04, "syncs_per_step": 3.0}
_WAIT = tensor_call("wait", "item", host_s=0.004)
_READ = {"name": "aten::_local_scalar_dense", "calls_per_step": 1.0, "self_s": 0.07}
_UNSEEN = {"operators": [_READ]}  # by a profiler that does not record the device
_ON_GPU = process(models=[{"ident": 0, "device": "npu:0"}], tensor_calls=[_WAIT])
_BLOCKED = "The host waits for the {device} {blocked:.0%} of {each_step}, in"
_IN_SYNCS = "{syncs:counted synchronisation}"
_IN_COPIES = "{copies:counted copy to the host, copies to the host}"
_IN_READS = "{reads:counted read of a value, reads of a value}"
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
        "waits-reads": f"{_BLOCKED} {_IN_READS} {_AT_MOST}",
        "call": "{location:place}: {name}, {times:counted time} {a_step}.",
    },
    examine=_examine,
    fires=[
        {**trace(**_SYNCS, shares=_IDLE), **process(tensor_calls=[_WAIT])},
        {
            **trace(**_SYNCS, shares={"gpu": 0.92, "cpu": 0.04, "data_loader": 0.04}),
            **process(loaders=[{"ident": 0, "num_workers": 0, "batches": 9}]),
        },
        {**trace(**_UNSEEN), **_ON_GPU},
    ],
    quiet=[
        trace(**_UNSEEN),  # a CPU's program
        {**trace(**_UNSEEN), "steps": {"device_busy_s": 0.0098}, **_ON_GPU},
        trace(**_SYNCS, shares=_BUSY),
        trace(**_SYNCS, after_sync_s=0.001, shares=_IDLE),  # hardly anything follows the waits
    ],
)
