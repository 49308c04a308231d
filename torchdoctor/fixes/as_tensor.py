"""Share the memory of a NumPy array instead of copying it.

What it does
------------
Answers `torch.tensor(array)` from the array's own memory if nothing else holds the array, and
`torch.tensor([array, ...])` by letting NumPy join the arrays first; in loader workers too.

Why it helps
------------
`torch.tensor` always copies, and of a list of arrays it asks Python for every single element, which
is ten to a hundred times as slow as `numpy.array` of the list. `torch.as_tensor` and
`torch.from_numpy` copy nothing.

Risks
-----
Values and types are the same. Tensor and array share memory: code that writes to the array later
writes to the tensor too. The trial shares only arrays that nothing else holds; check that by hand
elsewhere.

Make it permanent
-----------------
    x = torch.as_tensor(array)                    # or torch.from_numpy(array)
    x = torch.as_tensor(np.array(list_of_arrays)) # of a list

Sources
-------
- PyTorch documentation, torch.as_tensor and torch.from_numpy:
  https://docs.pytorch.org/docs/stable/generated/torch.as_tensor.html
- PyTorch documentation, torch.utils.data (creating tensors in a dataset):
  https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import sys
from typing import Any

from torchdoctor.edits import AsTensorEdit, Edit
from torchdoctor.facts.analysed import ARRAYS, calls_of
from torchdoctor.facts.lookup import place
from torchdoctor.words import Recording, TensorCall
from torchdoctor.words.specs import Example, FixSpec


def refuses(recording: Recording) -> str | None:
    """Return why there is nothing to share."""
    if not recording.main.analysed_steps:
        return (
            "Calls of torch.tensor were not looked at: that needs steps after the profiler window."
        )
    if not _copies(recording):
        return "The training process makes no tensor of a NumPy array by torch.tensor."
    return None


def _copies(recording: Recording) -> list[TensorCall]:
    return calls_of(recording, *ARRAYS)


def by_hand(recording: Recording) -> bool:
    """Return True if something else holds every copied array: only a person can tell then."""
    return not any(call.sure for call in _copies(recording))


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return one setting without values, or none if only the source can do it."""
    return [] if by_hand(recording) else [{}]


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Replace torch.tensor by one that shares."""

    def make(old: Any) -> Any:
        def tensor(*args: Any, **kwargs: Any) -> Any:
            if len(args) != 1 or not kwargs.keys() <= {"dtype", "device"}:
                return old(*args, **kwargs)
            data = args[0]
            if type(data) in (list, tuple) and data and all(map(_is_array, data)):
                share = _joined
            # `data` is one more reference than there was when the count was taken.
            elif _is_array(data) and sys.getrefcount(data) <= alone + 1:
                share = _shared
            else:
                return old(*args, **kwargs)
            if "device" not in kwargs and torch.empty(0).device.type != "cpu":
                return old(*args, **kwargs)  # a default device, to which it would have gone
            made = share(torch, data)
            if made is None:
                return old(*args, **kwargs)
            program.applied()
            return made.to(**kwargs) if kwargs else made

        return tensor

    alone = _count_of_a_temporary()
    program.set_reason("No array that could be shared came by.")
    program.replace(torch, "tensor", make)


def _is_array(value: Any) -> bool:
    cls = type(value)
    return cls.__module__ == "numpy" and cls.__name__ == "ndarray"


def _joined(torch: Any, data: Any) -> Any:
    first = data[0]
    if any(a.shape != first.shape or a.dtype != first.dtype for a in data):
        return None
    try:
        return torch.from_numpy(sys.modules["numpy"].array(data))
    except (TypeError, ValueError):  # a type that torch has not
        return None


def _shared(torch: Any, data: Any) -> Any:
    flags = data.flags
    if data.base is not None or not (flags.writeable and flags.c_contiguous):
        return None
    try:
        return torch.from_numpy(data)
    except (TypeError, ValueError):
        return None


def _count_of_a_temporary() -> int:
    """Return the reference count, in `*args`, of an object that nothing else holds."""
    if sys.version_info >= (3, 14):
        return -1  # a caller's own reference may be borrowed there: nothing can be told

    def held(*args: Any, **kwargs: Any) -> int:
        return sys.getrefcount(args[0])

    return held(bytearray())


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return each line, and what to write."""
    lines = []
    for call in _copies(recording):
        where = place(recording, call.location, "where it is made")
        if call.kind == "arrays-copy":
            lines.append(f"{where}  torch.as_tensor(np.array(...))  # np.array joins the list")
        elif call.sure:
            lines.append(f"{where}  torch.as_tensor(...)  # shares the array's memory")
        else:
            lines.append(f"{where}  torch.as_tensor(...)  # if nothing writes to the array later")
    return "\n".join(lines)


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Return the lines whose arrays nobody else holds."""
    return [
        AsTensorEdit(
            file=call.location.file, line=call.location.line, joined=call.kind == "arrays-copy"
        )
        for call in _copies(recording)
        if call.sure
    ]


_SAME = """held elsewhere: [0.0, 0.0, 0.0]
same values: [[1.0, 1.0], [1.0, 1.0]] torch.float32 [[0, 1, 2], [0, 1, 2]] torch.int64
joined by NumPy: """

FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("copied-arrays",),
    keeps_results="exactly",
    when="launch",
    p_helps=0.5,  # the copy is seen in the loop
    refuses=refuses,
    settings=settings,
    by_hand=by_hand,
    apply=apply,
    location=lambda recording: next((call.location for call in _copies(recording)), None),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import numpy as np
import torch

held = np.zeros(3, dtype=np.float32)
kept = torch.tensor(held)
held[:] = 1
print("held elsewhere:", kept.tolist())
made = []
array = np.ones
lone = torch.tensor(array((2, 2), dtype=np.float64), dtype=torch.float32)
rows = torch.tensor([np.arange(3), np.arange(3)])
print("same values:", lone.tolist(), lone.dtype, rows.tolist(), rows.dtype)
whole = np.array
calls = []
np.array = lambda *a, **k: calls.append(1) or whole(*a, **k)
torch.tensor([np.arange(3), np.arange(3)])
print("joined by NumPy:", bool(calls))
torch.ones(1, requires_grad=True).sum().backward()
""",
        without=f"{_SAME}False",
        with_fix=f"{_SAME}True",
    ),
)
