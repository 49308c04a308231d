"""Puts the statements from the forward pass to the loss under a `with`, such as autocast.

`with_context` goes in this order:

1. Where these statements stand under such a `with` already, nothing changes.
2. It looks for the innermost block that holds both the line of the forward pass and the line of the
   backward pass. Where a gradient is computed or a step made between the two, nothing is certain.
3. Of the statements between, those count up to the last one that changes what the backward pass
   reads. The loss has to be among these: a backward statement that makes it by itself, within what
   it calls, would leave a part of the pass outside.
4. They get the context, which names the device as the program does (`devices`).
"""

import builtins
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import libcst as cst

from torchdoctor.edits import WithEdit
from torchdoctor.edits.changes import Changes, Replaced, Wrapped
from torchdoctor.edits.devices import device_type
from torchdoctor.edits.syntax import Block, Program, Syntax, last_name, source_of

_COMMENT = re.compile(r"#.*")
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # no attribute
_BACKWARD = ("backward", "manual_backward")
_DEVICE = "{device}"  # in the context of an edit


class _Stretch(NamedTuple):
    """Statements of a block, from `first` up to (without) `end`."""

    block: Block
    first: int
    end: int

    @property
    def statements(self) -> Sequence[cst.CSTNode]:
        return self.block.body[self.first : self.end]


def with_context(program: Program, edit: WithEdit) -> Changes | None:
    """Put the statements from `edit.callee` to the last before `edit.before` under a `with`."""
    module = edit.context.split(".", 1)[0]
    if not program.imports(module):
        return None
    if _has_context(program, edit):
        return []
    stretch = _forward_to_loss(program, edit)
    if stretch is None:
        return None
    head = stretch.statements[0]
    if isinstance(head, (cst.FunctionDef, cst.ClassDef)):
        return None
    device = device_type(program, edit.line, stretch.block, stretch.first) or f'"{edit.device}"'
    context = edit.context.replace(_DEVICE, device)
    if len(stretch.statements) == 1 and isinstance(head, cst.With):
        # One more item, before the program's own, which may overrule it.
        start = program.span_with_brackets(head.items[0].item)[0]
        return [Replaced(start, start, f"{context}, ")]
    return [Wrapped(stretch.block, stretch.first, stretch.end, context)]


def _has_context(program: Program, edit: WithEdit) -> bool:
    """Return True if the line stands under such a context, whatever the device is called there."""
    before, names_device, behind = edit.context.partition(_DEVICE)
    for statement in program.of(cst.With):
        if not program.covers(statement, edit.line):
            continue
        for item in statement.items:
            header = source_of(item.item)
            if header == edit.context:
                return True
            if names_device and header.startswith(before) and header.endswith(behind):
                return True
    return False


def _forward_to_loss(program: Program, edit: WithEdit) -> _Stretch | None:
    """Return the statements from the forward pass to the loss; None: they are not certain."""
    if not _calls_what_was_seen(program, edit):
        return None
    to_backward = _forward_to_backward(program, edit)
    if to_backward is None or any(map(_learns, to_backward.statements)):
        return None
    backward = to_backward.block.body[to_backward.end]
    needed = _needed_by(program, backward, to_backward.statements)
    return None if needed is None else to_backward._replace(end=to_backward.first + needed)


def _calls_what_was_seen(program: Program, edit: WithEdit) -> bool:
    """Return True if the line has one call of what the recording says."""
    if program.only_call(program.calls_by(edit.callee), edit.line) is not None:
        return True  # by the expression: `self.net`
    by_name = [call for call in program.calls(edit.callee) if program.covers(call, edit.line)]
    return len(by_name) == 1  # by a function's name: `loss_of` of `self.steps.loss_of(x)`


def _forward_to_backward(program: Program, edit: WithEdit) -> _Stretch | None:
    """Return the statements from one line up to the other, in the innermost block with both."""
    innermost = None
    for block in program.blocks:  # outermost first
        first = _number_of(program, block, edit.line)
        end = _number_of(program, block, edit.before)
        if first is not None and end is not None and first < end:
            innermost = _Stretch(block, first, end)
    return innermost


