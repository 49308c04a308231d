"""The edit of a training step that goes through a gradient scaler."""

from __future__ import annotations

import libcst as cst
from libcst import matchers

from torchdoctor.edits import ScaledStepEdit
from torchdoctor.edits.syntax import Ranges, collect, covers, last_name, replaced

_OPTIMIZER = "opt"  # in the name of what is stepped; a scheduler's steps are its own

# Past the step without `update()`, the scaler refuses the next `unscale_()`.
_LEAVES = matchers.OneOf(
    matchers.Continue(), matchers.Break(), matchers.Return(), matchers.Raise(), matchers.Yield()
)


def scaled_step(module: cst.Module, ranges: Ranges, edit: ScaledStepEdit) -> cst.Module | None:
    """`loss.backward()` ... `optimizer.step()` in one block, by way of the scaler."""
    if f"{edit.scaler}.scale(" in module.code:
        return module
    if edit.scaler in module.code:
        return None  # a name of the user's
    seen = collect(module)
    for block in reversed(seen.blocks):  # the innermost first
        for number, statement in enumerate(block.body):
            if not covers(ranges, statement, edit.line):
                continue
            loss = _receiver(statement, "backward")
            if loss is None:
                return None
            return _with_scaler(module, block, number, loss, edit.scaler)
    return None


def _with_scaler(
    module: cst.Module,
    block: cst.Module | cst.IndentedBlock,
    number: int,
    loss: cst.BaseExpression,
    scaler: str,
) -> cst.Module | None:
    after = block.body[number + 1 :]
    steps = [
        (place, owner)
        for place, statement in enumerate(after, number + 1)
        if (owner := _receiver(statement, "step")) is not None
        and _OPTIMIZER in last_name(owner).lower()
    ]
    # A second backward pass, or a step elsewhere, would need a scaler's call of its own.
    learning = [x for x in collect(module).calls if last_name(x.func) in ("backward", "step")]
    optimizers = [
        x
        for x in learning
        if isinstance(x.func, cst.Attribute)
        and (x.func.attr.value == "backward" or _OPTIMIZER in last_name(x.func.value).lower())
    ]
    if len(steps) != 1 or len(optimizers) != 2:
        return None
    place, owner = steps[0]
    if any(matchers.findall(x, _LEAVES) for x in block.body[number + 1 : place]):
        return None
    loss_text, name = module.code_for_node(loss), module.code_for_node(owner)
    body = list(block.body)
    stepped = _statements(f"{scaler}.step({name})", body[place])
    update = cst.parse_statement(f"{scaler}.update()")
    backward = _statements(f"{scaler}.scale({loss_text}).backward()", body[number])
    # Whatever lies between the two may clip the gradients, or look at them.
    unscale = [cst.parse_statement(f"{scaler}.unscale_({name})")] if place > number + 1 else []
    changed = [
        *body[:number],
        backward,
        *unscale,
        *body[number + 1 : place],
        stepped,
        update,
        *body[place + 1 :],
    ]
    if isinstance(block, cst.Module):
        return module.with_changes(body=changed)
    return replaced(module, block, block.with_changes(body=changed))


def _statements(code: str, like: cst.CSTNode) -> cst.SimpleStatementLine:
    """A statement with the comments of the one that it replaces."""
    made = cst.ensure_type(cst.parse_statement(code), cst.SimpleStatementLine)
    old = cst.ensure_type(like, cst.SimpleStatementLine)
    return made.with_changes(
        leading_lines=old.leading_lines, trailing_whitespace=old.trailing_whitespace
    )


def _receiver(statement: cst.CSTNode, method: str) -> cst.BaseExpression | None:
    """`loss` of the statement `loss.backward()`; None for anything else, arguments included."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    call = statement.body[0].value if isinstance(statement.body[0], cst.Expr) else None
    if not isinstance(call, cst.Call) or call.args or not isinstance(call.func, cst.Attribute):
        return None
    return call.func.value if call.func.attr.value == method else None
