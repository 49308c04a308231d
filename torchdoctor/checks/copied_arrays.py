"""NumPy arrays are copied to make tensors of them.

## What it means
`torch.tensor(array)` copies; `torch.from_numpy(array)` and `torch.as_tensor(array)` share the
memory. With a *list* of arrays, `torch.tensor` is worse: it goes through Python for every element.

## How it is measured
torchdoctor notes the calls of `torch.tensor` in the training process, with line, bytes and time, in
a few steps after the profiler window. These steps are in no timing.

## Not to be confused with
A copy that the program needs because it writes to the array afterwards. Calls in loader workers are
not noted: a slow data set shows as waiting for data.
"""

from torchdoctor.queries.analysed import ARRAYS, CALL_COST, calls_of, costly_calls
from torchdoctor.schema import CheckSpec, Recording, Symptoms, process, tensor_call


def _examine(recording: Recording) -> Symptoms:
    return costly_calls(recording, calls_of(recording, *ARRAYS), CHECK.threshold)


_CALL = tensor_call("arrays-copy", "tensor", host_s=0.004)
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.01,
    unit="% of the step",
    source="torchdoctor: the least share worth a trial; TorchTidy looks for the same",
    sentences={
        "array-copy": "{location:place}: torch.tensor of an array, " + CALL_COST,
        "arrays-copy": "{location:place}: torch.tensor of several arrays, " + CALL_COST,
    },
    examine=_examine,
    fires=[process(tensor_calls=[_CALL])],
    quiet=[process(tensor_calls=[{**_CALL, "host_s": 1e-5}])],
)
