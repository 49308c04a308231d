"""Tensors are made on the host and moved to the device in every step.

## What it means
`torch.zeros(n).to(device)` fills host memory and copies it; `torch.zeros(n, device=device)` does
neither. A tensor that never changes (a mask, class weights, the mean of a normalization) needs to
be moved once, not at each step. Each such copy comes from pageable memory and holds the host.

## How it is measured
In a few steps after the profiler window, which are in no timing, torchdoctor notes two kinds of
moves with line, bytes and time. A factory of torch made the tensor on the CPU, and it was then
moved. Or a line moved the same tensor again, although nothing was written to it since.

## Not to be confused with
The batch itself, which is new in each step and has to be moved.
"""

from torchdoctor.queries.analysed import CALL_COST, TO_DEVICE, calls_of, costly_calls
from torchdoctor.schema import CheckSpec, Recording, Symptoms, process, tensor_call


def _examine(recording: Recording) -> Symptoms:
    return costly_calls(recording, calls_of(recording, *TO_DEVICE), CHECK.threshold)


_CALL = tensor_call("made-then-moved", "zeros", host_s=0.001)
CHECK = CheckSpec(
    branch="memcpy",
    threshold=0.01,
    unit="% of the step",
    source="torchdoctor: the least share worth a trial; TorchTidy looks for the same",
    sentences={
        "made-then-moved": "{location:place}: torch.{name}() is made on the CPU and then moved, "
        + CALL_COST,
        "moved-again": "{location:place}: the same unchanged tensor is moved again, " + CALL_COST,
    },
    examine=_examine,
    fires=[process(tensor_calls=[_CALL]), process(tensor_calls=[{**_CALL, "kind": "moved-again"}])],
    quiet=[process(tensor_calls=[{**_CALL, "host_s": 1e-6}])],
)
