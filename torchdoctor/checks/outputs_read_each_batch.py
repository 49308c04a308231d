"""Inference reads its outputs after each batch, and the accelerator waits meanwhile.

## What it means
`.cpu()`, `.numpy()`, `.tolist()` or `.item()` behind the model's call waits until that batch is
computed. Only then does the host prepare and launch the next one, and the accelerator has nothing.

## What to do
Keep the outputs on the device and copy them once, after the loop or every so many batches. Where
each one is needed at once, read the batch before while the next one computes:
`output.to("cpu", non_blocking=True)` into pinned memory, and `torch.cuda.Event.synchronize()`.

## How it is measured
As in sync-in-step: the trace shows for how long the host is held, and what of it the device then
waits for the host. The lines are noted in a few steps after the profiler window.

## Not to be confused with
An answer that the caller waits for: there each batch has to be read before the next one comes.
"""

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
    reads = reads_of_outputs(recording)
    wait = host_wait(recording)
    if not recording.has_gpu or not reads or wait is None or wait.share < CHECK.threshold:
        return
    lines = [
        fact("read", location=call.location, name=call.name, times=call.calls_per_step)
        for call in reads[:_NAMED]
    ]
    yield Symptom(
        share=wait.share,
        evidence=[fact("waits", share=wait.share, blocked=wait.blocked), *lines],
        location=reads[0].location,
    )


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}, "forward_s": 0.01}
_ON_GPU = [{"ident": 0, "forwards": 9, "device": "cuda:0"}]
_READ = tensor_call("wait", "cpu", host_s=0.004, calls_per_step=1.0)
_WAITS = trace(
    has_device=True,
    d2h_wait_s=0.04,
    d2h_copies=1.0,
    sync_s=0.0,
    shares={"gpu": 0.5, "cpu": 0.3, "runtime": 0.1, "other": 0.1},
)
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as of sync-in-step",
    sentences={
        "waits": "The host waits for outputs {blocked:.0%} of {each_step}; what the {device} then "
        "waits for the host is at most {share:.0%}.",
        "read": "{location:place}: {name}, {times:counted time} {a_step}.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **_WAITS, **process(models=_ON_GPU, tensor_calls=[_READ])}],
    quiet=[
        {**_WAITS, **process(models=_ON_GPU, tensor_calls=[_READ])},  # it trains
        {  # now and then
            "steps": _STEPS,
            **_WAITS,
            **process(models=_ON_GPU, tensor_calls=[{**_READ, "calls_per_step": 0.1}]),
        },
        {  # on a CPU nothing waits
            "steps": _STEPS,
            **trace(operators=[{"name": "aten::copy_", "calls_per_step": 1.0, "self_s": 0.07}]),
            **process(models=[{"ident": 0, "forwards": 9}], tensor_calls=[_READ]),
        },
    ],
)
