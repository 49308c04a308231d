"""Edits that make float32 of what a program computes in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

import libcst as cst
from libcst import matchers

from torchdoctor.edits import BatchCastEdit, SinglePrecisionEdit
from torchdoctor.edits.syntax import (
    Ranges,
    collect,
    covers,
    last_name,
    replaced,
    same_statement,
    source_of,
    with_argument,
)

_DOUBLE = ("torch.float64", "torch.double", "torch.DoubleTensor", "torch.cuda.DoubleTensor")
_MAKERS = ("from_numpy", "as_tensor", "tensor")
_TYPES = ("float", "double", "to", "type", "half", "bfloat16", "long", "int")
_SINGLE = ("torch.float32", "torch.float", "torch.FloatTensor", "torch.cuda.FloatTensor")
_Change = Callable[[cst.Call], cst.BaseExpression]


def single_precision(
    module: cst.Module, ranges: Ranges, edit: SinglePrecisionEdit
) -> cst.Module | None:
    """Make the calls of a name on a line give float32; None if there is none or it is not sure."""
    on_line = [x for x in collect(module).of(cst.Call) if covers(ranges, x, edit.line)]
    called = [x for x in on_line if last_name(x.func) == edit.callee]
    chosen = [x for x in called if ranges[x].start.line == edit.line] or called
    if not chosen:
        done = edit.callee == "double" and any(last_name(x.func) == "float" for x in on_line)
        return module if done else None
    calls: dict[cst.Call, _Change] = {}
    constants: set[cst.Assign] = set()
    for call in chosen:
        change = _change(module, call, edit.callee, constants)
        if change is None:
            return None
        calls[call] = change
    changed = module.visit(_Single(calls, constants))
    return changed if isinstance(changed, cst.Module) else None


def _change(
    module: cst.Module, call: cst.Call, callee: str, constants: set[cst.Assign]
) -> _Change | None:
    """Return what to make of one call; None if it is not sure. A constant to change is added."""
    if callee == "double":
        return None if call.args or not isinstance(call.func, cst.Attribute) else _renamed
    given = next((n for n, argument in enumerate(call.args) if _asks(module, argument.value)), None)
    if given is not None:
        value = call.args[given].value
        constant = _constant(module, value.value) if isinstance(value, cst.Name) else None
        if constant is not None:
            constants.add(constant)
            return _same
        return partial(_with_type, given, source_of(value))
    if any(_asks(module, argument.value, _SINGLE) for argument in call.args):
        return _same
    typed = any(a.star or (a.keyword and a.keyword.value == "dtype") for a in call.args)
    if callee not in _MAKERS or typed:
        return None
    if any(
        isinstance(x.func, cst.Attribute) and x.func.value is call and last_name(x.func) in _TYPES
        for x in collect(module).of(cst.Call)
    ):
        return _same  # what follows says the type
    return _as_float


class _Single(cst.CSTTransformer):
    """Each of these very calls changed, and each of these constants float32."""

    def __init__(self, calls: dict[cst.Call, _Change], constants: set[cst.Assign]) -> None:
        self._calls, self._constants = calls, constants

    def leave_Call(  # noqa: N802
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        return self._calls.get(original_node, _same)(updated_node)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:  # noqa: N802
        if original_node not in self._constants:
            return updated_node
        return updated_node.with_changes(value=cst.parse_expression("torch.float32"))


def _same(call: cst.Call) -> cst.BaseExpression:
    return call


def _renamed(call: cst.Call) -> cst.BaseExpression:
    function = cst.ensure_type(call.func, cst.Attribute)
    return call.with_changes(func=function.with_changes(attr=cst.Name("float")))


def _as_float(call: cst.Call) -> cst.BaseExpression:
    return cst.Call(func=cst.Attribute(value=call, attr=cst.Name("float")))


def _with_type(number: int, code: str, call: cst.Call) -> cst.BaseExpression:
    single = code.replace("DoubleTensor", "FloatTensor") if "Tensor" in code else "torch.float32"
    return with_argument(call, number, cst.parse_expression(single))


def _asks(module: cst.Module, value: cst.BaseExpression, kinds: Sequence[str] = _DOUBLE) -> bool:
    """Return True if an argument is one of these types, itself or by a constant of the module."""
    if source_of(value).strip("'\"") in kinds:
        return True
    return isinstance(value, cst.Name) and _constant(module, value.value, kinds) is not None


def _constant(module: cst.Module, name: str, kinds: Sequence[str] = _DOUBLE) -> cst.Assign | None:
    """Return `DTYPE = torch.float64`, if that is the only assignment to the name."""
    assigns = [
        assign
        for assign in collect(module).of(cst.Assign)
        for target in assign.targets
        if isinstance(target.target, cst.Name) and target.target.value == name
    ]
    if len(assigns) != 1 or source_of(assigns[0].value) not in kinds:
        return None
    return assigns[0]


def cast_batch(module: cst.Module, ranges: Ranges, edit: BatchCastEdit) -> cst.Module | None:
    """Cast the parts of a batch to float32 before anything else in the loop's body."""
    loops = [x for x in collect(module).of(cst.For) if ranges[x].start.line == edit.line]
    if len(loops) != 1 or not isinstance(loops[0].body, cst.IndentedBlock):
        return None
    body = loops[0].body
    casts = ", ".join(f"{name}.float()" for name in edit.names)
    added = cst.parse_statement(f"{', '.join(edit.names)} = {casts}", module.config_for_parsing)
    docstrings = sum(
        1 for _ in takewhile(_is_text, body.body)
    )  # what the loop's body begins by saying
    if len(body.body) > docstrings and same_statement(body.body[docstrings], added):
        return module
    lines = [*body.body[:docstrings], added, *body.body[docstrings:]]
    return replaced(module, body, body.with_changes(body=lines))


def _is_text(line: cst.CSTNode) -> bool:
    return matchers.matches(
        line, matchers.SimpleStatementLine(body=[matchers.Expr(value=matchers.SimpleString())])
    )
