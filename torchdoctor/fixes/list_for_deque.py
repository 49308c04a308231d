"""Keep what is sampled at random in a list that is overwritten in a ring, not in a deque.

## What it does
Where `random.sample` draws from a `collections.deque`, puts a sequence of the same content, order
and `maxlen` in its place, which is a list inside. The same elements are drawn.

## Why it helps
A deque finds an element in its middle by walking there, through half a million of a million. A
list finds any at once.

## Risks
Code that asks whether it is a deque gets another answer. Taking elements from the left is slow.

## Make it permanent
    if len(self.memory) < self.capacity:      # self.memory = [], self.oldest = 0
        self.memory.append(transition)
    else:
        self.memory[self.oldest] = transition
        self.oldest = (self.oldest + 1) % self.capacity

## Sources
- Python documentation, deque: https://docs.python.org/3/library/collections.html#collections.deque
"""

import collections
import gc
import random
from collections.abc import MutableSequence
from typing import Any

from torchdoctor.edits import RingEdit
from torchdoctor.fixes._parts import SampledLines
from torchdoctor.queries.known_shapes import rows_of_shapes
from torchdoctor.schema import Example, FixSpec, Recording, Settings, StackSample

_SHAPES = ("sample-of-a-deque", "deque-indexed")


def _rows(recording: Recording) -> list[StackSample]:
    return rows_of_shapes(recording, *_SHAPES)


_LINES = SampledLines(
    rows=_rows, label="reading the deque", none="No line was seen that samples from a deque."
)


class _Ring(MutableSequence):  # type: ignore[type-arg]
    """A deque's content in a list: `start` is the place of the first element."""

    def __init__(self, content: Any, maxlen: int | None) -> None:
        self.items, self.start, self.maxlen = list(content), 0, maxlen

    def __len__(self) -> int:
        return len(self.items)

    def _place(self, index: int) -> int:
        count = len(self.items)
        if not -count <= index < count:
            raise IndexError("deque index out of range")
        return (self.start + index) % count

    def __getitem__(self, index: Any) -> Any:
        return self.items[self._place(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.items[self._place(index)] = value

    def __iter__(self) -> Any:
        yield from self.items[self.start :]
        yield from self.items[: self.start]

    def _straighten(self) -> None:
        self.items, self.start = list(self), 0

    def __delitem__(self, index: Any) -> None:
        self._straighten()
        del self.items[index]

    def insert(self, index: int, value: Any) -> None:
        self._straighten()
        self.items.insert(index, value)

    def append(self, value: Any) -> None:
        if self.maxlen is None or len(self.items) < self.maxlen:
            self._straighten() if self.start else None
            self.items.append(value)
        elif self.maxlen:
            self.items[self.start] = value
            self.start = (self.start + 1) % self.maxlen

    def appendleft(self, value: Any) -> None:
        self.insert(0, value)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            self.items.pop()

    def popleft(self) -> Any:
        return self.pop(0)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    placed: list[tuple[Any, str, Any, _Ring]] = []  # (owner, name, deque, ring)

    def make(old: Any) -> Any:
        def sample(population: Any, *args: Any, **kwargs: Any) -> Any:
            if type(population) is collections.deque and program.usable:
                ring = program.guarded(replaced, population)
                population = population if ring is None else ring
            return old(population, *args, **kwargs)

        return sample

    def replaced(population: Any) -> _Ring:
        ring = _Ring(population, population.maxlen)
        for holder in gc.get_referrers(population):
            for name in _names_of(population, holder):
                _bind(holder, name, ring)
                placed.append((holder, name, population, ring))
        if not placed:
            program.refuse("deque-is-local")
        program.applied()
        return ring

    def put_back() -> None:
        for holder, name, population, ring in placed:
            population.clear()
            population.extend(ring)
            _bind(holder, name, population)
        placed.clear()

    program.set_reason("drew-from-no-deque")
    program.replace(random, "sample", make)
    program.at_first_batch(lambda: None, put_back)


def _names_of(population: Any, holder: Any) -> list[Any]:
    """Return the keys of a dict, or the attributes of an object, that hold the deque."""
    held = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    return [name for name, value in held.items() if value is population]


def _bind(holder: Any, name: Any, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


_ROW: dict[str, Any] = {
    "location": {"file": "/w/train.py", "line": 12, "function": "sample"},
    "phase": "after_step",
    "count": 90,
    "text": "chosen = random.sample(self.memory, size)",
}
FIX: FixSpec = FixSpec(
    name="a list for the deque",
    treats=("hot-call", "inline-batch-preparation", "work-outside-model"),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.8,
    needs_finding=True,
    refuses=_LINES.refuses,
    sentences=_LINES.sentences
    | {
        "deque-is-local": "The deque is a local variable, which nobody else can replace.",
        "drew-from-no-deque": "random.sample drew from no deque.",
    },
    suits=lambda trace: False,
    touches=_LINES.touches,
    apply=apply,
    location=_LINES.location,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=lambda settings, recording: [
        RingEdit(file=row.location.file, line=row.location.line) for row in _rows(recording)[:1]
    ],
    example=Example(
        code="""
import collections, random
class Replay:
    def __init__(self):
        self.memory = collections.deque(range(5), maxlen=6)
random.seed(0)
replay, model, drawn = Replay(), torch.nn.Linear(1, 1), []
for step in range(5):
    replay.memory.append(10 + step)
    drawn.append(random.sample(replay.memory, 2))
    model(torch.ones(1)).sum().backward()
print(drawn, list(replay.memory), type(replay.memory).__name__)
""",
        without="[[3, 10], [1, 3], [11, 10], [11, 10], [12, 11]] [4, 10, 11, 12, 13, 14] deque",
        with_fix="[[3, 10], [1, 3], [11, 10], [11, 10], [12, 11]] [4, 10, 11, 12, 13, 14] _Ring",
    ),
)
