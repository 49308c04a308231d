"""Read the original in place of a copy that is only read.

## What it does
Answers `tensor.clone()` and `copy.deepcopy(...)` of tensors, or of lists and dictionaries of them,
with the original at the lines that the sampled stacks show. First it copies as ever, and looks
whether the copy or its original is written to while the copy lives; it goes on looking later, and
ends where one is.

## Why it helps
A copy writes every byte again, into memory that has to be found first. `deepcopy` goes through each
object in Python as well.

## Risks
Code that changes the copy, or the original while the copy is still read, needs the copy. The trial
sees only what the observed steps do.

## Make it permanent
    kept = x              # not x.clone(), nor copy.deepcopy(x)
    kept = x.detach()     # where the graph must not be kept
    kept = dict(batch)    # a dictionary of its own, of the same tensors

## Sources
- PyTorch, torch.clone: https://docs.pytorch.org/docs/stable/generated/torch.clone.html
- Python documentation, copy: https://docs.python.org/3/library/copy.html
"""

import copy
import os
import weakref
from typing import Any

from torchdoctor.edits import Edit, ReadOriginalEdit
from torchdoctor.fixes._parts import SampledLines
from torchdoctor.queries.copies import copies_tensors, copying_code
from torchdoctor.schema import Example, FixSpec, Recording, Settings, StackSample

_ENOUGH = 3  # copies that were only read, and are gone
_MOST = 40  # copies that are watched; by then enough of them were to be gone


def _rows(recording: Recording) -> list[StackSample]:
    code = [each for each in copying_code(recording) if copies_tensors(each)]
    return code[0].rows if code else []


_LINES = SampledLines(
    rows=_rows,
    label="the copies",
    none="No line was seen that copies tensors for long.",
    moves="copies",
)


def settings(recording: Recording) -> list[Settings]:
    rows = _rows(recording)
    return [{"file": rows[0].location.file, "lines": sorted({row.location.line for row in rows})}]


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    # Of several lines a trial may have answered one alone: which copy was only read is not known.
    lines = settings["lines"] if len(settings["lines"]) == 1 else []
    return [ReadOriginalEdit(file=settings["file"], line=line) for line in lines]


class _Watched:
    """Whether copies and their originals were written to while the copies lived."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch = torch
        self.program = program
        self.copies = self.gone = 0
        self.original_changed = self.copy_changed = False

    @property
    def may_share(self) -> bool:
        """Return True if enough copies were only read; refuse where one was written to."""
        if self.original_changed:
            self.program.refuse("original-is-changed")
        if self.copy_changed:
            self.program.refuse("copy-is-changed")
        if self.gone < _ENOUGH and self.copies >= _MOST:
            self.program.refuse("copies-are-kept")
        return self.gone >= _ENOUGH

    def leaves(self, value: Any) -> list[Any]:
        """Return the tensors of a value; refuse where it holds anything else that may change."""
        leaves = self.torch.utils._pytree.tree_leaves(value)
        plain = (int, float, str, bytes, bool, type(None))
        tensors = [leaf for leaf in leaves if isinstance(leaf, self.torch.Tensor)]
        if not tensors or any(not isinstance(leaf, (self.torch.Tensor, *plain)) for leaf in leaves):
            self.program.refuse("copies-other-objects")
        return tensors

    def watch(self, originals: list[Any], copies: list[Any]) -> None:
        """Look when each copy is gone whether it or its original was written to."""
        for original, copied in zip(originals, copies, strict=True):
            self.copies += 1
            # Both share their version with what they were detached from.
            both = original.detach(), copied.detach()
            versions = [tensor._version for tensor in both]
            weakref.finalize(copied, self.ended, both, versions).atexit = False

    def ended(self, both: Any, versions: list[int]) -> None:
        self.gone += 1
        original, copied = (
            tensor._version != version for tensor, version in zip(both, versions, strict=True)
        )
        self.original_changed = self.original_changed or original
        self.copy_changed = self.copy_changed or copied

    def share(self, value: Any) -> Any:
        """Return tensors of the same memory, in containers of their own."""
        shared = self.torch.utils._pytree.tree_map(self._alias, value)
        originals = self.leaves(value)
        copies = self.leaves(shared)
        self.watch(originals, copies)
        self.program.applied()
        return shared

    def _alias(self, leaf: Any) -> Any:
        return leaf.view_as(leaf) if isinstance(leaf, self.torch.Tensor) else leaf


def apply(torch: Any, settings: Settings, program: Any) -> None:
    watched, lines = _Watched(torch, program), set(settings["lines"])
    file = os.path.abspath(settings["file"])

    def is_meant() -> bool:
        frame = program.calling_frame()
        at_line = frame is not None and frame.f_lineno in lines
        return at_line and os.path.abspath(frame.f_code.co_filename) == file

    def answered(value: Any) -> Any:
        """Return (the original,), or None where it is to be copied."""
        watched.leaves(value)
        return (watched.share(value),) if watched.may_share else None

    def make(old: Any) -> Any:
        def function(value: Any, *args: Any, **kwargs: Any) -> Any:
            plain = not args and not kwargs and program.usable
            if not plain or not is_meant():
                return old(value, *args, **kwargs)
            answer = program.guarded(answered, value)
            if answer is not None:
                return answer[0]
            copied = old(value)
            if program.usable:
                program.guarded(lambda: watched.watch(*map(watched.leaves, (value, copied))))
            return copied

        return function

    program.set_reason("nothing-copied")
    program.replace(torch.Tensor, "clone", make)
    program.replace_function(copy.__file__, "deepcopy", make)


FIX: FixSpec = FixSpec(
    name="read without a copy",
    treats=("copied-objects",),
    keeps_results="exactly",
    keeps_but="only while neither the copy nor its original is changed",
    when="between steps",
    p_helps=0.5,
    needs_finding=True,
    refuses=_LINES.refuses,
    sentences=_LINES.sentences
    | {
        "original-is-changed": "The original is changed while the copy lives.",
        "copy-is-changed": "The copy is changed.",
        "copies-are-kept": "The copies are kept, so what becomes of them cannot be told.",
        "copies-other-objects": "It copies other objects than tensors: only the source tells more.",
        "nothing-copied": "Nothing was copied there.",
    },
    suits=lambda trace: False,
    settings=settings,
    says=lambda settings: "read the original in place of its copy",
    touches=_LINES.touches,
    apply=apply,
    location=_LINES.location,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    example=Example(
        code="""
model, shared = torch.nn.Linear(4, 1), []
data = torch.utils.data.TensorDataset(torch.ones(80, 4))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    kept = batch.clone()
    shared.append(kept.data_ptr() == batch.data_ptr())
    model(batch).sum().backward()
print("copied at first:", not shared[0], "shared:", any(shared))
""",
        settings={"file": "example.py", "lines": [6]},
        without="copied at first: True shared: False",
        with_fix="copied at first: True shared: True",
    ),
)
