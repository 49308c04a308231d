"""Share the memory of a NumPy array instead of copying it.

## What it does
Answers `torch.tensor(array)` from the array's own memory if nothing else holds the array, and
`torch.tensor([array, ...])` by letting NumPy join the arrays first; in loader workers too.

## Why it helps
`torch.tensor` always copies, and of a list of arrays it asks Python for every single element, which
is ten to a hundred times as slow as `numpy.array` of the list.

## Risks
Code that writes to the array later writes to the tensor too; the trial shares none held elsewhere.

## Make it permanent
    x = torch.as_tensor(array)                    # or torch.from_numpy(array)
    x = torch.as_tensor(np.array(list_of_arrays)) # of a list

## Sources
- PyTorch, torch.as_tensor: https://docs.pytorch.org/docs/stable/generated/torch.as_tensor.html
"""

import sys
from typing import Any

from torchdoctor.edits import AsTensorEdit
from torchdoctor.fixes._parts import Lines
from torchdoctor.queries.analysed import ARRAYS
from torchdoctor.schema import Example, FixSpec, Settings, TensorCall


def _advise(call: TensorCall) -> str:
    if call.kind == "arrays-copy":
        return "torch.as_tensor(np.array(...))  # np.array joins the list"
    return "torch.as_tensor(...)  # " + (
        "shares the array's memory" if call.sure else "if nothing writes to the array later"
    )


_COPIES = Lines(
    kinds=ARRAYS,
    unseen="Calls of torch.tensor were",
    none="The main process makes no tensor of a NumPy array by torch.tensor.",
    otherwise="where it is made",
    advise=_advise,
)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def make(old: Any) -> Any:
        def tensor(*args: Any, **kwargs: Any) -> Any:
            if len(args) != 1 or not kwargs.keys() <= {"dtype", "device"}:
                return old(*args, **kwargs)
            data = args[0]
            if type(data) in (list, tuple) and data and all(map(program.is_array, data)):
                alike = len({(a.shape, a.dtype) for a in data}) == 1
                array = sys.modules["numpy"].array(data) if alike else None
            # `data` is one more reference than there was when the count was taken.
            elif program.is_array(data) and sys.getrefcount(data) <= alone + 1:
                is_own = data.base is None and data.flags.writeable and data.flags.c_contiguous
                array = data if is_own else None
            else:
                return old(*args, **kwargs)
            if "device" not in kwargs and torch.empty(0).device.type != "cpu":
                return old(*args, **kwargs)  # a default device, to which it would have gone
            try:
                made = torch.from_numpy(array)
            except (TypeError, ValueError):  # None, or a type that torch has not
                return old(*args, **kwargs)
            program.applied()
            return made.to(**kwargs) if kwargs else made

        return tensor

    alone = program.temporary_count()
    program.set_reason("no-array-to-share")
    program.replace(torch, "tensor", make)


_SAME = """held elsewhere: [0.0, 0.0, 0.0]
same values: [[1.0, 1.0], [1.0, 1.0]] torch.float32 [[0, 1, 2], [0, 1, 2]] torch.int64
joined by NumPy: """

FIX = FixSpec(
    name="share NumPy's memory",
    treats=("copied-arrays",),
    keeps_results="exactly",
    p_helps=0.5,  # the copy is seen in the loop
    touches=_COPIES.touches,
    refuses=_COPIES.refuses,
    sentences=_COPIES.sentences
    | {
        "no-array-to-share": "No array that could be shared was seen.",
    },
    settings=lambda recording: [] if _COPIES.by_hand(recording) else [{}],
    by_hand=_COPIES.by_hand,
    apply=apply,
    location=_COPIES.location,
    instruction=_COPIES.instruction,
    edits=lambda _, recording: [
        AsTensorEdit(
            file=call.location.file, line=call.location.line, joined=call.kind == "arrays-copy"
        )
        for call in _COPIES.calls(recording)
        if call.sure
    ],
    example=Example(
        code="""
import numpy as np
held = np.zeros(3, dtype=np.float32)
kept = torch.tensor(held)
held[:] = 1
print("held elsewhere:", kept.tolist())
array, whole, calls = np.ones, np.array, []
lone = torch.tensor(array((2, 2), dtype=np.float64), dtype=torch.float32)
np.array = lambda *a, **k: calls.append(1) or whole(*a, **k)
rows = torch.tensor([np.arange(3), np.arange(3)])
print("same values:", lone.tolist(), lone.dtype, rows.tolist(), rows.dtype)
print("joined by NumPy:", bool(calls))
torch.ones(1, requires_grad=True).sum().backward()
""",
        without=f"{_SAME}False",
        with_fix=f"{_SAME}True",
    ),
)
