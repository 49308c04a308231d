"""NumPy arrays are copied to make tensors of them.

What it means
-------------
`torch.tensor(array)` copies; `torch.from_numpy(array)` and `torch.as_tensor(array)` share the
memory. Of a *list* of arrays, `torch.tensor` is worse: it goes through Python for every element.

How it is measured
------------------
Calls of `torch.tensor` in the training process, with their line, bytes and time, in a few steps
after the profiler window, which are in no timing.

Not to be confused with
-----------------------
A copy that is wanted because somebody writes to the array afterwards. What loader workers do is not
seen: a slow dataset shows as waiting for data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0.01
THRESHOLD_UNIT = "% of the step"
THRESHOLD_SOURCE = "torchdoctor: the least share worth a trial; TorchTidy looks for the same"
_NAMED = 3


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.analysed import ARRAYS, calls_of, how_often, share_of_step
    from torchdoctor.facts.lookup import place
    from torchdoctor.words import Finding

    calls = calls_of(recording, *ARRAYS)
    share = share_of_step(recording, calls)
    if share is None or share < THRESHOLD:
        return []
    evidence = [
        f"{place(recording, call.location, '')}: torch.tensor of "
        f"{'a list of arrays' if call.kind == 'arrays-copy' else 'an array'}, {how_often(call)}."
        for call in calls[:_NAMED]
    ]
    return [
        Finding(
            check="copied-arrays",
            share_of_step=share,
            evidence=evidence,
            location=calls[0].location,
            severity="high" if share >= 0.1 else "moderate",
        )
    ]


_CALL = {
    "kind": "arrays-copy",
    "name": "tensor",
    "location": {"file": "/w/train.py", "line": 12},
    "calls_per_step": 1.0,
    "bytes_per_step": 4e6,
    "sure": True,
}
FIRES = [
    {"processes": [{"pid": 1, "analysed_steps": 6, "tensor_calls": [{**_CALL, "host_s": 0.004}]}]}
]
QUIET = [
    {"processes": [{"pid": 1, "analysed_steps": 6, "tensor_calls": [{**_CALL, "host_s": 1e-5}]}]},
    {"processes": [{"pid": 1, "tensor_calls": [{**_CALL, "kind": "wait", "host_s": 0.004}]}]},
]
