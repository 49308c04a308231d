"""A Python loop goes through a tensor element by element.

What it means
-------------
`for i in range(n): x[i] ...` dispatches an operator for each element: microseconds for what takes
nanoseconds in one operator over the whole tensor. The same holds for `.item()` in such a loop. On
a GPU each turn launches kernels, and each `.item()` waits for them.

How it is measured
------------------
In a few steps after the profiler window, which are in no timing: calls that read or write a few
elements at one place (whole numbers as index, `.item()`), by line, with the time of the loop's
turns. Turns of more than a millisecond and pieces of more than 1024 elements do not count: there
is something to compute in them. Nor does a data set that is asked for its samples. The hooks' own
cost, some microseconds a call, is part of the time. Indexing is not looked at in programs that
torch.compile has compiled or that train within a torch function mode (`torch.device` as a context,
`torch.set_default_device`), and what happens outside these few steps (a rollout between updates)
is not seen.

Not to be confused with
-----------------------
A recurrent network that goes through time, whose turns depend on each other: there the loop has to
stay, or become the layer that PyTorch has for it.
"""

from collections.abc import Iterator

from torchdoctor.facts.analysed import element_loops, share_of_step
from torchdoctor.facts.lookup import place
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.02  # of the step
_FEWEST = 16  # turns a step
_NAMED = 3


def _examine(recording: Recording) -> Iterator[Symptom]:
    loops = [x for x in element_loops(recording) if x.calls_per_step >= _FEWEST]
    share = share_of_step(recording, loops)
    if share is None or share < THRESHOLD:
        return
    evidence = [
        f"{place(recording, loop.location, '')}: {loop.calls_per_step:.0f} turns a step, "
        f"at most {loop.host_s * 1e3:.2f} ms: {loop.text}"
        for loop in loops[:_NAMED]
    ]
    evidence.append("One operator over the whole tensor does the same in microseconds.")
    yield Symptom(
        share=share,
        evidence=evidence,
        location=loops[0].location,
    )


_CALL = {
    "kind": "element",
    "name": "__getitem__",
    "location": {"file": "/w/train.py", "line": 12},
    "text": "total += x[i]",
    "calls_per_step": 256.0,
    "host_s": 0.001,
    "sure": True,
}


def _calls(**changes: object) -> dict[str, object]:
    return {"processes": [{"pid": 1, "analysed_steps": 6, "tensor_calls": [{**_CALL, **changes}]}]}


def _two_lines(host_s: float, function: str) -> dict[str, object]:
    """Of one function; each line was noted with the time of the whole turn."""
    places = [{"file": "/w/train.py", "line": line, "function": function} for line in (12, 13)]
    rows = [{**_CALL, "host_s": host_s, "location": place} for place in places]
    return {"processes": [{"pid": 1, "analysed_steps": 6, "tensor_calls": rows}]}


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: the least share worth a change; TorchTidy looks for the same",
    examine=_examine,
    fires=[_calls(), _two_lines(0.001, "train")],
    quiet=[
        _calls(host_s=1e-5),
        _calls(calls_per_step=10.0),
        _calls(kind="wait"),
        _two_lines(0.00015, "train"),
    ],
)
