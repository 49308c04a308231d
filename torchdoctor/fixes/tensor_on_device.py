"""Make tensors on the device that uses them, and move those that never change only once.

## What it does
A tensor that a factory (`torch.zeros`, `torch.arange`, ...) made on the CPU and that was then moved
is made on that device at once. A tensor that is moved again, although nothing wrote to it since, is
answered by the copy that is already there.

## Why it helps
Each such move holds the host until it is done; filling a tensor on the device is a short kernel.

## Risks
Random tensors are left alone: a device's random numbers differ. `arange` and `linspace` of floating
point may differ in the last bit. Code between the two lines that needs it on the CPU would fail.

## Make it permanent
    mask = torch.zeros(n, device=device)       # instead of torch.zeros(n).to(device)
    noise = torch.randn(n, device=device)      # other random numbers, drawn by the device
    weights = weights.to(device)               # once, before the loop

## Sources
- PyTorch Tuning Guide: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

import os
from typing import Any

from torchdoctor.edits import Edit, OnDeviceEdit
from torchdoctor.fixes._parts import Lines
from torchdoctor.queries.analysed import TO_DEVICE
from torchdoctor.queries.touched import random_numbers
from torchdoctor.schema import Example, FixSpec, Recording, Settings, TensorCall, Touches

# Attributes of a tensor: the line that made it, and the copy that a line made of it.
_MADE = "_torchdoctor_made_at"
_COPY = "_torchdoctor_copy"


def _advise(call: TensorCall) -> str:
    if call.kind == "moved-again":
        return "move this tensor once, before the loop"
    random = "" if call.sure else "  # its random numbers will differ"
    return f"torch.{call.name}(..., device=device){random}"


_MOVED = Lines(
    kinds=TO_DEVICE,
    unseen="Moves to a device were",
    none="No tensor is made on the host and then moved, or moved again unchanged.",
    otherwise="where it is made",
    advise=_advise,
)


def settings(recording: Recording) -> list[Settings]:
    sure = [call for call in _MOVED.calls(recording) if call.sure]
    made = [
        [call.location.file, call.location.line, call.name]
        for call in sure
        if call.kind == "made-then-moved"
    ]
    moved = [
        [call.location.file, call.location.line] for call in sure if call.kind == "moved-again"
    ]
    return [{"made": made, "moved": moved}] if sure else []


def apply(torch: Any, settings: Settings, program: Any) -> None:
    program.set_reason("no-line-reached-twice")
    calls = _Calls(torch, settings, program)
    for name in {name for _, _, name in settings["made"]}:
        program.replace(torch, name, calls.make_factory)
    for name in ("to", program.accelerator.type):
        program.replace(torch.Tensor, name, calls.make_move)


class _Calls:
    """The factories and moves that stand for those of torch, on the noted lines alone."""

    def __init__(self, torch: Any, settings: Settings, program: Any) -> None:
        self._program = program
        self._made = {(os.path.realpath(file), line) for file, line, _ in settings["made"]}
        self._moved = {(os.path.realpath(file), line) for file, line in settings["moved"]}
        self._numbers = {line for _, line in self._made | self._moved}
        self._plain_types = (str, int, bool, type(None), torch.device, torch.dtype)
        self._devices: dict[Any, Any] = {}  # that the tensors of each line of `made` go to

    def make_factory(self, old: Any) -> Any:
        def factory(*args: Any, **kwargs: Any) -> Any:
            line = self._line_of(self._program.calling_frame())
            if line not in self._made or kwargs.get("device") is not None:
                return old(*args, **kwargs)
            if line in self._devices:
                self._program.applied()
                return old(*args, **{**kwargs, "device": self._devices[line]})
            result = old(*args, **kwargs)
            setattr(result, _MADE, line)
            return result

        return factory

    def make_move(self, old: Any) -> Any:
        def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            line = self._line_of(self._program.calling_frame())
            asked = None
            if line in self._moved and self._is_plain(args, kwargs) and not tensor.requires_grad:
                asked = line, args, kwargs, tensor._version
                copy = _unchanged_copy(tensor, asked)
                if copy is not None:
                    self._program.applied()
                    return copy
            result = old(tensor, *args, **kwargs)
            if result.device != tensor.device and hasattr(tensor, _MADE):
                self._devices[getattr(tensor, _MADE)] = result.device
            if asked is not None and result is not tensor:
                setattr(tensor, _COPY, (asked, result, result._version))
            return result

        return move

    def _line_of(self, frame: Any) -> tuple[str, int] | None:
        if frame is None or frame.f_lineno not in self._numbers:
            return None
        return os.path.realpath(frame.f_code.co_filename), frame.f_lineno

    def _is_plain(self, args: Any, kwargs: Any) -> bool:
        """Return whether the arguments of a move are values that two calls can be compared by."""
        return all(
            isinstance(argument, self._plain_types) for argument in (*args, *kwargs.values())
        )


def _unchanged_copy(tensor: Any, asked: Any) -> Any:
    """Return the last copy by the same call; None: it, or the tensor, was written to since."""
    last = getattr(tensor, _COPY, None)
    if last is None:
        return None
    last_asked, copy, version = last
    return copy if last_asked == asked and copy._version == version else None


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return edits of factories whose tensors are moved in the same expression."""
    calls = [call for call in _MOVED.calls(recording) if call.sure]
    if any(call.kind == "moved-again" for call in calls):
        return []  # half of what was measured is no patch for it
    return [
        OnDeviceEdit(file=call.location.file, line=call.location.line, maker=call.name)
        for call in calls
    ]


def touches(recording: Recording) -> Touches:
    """Return the noted calls; of a trace alone random numbers of the host, and their copies."""
    drawn = random_numbers(recording)
    return _MOVED.touches(recording) or (drawn or None)


FIX = FixSpec(
    name="make tensors on the device",
    treats=("host-made-tensors", "random-numbers-on-host"),
    keeps_results="within rounding",
    p_helps=0.6,  # the copy is seen in the loop
    touches=touches,
    refuses=_MOVED.refuses,
    sentences=_MOVED.sentences
    | {
        "no-line-reached-twice": "None of the lines seen before was reached twice.",
    },
    settings=settings,
    by_hand=_MOVED.by_hand,
    apply=apply,
    location=_MOVED.location,
    instruction=_MOVED.instruction,
    edits=edits,
    example=Example(
        code="""
class Moves(torch.overrides.TorchFunctionMode):
    count = 0
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.__name__ == "to" and result is not args[0]:
            Moves.count += 1
        return result
weights = torch.ones(3)
with Moves():
    for step in range(4):
        mask = torch.zeros(3).to("meta")
        copy = weights.to(torch.float64)
        assert mask.device.type == "meta" and copy.tolist() == weights.tolist()
        if step == 2:
            weights += 1
print("moves:", Moves.count)
torch.ones(1, requires_grad=True).sum().backward()
""",
        settings={"made": [["example.py", 13, "zeros"]], "moved": [["example.py", 14]]},
        without="moves: 8",
        with_fix="moves: 3",
    ),
)
