"""The training loop without the function that prepares its batches: what it returned, again.

Where no DataLoader feeds the loop, the function is the one that the loop itself calls on the way to
the line that the stacks showed. It is answered from memory only where something was learned since
the last answer, and with gradients, so that an evaluation that uses it gets batches of its own.
"""

import itertools
import os
import sys
from typing import Any

from torchdoctor.queries.stacks import inline_preparation
from torchdoctor.schema import AblationSpec, Recording, Settings

_LEAST_SHARE = 0.05  # as for a DataLoader
_OF_TORCH = f"{os.sep}torch{os.sep}"


def share(recording: Recording) -> float | None:
    preparation = inline_preparation(recording)
    return None if preparation is None else preparation.share


def settings(recording: Recording) -> Settings | None:
    """Return where the line is; None if batches come from a loader, or no line was seen."""
    preparation = inline_preparation(recording)
    steps = recording.steps
    if preparation is None or preparation.top is None or preparation.share < _LEAST_SHARE:
        return None
    if steps is None or steps.boundary.kind == "loader":
        return None
    where = preparation.top.location
    if where.function is None or where.function.startswith("<"):
        return None  # the loop's own lines: there is no call that could be answered
    return {"file": where.file, "function": where.function}


def apply(torch: Any, settings: Settings, program: Any) -> None:
    answered = _BatchFunction(torch, settings, program)
    program.set_reason("not-called-by-loop")
    program.restore_training()
    program.at_first_batch(answered.start, answered.stop)
    program.at("backward", answered.learns)


class _BatchFunction:
    """The function that is answered, and what it gave."""

    def __init__(self, torch: Any, settings: Settings, program: Any) -> None:
        self.torch = torch
        self.settings = settings
        self.program = program
        self.held = program.held_functions(
            generator=program.reason("generator-prepares"),
            unheld=program.reason("preparation-held-by-nobody"),
        )
        self.callers: list[Any] = []  # codes above the line that prepares, innermost first
        self.code: Any = None  # of the function that is answered; known once for all
        self.forget()

    def forget(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.given: set[Any] = set()  # keys that were answered, or kept, since the last backward

    def start(self) -> None:
        """Answer the function, or watch the one of the line until it is known which to answer."""
        self.forget()
        if self.code is not None:
            self.held.put(lambda code: code is self.code, self.answering)
            return
        is_of_line = self.program.is_at(self.settings["file"], self.settings["function"])
        self.held.put(is_of_line, self.watching)

    def stop(self) -> None:
        """Put the functions back as they were."""
        self.held.take_back()
        self.forget()

    def watching(self, old: Any) -> Any:
        """Note the callers of the function."""

        def function(*args: Any, **kwargs: Any) -> Any:
            self.callers = [self.program.undecorated(old).__code__, *_codes(sys._getframe(1))]
            return old(*args, **kwargs)

        return function

    def answering(self, old: Any) -> Any:
        """Return the last result, where something was learned since the last answer."""

        def function(*args: Any, **kwargs: Any) -> Any:
            # Which split is asked for matters; a number of the step does not.
            key = tuple(
                argument
                for argument in (*args, *kwargs.values())
                if isinstance(argument, (str, bool))
            )
            kept = self.program.guarded(self.look, key) if self.program.usable else None
            if kept is not None:
                return kept[0]
            value = old(*args, **kwargs)
            self.program.guarded(self.keep, key, value)
            return value

        return function

    def look(self, key: Any) -> tuple[Any] | None:
        """Return the kept result, if it may be given."""
        # Without gradients nothing is learned from it: an evaluation, which gets its own.
        if key not in self.kept or key in self.given or not self.torch.is_grad_enabled():
            return None
        self.given.add(key)
        batch = self.kept[key]
        if batch.is_changed():
            self.program.refuse("changes-its-batches")
        self.program.applied()
        return (batch.again(),)

    def keep(self, key: Any, value: Any) -> None:
        """Keep a result if it is a batch."""
        leaves = self.torch.utils._pytree.tree_leaves(value)
        if not any(
            isinstance(leaf, self.torch.Tensor) or self.program.is_array(leaf) for leaf in leaves
        ):
            self.program.refuse("returns-no-tensor")
        self.given.add(key)
        self.kept[key] = self.program.replayed(value)

    def learns(self) -> None:
        """Note that a backward begins: the loop's own function is one of those above it."""
        self.given.clear()
        if self.code is not None or not self.callers:
            return
        loop = {id(code) for code in _codes(sys._getframe(1))}
        on_the_way = itertools.takewhile(lambda code: id(code) not in loop, self.callers)
        # A decorator of torch's has one code for all.
        called = [code for code in on_the_way if _OF_TORCH not in code.co_filename]
        if not called:
            self.program.refuse("no-call-to-answer")
        self.code = called[-1]
        self.stop()
        self.start()


def _codes(frame: Any) -> list[Any]:
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


ABLATION = AblationSpec(
    whole=True,
    removes="the function that prepares its batches",
    branch="data_loader",
    share=share,
    settings=settings,
    apply=apply,
    sentences={
        "generator-prepares": "A generator prepares the batches: no call returns one.",
        "preparation-held-by-nobody": "The function that prepares batches is held by no module or "
        "class.",
        "not-called-by-loop": "The function that prepares batches was not called by the loop.",
        "returns-no-tensor": "The function that prepares batches returns no tensor or array.",
        "no-call-to-answer": "The loop prepares its batches itself: there is no call to answer.",
    },
)
