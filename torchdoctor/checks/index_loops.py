"""A Python loop goes through a tensor element by element.

## What it means
`for i in range(n): x[i] ...` dispatches an operator for each element: microseconds for what takes
nanoseconds in one operator over the whole tensor. The same holds for `.item()` in such a loop. On
a GPU each turn launches kernels, and each `.item()` waits for them.

## How it is measured
In a few steps after the profiler window, which are in no timing, torchdoctor notes calls that read
or write a few elements at one place (whole numbers as index, `.item()`), with the time of the
loop's turns, the hooks' own microseconds included. Turns of more than a millisecond and pieces of
more than 1024 elements do not count. Indexing is not noted in compiled programs and within a torch
function mode (`torch.device` as a context, `torch.set_default_device`).

## Not to be confused with
A recurrent network that goes through time, whose turns depend on each other: there the loop has to
stay, or become the layer that PyTorch has for it.
"""

from torchdoctor.queries.analysed import element_loops, share_of_step
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_FEWEST = 16  # turns a step
_NAMED = 3


def _examine(recording: Recording) -> Symptoms:
    loops = [loop for loop in element_loops(recording) if loop.calls_per_step >= _FEWEST]
    share = share_of_step(recording, loops)
    if share is None or share < CHECK.threshold:
        return
    yield Symptom(
        share=share,
        evidence=[
            *(
                fact(
                    "loop",
                    location=loop.location,
                    turns=loop.calls_per_step,
                    seconds=loop.host_s,
                    text=loop.text,
                )
                for loop in loops[:_NAMED]
            ),
            fact("one-operator"),
        ],
        location=loops[0].location,
    )


_LOOP = {
    "kind": "element",
    "name": "__getitem__",
    "location": {"file": "/w/train.py", "line": 12, "function": "train"},
    "calls_per_step": 256.0,
    "host_s": 0.00015,
}
_NEXT = {**_LOOP, "location": {"file": "/w/train.py", "line": 13, "function": "train"}}
_SLOW = {**_LOOP, "host_s": 0.001}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.02,
    unit="% of the step",
    source="torchdoctor: the least share worth a change; TorchTidy looks for the same",
    sentences={
        "loop": "{location:place}: {turns:.0f} turns {a_step}, at most {seconds:seconds}: {text}",
        "one-operator": "One operator over the whole tensor does the same in microseconds.",
    },
    examine=_examine,
    fires=[process(tensor_calls=[_SLOW])],
    quiet=[
        process(tensor_calls=[{**_SLOW, "calls_per_step": 10.0}]),
        process(tensor_calls=[_LOOP, _NEXT]),  # each line was noted with the time of the whole turn
    ],
)
