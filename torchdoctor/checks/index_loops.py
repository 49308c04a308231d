"""A Python loop goes through a tensor element by element.

## What it means
`for i in range(n): x[i] ...` dispatches an operator for each element: microseconds for what takes
nanoseconds in one operator over the whole tensor. The same holds for `.item()` in such a loop. On
a GPU each turn launches kernels, and each `.item()` waits for them.

## How it is measured
In a few steps after the profiler window, which are in no timing, torchdoctor notes calls that read
or write a few elements at one place (whole numbers as index, `.item()`), with the time of the
loop's turns. Turns of more than a millisecond and pieces of more than 1024 elements do not count,
nor does a data set that is asked for its samples. The time includes the hooks' own cost, some
microseconds a call. Indexing is not noted in programs that torch.compile has compiled, or that
train within a torch function mode (`torch.device` as a context, `torch.set_default_device`).

## Not to be confused with
A recurrent network that goes through time, whose turns depend on each other: there the loop has to
stay, or become the layer that PyTorch has for it.
"""

from typing import Any

from torchdoctor.facts.analysed import element_loops, share_of_step
from torchdoctor.facts.lookup import place
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, process

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
                f"{place(recording, loop.location)}: {loop.calls_per_step:.0f} turns a step, "
                f"at most {loop.host_s * 1e3:.2f} ms: {loop.text}"
                for loop in loops[:_NAMED]
            ),
            "One operator over the whole tensor does the same in microseconds.",
        ],
        location=loops[0].location,
    )


def _calls(lines: int = 1, **changes: object) -> dict[str, Any]:
    """Return a loop in which each line was noted with the time of the whole turn."""
    call = {
        "kind": "element",
        "name": "__getitem__",
        "text": "total += x[i]",
        "calls_per_step": 256.0,
        "host_s": 0.001,
        **changes,
    }
    places = [{"file": "/w/train.py", "line": 12 + i, "function": "train"} for i in range(lines)]
    return process(tensor_calls=[{**call, "location": at} for at in places])


CHECK = CheckSpec(
    file=__file__,
    branch="cpu",
    threshold=0.02,
    unit="% of the step",
    source="torchdoctor: the least share worth a change; TorchTidy looks for the same",
    examine=_examine,
    fires=[_calls(), _calls(lines=2)],
    quiet=[
        _calls(host_s=1e-5),
        _calls(calls_per_step=10.0),
        _calls(kind="wait"),
        _calls(lines=2, host_s=0.00015),
    ],
)
