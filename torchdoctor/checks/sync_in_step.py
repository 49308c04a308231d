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
One wait at the end of a step that reads the loss now and then.
"""

from torchdoctor.facts.analysed import calls_of
from torchdoctor.facts.lookup import (
    data_wait_share,
    device_busy,
    device_unseen,
    place,
    reading_wait_s,
    training_loaders,
)
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, process, tensor_call, trace
from torchdoctor.words.figures import counted

_NAMED = 4
_COPYING = ("cpu", "numpy", "tolist", "__repr__", "nonzero")


def _examine(recording: Recording) -> Symptoms:
    traced, calls = recording.trace, calls_of(recording, "wait")
    if traced is None or not traced.step_s:
        return
    loaders = training_loaders(recording)
    fetches = bool(loaders) and not loaders[0].num_workers  # while the GPU could compute
    waits = []
    if device_unseen(recording):
        # A copy to the host is an operator like one to the device: the noted calls tell.
        copies = ("aten::copy_",) if any(x.name in _COPYING for x in calls) else ()
        blocked = reading_wait_s(traced, *copies) / traced.step_s
        share = min(blocked, 1.0 - max(device_busy(recording) or 0.0, blocked))
        share -= 0.0 if fetches else data_wait_share(recording) or 0.0
    elif traced.sync_s is None:
        return
    else:
        blocked = (traced.sync_s + (traced.d2h_wait_s or 0.0)) / traced.step_s
        shares = traced.shares
        idle = (shares.cpu or 0.0) + (shares.runtime or 0.0) + (shares.other or 0.0)
        share = min(blocked, idle + (shares.data_loader or 0.0) * fetches)
        if traced.after_sync_s is not None:
            share = min(share, traced.after_sync_s / traced.step_s)
    if share < CHECK.threshold:
        return
    if traced.syncs_per_step:
        waits.append(counted(traced.syncs_per_step, "synchronisation"))
    if traced.d2h_copies and traced.d2h_wait_s:  # copies that hold nobody are left out
        waits.append(counted(traced.d2h_copies, "copy to the host", "copies to the host"))
    if not waits:
        waits.append(counted(sum(x.calls_per_step for x in calls) or 1.0, "read of a value"))
    yield Symptom(
        share=share,
        evidence=[
            f"The host waits for the GPU {blocked:.0%} of each step, in {' and '.join(waits)} a "
            f"step; what the GPU then waits for the host is at most {share:.0%}.",
            *(
                # For how long is not known: these steps waited for the analysis as well.
                f"{place(recording, call.location)}: {call.name.strip('_')}, "
                f"{counted(call.calls_per_step, 'time')} a step."
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
_READ = {"name": "aten::_local_scalar_dense", "calls_per_step": 1.0, "self_s": 0.07}
_UNSEEN = {"operators": [_READ]}  # by a profiler that does not record the device
_ON_GPU = process(models=[{"ident": 0, "device": "npu:0"}], tensor_calls=[_WAIT])
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor; Nsight Systems' expert rule cuda_api_sync lists the same calls",
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
