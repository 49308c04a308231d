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

from torchdoctor.facts.analysed import ARRAYS, calls_of, how_often, share_of_step
from torchdoctor.facts.lookup import place
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, process

_NAMED = 3


def _examine(recording: Recording) -> Symptoms:
    calls = calls_of(recording, *ARRAYS)
    share = share_of_step(recording, calls)
    if share is None or share < CHECK.threshold:
        return
    yield Symptom(
        share=share,
        evidence=[
            f"{place(recording, call.location)}: torch.tensor of "
            f"{'a list of arrays' if call.kind == 'arrays-copy' else 'an array'}, "
            f"{how_often(call)}."
            for call in calls[:_NAMED]
        ],
        location=calls[0].location,
        severity="high" if share >= 0.1 else "moderate",
    )


_CALL = {
    "kind": "arrays-copy",
    "name": "tensor",
    "location": {"file": "/w/train.py", "line": 12},
    "calls_per_step": 1.0,
    "bytes_per_step": 4e6,
}
CHECK = CheckSpec(
    file=__file__,
    branch="cpu",
    threshold=0.01,
    unit="% of the step",
    source="torchdoctor: the least share worth a trial; TorchTidy looks for the same",
    examine=_examine,
    fires=[process(tensor_calls=[{**_CALL, "host_s": 0.004}])],
    quiet=[
        process(tensor_calls=[{**_CALL, "host_s": 1e-5}]),
        process(tensor_calls=[{**_CALL, "kind": "wait", "host_s": 0.004}]),
    ],
)
