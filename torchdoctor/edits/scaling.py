"""Puts the backward pass and the optimizer's step through a gradient scaler.

`loss.backward()` becomes `scaler.scale(loss).backward()`, the step `scaler.step(optimizer)` with
`scaler.update()` after it. The edit is made only where the program has one backward pass and one
optimizer's step, both statements of one block: another pass would need calls of its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import libcst as cst
from libcst import matchers

from torchdoctor.edits import ScaledStepEdit
from torchdoctor.edits.changes import Around, Changes, Inserted, Replaced
from torchdoctor.edits.syntax import Block, Program, called, last_name, source_of

_OPTIMIZER = "opt"  # in the name of what is stepped; a scheduler's steps are its own
# Past the step without `update()`, the scaler refuses the next `unscale_()`.
_LEAVES = matchers.OneOf(
    matchers.Continue(), matchers.Break(), matchers.Return(), matchers.Raise(), matchers.Yield()
)


class _MethodCall(NamedTuple):
    """A statement of a block that calls a method and nothing else: `loss.backward()`."""

    number: int
    owner: cst.BaseExpression  # `loss`


def scaled_step(program: Program, edit: ScaledStepEdit) -> Changes | None:
    """Put `loss.backward()` ... `optimizer.step()` of one block through the scaler."""
    scaler = edit.scaler
    if f"{scaler}.scale(" in program.code:
        return []
    place = program.statement_at(edit.line)
    if place is None or scaler in program.code:
        return None  # a name of the user's
    block, number = place
    loss = _receiver(block.body[number], "backward")
    step = _only_step(block, number + 1)
    if loss is None or step is None or _count_learning_calls(program) != 2:
        return None
    between = block.body[number + 1 : step.number]
    if _may_leave(between):
        return None
    changes = [
        *_through(program, block.body[number], loss, f"{scaler}.scale(", ").backward()"),
        *_through(program, block.body[step.number], step.owner, f"{scaler}.step(", ")"),
        _added_after(block, step.number, f"{scaler}.update()"),
    ]
    if between:
        # They may clip the gradients, or look at them.
        unscaling = f"{scaler}.unscale_({source_of(step.owner)})"
        changes.append(_added_after(block, number, unscaling))
    return changes


def _only_step(block: Block, first: int) -> _MethodCall | None:
    """Return the block's optimizer step, from a statement on; None: there are none or several."""
    steps = []
    for number, statement in enumerate(block.body[first:], first):
        owner = _receiver(statement, "step")
        if owner is not None and _is_optimizer(owner):
            steps.append(_MethodCall(number, owner))
    return steps[0] if len(steps) == 1 else None


def _count_learning_calls(program: Program) -> int:
    """Return how many backward passes and optimizer's steps the whole program has."""
    methods = [
        call.func
        for call in program.calls("backward", "step")
        if isinstance(call.func, cst.Attribute)
    ]
    return sum(func.attr.value == "backward" or _is_optimizer(func.value) for func in methods)


def _is_optimizer(node: cst.BaseExpression) -> bool:
    return _OPTIMIZER in last_name(node).lower()


def _may_leave(statements: Sequence[cst.CSTNode]) -> bool:
    """Return True if the step behind these statements may be passed over."""
    return any(matchers.findall(statement, _LEAVES) for statement in statements)


def _receiver(statement: cst.CSTNode, method: str) -> cst.BaseExpression | None:
    """Return `loss` of the statement `loss.backward()`; None for anything else."""
    call = called(statement)
    if call is None or call.args or not isinstance(call.func, cst.Attribute):
        return None
    return call.func.value if call.func.attr.value == method else None


def _through(
    program: Program, statement: cst.CSTNode, owner: cst.BaseExpression, before: str, behind: str
) -> Changes:
    """Put the owner of the method that a statement calls through a call of the scaler."""
    call = called(statement)
    if call is None:
        return []
    start, end = program.span_with_brackets(owner)
    end_of_call = program.span_with_brackets(call)[1]
    # Around, so that what changes within the owner does so as well.
    return [Around(start, end, before, behind), Replaced(end, end_of_call, "")]


def _added_after(block: Block, number: int, code: str) -> Inserted:
    return Inserted(block, number, code, after=True, statement=cst.parse_statement(code))
