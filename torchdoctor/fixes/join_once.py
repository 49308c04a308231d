"""Join what a loop collects once behind it, not in every turn.

## What it does
Where `torch.cat` gets its own last result and more rows, puts the rows behind those that are there,
in memory with room for as many again. The tensor that comes out holds the same values.

## Why it helps
Joining copies all that was collected so far. The time of a turn grows with their number.

## Risks
While it is tried, earlier results share memory with later ones: code that changes one in place is
refused. A list keeps its parts until they are joined, which takes the same memory once more.

## Make it permanent
    parts = []
    for batch in batches:
        parts.append(model(batch))            # not: all = torch.cat([all, model(batch)])
    all = torch.cat(parts)

## Sources
- PyTorch, torch.cat: https://docs.pytorch.org/docs/stable/generated/torch.cat.html
- Python documentation, list: https://docs.python.org/3/tutorial/datastructures.html
"""

import weakref
from typing import Any

from torchdoctor.edits import Edit, JoinedOnceEdit
from torchdoctor.fixes._parts import SampledLines
from torchdoctor.queries.known_shapes import rows_of_shapes
from torchdoctor.schema import Example, FixSpec, Recording, Settings, StackSample

_SHAPES = ("array-grown-in-a-loop", "history-joined-in-each-step")
_MOST_GROWING = 8  # tensors that grow at the same time


def _rows(recording: Recording) -> list[StackSample]:
    return rows_of_shapes(recording, *_SHAPES)


_LINES = SampledLines(
    rows=_rows, label="joining", none="No line was seen that joins all that was collected so far."
)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    return [
        JoinedOnceEdit(file=row.location.file, line=row.location.line)
        for row in _rows(recording)[:1]
    ]


class _Room:
    """Memory with room behind the rows of a tensor that grows: `rows` of it are taken."""

    def __init__(self, first: Any) -> None:
        self.rows = len(first)
        self.memory = first.new_empty((2 * self.rows, *first.shape[1:]))
        self.memory[: self.rows].copy_(first)
        self.version = _version(self.memory)

    def with_rows(self, more: Any) -> Any:
        """Return all rows and these behind them, in memory twice as large where it is full."""
        end = self.rows + len(more)
        if end > len(self.memory):
            larger = self.memory.new_empty((2 * end, *self.memory.shape[1:]))
            larger[: self.rows].copy_(self.memory[: self.rows])
            self.memory = larger
        self.memory[self.rows : end].copy_(more)
        self.rows = end
        self.version = _version(self.memory)
        return self.memory[:end]


def _version(tensor: Any) -> int:
    """Return how often a tensor was changed in place; an inference tensor does not count it."""
    return 0 if tensor.is_inference() else tensor._version


class _Growing:
    """The tensors that grow, each known by the result that was handed out last."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch = torch
        self.program = program
        self.results: list[tuple[Any, _Room | None]] = []  # (weak reference, its memory)

    def joined(self, args: Any, kwargs: Any) -> Any:
        """Return the joined tensor; None: this call is none that a loop grows by."""
        parts = self.parts(args, kwargs)
        if parts is None:
            return None
        first, more = parts
        known_result = next((entry for entry in self.results if entry[0]() is first), None)
        if known_result is None:
            return None
        self.results.remove(known_result)
        room = known_result[1] or _Room(first)
        if room.version != _version(room.memory):
            self.program.refuse("joined-changed-in-place")
        result = room.with_rows(more)
        self.hand_out(result, room)
        self.program.applied()
        return result

    def note(self, args: Any, kwargs: Any, result: Any) -> None:
        """Note what torch joined itself: the next call may make it longer."""
        if self.parts(args, kwargs) is not None and len(result):
            self.hand_out(result, None)

    def hand_out(self, result: Any, room: _Room | None) -> None:
        """Keep in mind what the program has now."""
        self.results.append((weakref.ref(result), room))
        del self.results[:-_MOST_GROWING]

    def parts(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Return the two tensors of a call that joins rows, without gradients."""
        if len(args) not in (1, 2) or kwargs.keys() - {"dim"}:
            return None
        tensors = args[0]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        if dim != 0 or not isinstance(tensors, (list, tuple)) or len(tensors) != 2:
            return None
        first, more = tensors
        plain = all(type(tensor) is self.torch.Tensor for tensor in (first, more))
        if not plain or first.requires_grad or more.requires_grad:
            return None
        kinds = [(t.dtype, t.device, t.layout, t.shape[1:]) for t in (first, more)]
        rows = first.dim() > 0 and first.layout == self.torch.strided
        return (first, more) if rows and kinds[0] == kinds[1] else None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    growing = _Growing(torch, program)

    def make(old: Any) -> Any:
        def cat(*args: Any, **kwargs: Any) -> Any:
            if not program.usable:
                return old(*args, **kwargs)
            joined = program.guarded(growing.joined, args, kwargs)
            if joined is not None:
                return joined
            result = old(*args, **kwargs)
            program.guarded(growing.note, args, kwargs, result)
            return result

        return cat

    program.set_reason("never-joined-again")
    program.replace(torch, "cat", make)


_ROW: dict[str, Any] = {
    "location": {"file": "/w/infer.py", "line": 12, "function": "<module>"},
    "phase": "other",
    "count": 90,
    "text": "embeddings = torch.cat([embeddings, out])",
}
FIX: FixSpec = FixSpec(
    name="join once",
    treats=("growing-step", "hot-call", "work-outside-model", "inline-batch-preparation"),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.8,
    needs_finding=True,
    refuses=_LINES.refuses,
    sentences=_LINES.sentences
    | {
        "joined-changed-in-place": "The program changes in place what it joins.",
        "never-joined-again": "torch.cat never got its own last result.",
    },
    suits=lambda trace: False,
    touches=_LINES.touches,
    apply=apply,
    location=_LINES.location,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    example=Example(
        code="""
model, kept, places = torch.nn.Linear(2, 2), torch.empty(0, 2), set()
data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2))
for (batch,) in torch.utils.data.DataLoader(data):
    kept = torch.cat([kept, batch])
    places.add(kept.data_ptr())
    model(batch).sum().backward()
print("few places:", len(places) < 10, kept.shape[0], kept.sum().item())
""",
        without="few places: False 20 780.0",
        with_fix="few places: True 20 780.0",
    ),
)