def _number_of(program: Program, block: Block, line: int) -> int | None:
    """Return the number of the block's statement that stands on a line; None: none does."""
    for number, statement in enumerate(block.body):
        if program.covers(statement, line):
            return number
    return None


def _learns(statement: cst.CSTNode) -> bool:
    """Return True if a statement computes gradients or steps an optimizer."""
    calls = Syntax(statement).calls("backward", "step")
    return any(isinstance(call.func, cst.Attribute) for call in calls)


def _needed_by(
    program: Program, backward: cst.CSTNode, statements: Sequence[cst.CSTNode]
) -> int | None:
    """Return how many of the statements lead to what the backward pass needs; at least one.

    Not those behind, that zero gradients or count. None: it may make the loss itself.
    """
    if _makes_loss(program, backward):
        return None
    code = _COMMENT.sub("", source_of(backward))
    names_read = set(_DOTTED_NAME.findall(code))  # `state.loss.backward`
    for number in range(len(statements) - 1, 0, -1):
        changed = _changed_by(statements[number])
        if any(_overlap(read, name) for read in names_read for name in changed):
            return number + 1
    return 1


def _overlap(name: str, other: str) -> bool:
    """Return True if two names are the same, or one is a part of the other: `state.loss`."""
    return f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.")


def _changed_by(statement: cst.CSTNode) -> set[str]:
    """Return what a statement assigns to, or calls for its effect (`losses.append(loss)`)."""
    syntax = Syntax(statement)
    changed = list(syntax.targets)
    for expression in syntax.of(cst.Expr):
        if isinstance(expression.value, cst.Call):
            changed += _changed_by_call(expression.value)
    return {source_of(_base(node)) for node in changed}


def _changed_by_call(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a call may change whose result nobody takes."""
    if isinstance(call.func, cst.Attribute):
        return [call.func.value]  # `losses.append(loss)`
    if hasattr(builtins, last_name(call.func)):
        return []  # `print(loss)`
    return [arg.value for arg in call.args if isinstance(arg.value, cst.Name)]  # `add(losses, out)`


def _base(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return `losses` of `losses["ce"]`, `self.state` of `self.state[0].loss`."""
    base = node
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Subscript):
            base = node.value
        node = node.value
    return base


def _makes_loss(program: Program, backward: cst.CSTNode) -> bool:
    """Return True if the statement leaves it to a function to make the loss."""
    calls = Syntax(backward).calls()
    of_backward = [call for call in calls if last_name(call.func) in _BACKWARD]
    functions = {function.name.value: function for function in program.of(cst.FunctionDef)}
    return all(_may_make_loss(call, functions) for call in of_backward or calls)


def _may_make_loss(call: cst.Call, functions: Mapping[str, cst.FunctionDef]) -> bool:
    """Return True unless a call is sure to get the loss, or to be a method of it."""
    name = last_name(call.func)
    is_of_self = isinstance(call.func, cst.Attribute) and source_of(call.func.value) == "self"
    gets_nothing = is_of_self and not call.args  # `self.backward()`
    if name in _BACKWARD and not gets_nothing:
        return False  # `loss.backward()`, `self.manual_backward(loss)`
    function = functions.get(name)
    if function is None:
        return not call.args  # `loss_scaler(loss, optimizer)` gets it
    return not _passes_parameters_alone(function)


def _passes_parameters_alone(function: cst.FunctionDef) -> bool:
    """Return True if a function makes the backward pass of nothing but its parameters."""
    syntax = Syntax(function)
    parameters = {parameter.name.value for parameter in syntax.of(cst.Param)} - {"self"}
    parameters -= {source_of(target) for target in syntax.targets}
    passes = syntax.calls(*_BACKWARD)
    names_read = [set(_NAME.findall(source_of(call))) for call in passes]
    return bool(passes) and all(names & parameters for names in names_read)
