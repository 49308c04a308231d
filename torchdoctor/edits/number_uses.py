"""Uses of a name that are the same for a number and for a tensor without dimensions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits.syntax import last_name

_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide)
_ARITHMETIC_ASSIGN = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)
_LOGS = frozenset({"debug", "info", "warning", "error"})
# With digits to show: without, those of the tensor's type appear, or `tensor(...)`.
_SHOWN = frozenset("eEfFgG%")
_DIRECTIVE = re.compile(r"%(?!%)[-+ #0-9.]*([a-zA-Z])")
_FIELD = re.compile(r"\{([^{}]*)\}")


def only_arithmetic(scope: cst.CSTNode, name: str) -> bool:
    """Whether a name is only set to numbers, reckoned with, and shown in a number's format.

    Args:
        scope: where all of its uses stand.
        name: a plain one.
    """
    uses = _Uses(name)
    scope.visit(uses)
    return all(_harmless(path, name) for path in uses.found)


class _Uses(cst.CSTVisitor):
    """Every use of a name, with the nodes above it, innermost last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path: list[cst.CSTNode] = []
        self.found: list[list[cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Name) and node.value == self.name:
            self.found.append([*self.path, node])
        self.path.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.path.pop()


def _harmless(path: Sequence[cst.CSTNode], name: str) -> bool:
    for number in range(len(path) - 2, -1, -1):
        node = path[number]
        if isinstance(node, cst.AugAssign):
            target = isinstance(node.target, cst.Name) and node.target.value == name
            return target and isinstance(node.operator, _ARITHMETIC_ASSIGN)
        if isinstance(node, cst.AssignTarget):
            assign = path[number - 1]
            numbers = (cst.Float, cst.Integer)
            return isinstance(assign, cst.Assign) and isinstance(assign.value, numbers)
        if isinstance(node, cst.FormattedStringExpression):
            return node.conversion is None and _shown(_text(node.format_spec or ()))
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
            return isinstance(node.left, cst.SimpleString) and _in_directive(node, path[number:])
        if isinstance(node, cst.BinaryOperation):
            if not isinstance(node.operator, _ARITHMETIC):
                return False
        elif isinstance(node, cst.Call):
            return _takes(node, path[number:])
        elif isinstance(node, cst.Tuple):
            if not _is_right_of_modulo(path[number - 1], node):
                return False
        elif not isinstance(node, (cst.Arg, cst.Element)):
            return False
    return False


def _shown(spec: str) -> bool:
    return spec[-1:] in _SHOWN and bool(spec)


def _text(parts: Sequence[cst.BaseFormattedStringContent]) -> str:
    texts = [x.value for x in parts if isinstance(x, cst.FormattedStringText)]
    return "".join(texts) if len(texts) == len(parts) else ""


def _is_right_of_modulo(above: cst.CSTNode, node: cst.Tuple) -> bool:
    return isinstance(above, cst.BinaryOperation) and above.right is node


def _in_directive(node: cst.BinaryOperation, path: Sequence[cst.CSTNode]) -> bool:
    """Whether what `"%.3f" % total` shows of a name is a number."""
    if path[1] is not node.right:
        return False
    at = 0
    if isinstance(node.right, cst.Tuple):
        at = next((n for n, x in enumerate(node.right.elements) if x in path), 0)
    found = _DIRECTIVE.findall(cst.ensure_type(node.left, cst.SimpleString).value)
    return at < len(found) and found[at] in _SHOWN


def _takes(call: cst.Call, path: Sequence[cst.CSTNode]) -> bool:
    """Whether a call makes the same of both: `float(total)`, `"{:.3f}".format(total)`."""
    at = next((n for n, x in enumerate(call.args) if x in path), None)
    if at is None or any(x.star for x in call.args) or call.args[at].keyword is not None:
        return False
    called = last_name(call.func)
    if isinstance(call.func, cst.Name):
        return called == "float"
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    if called == "format" and isinstance(owner, cst.SimpleString):
        fields = _FIELD.findall(owner.value)
        plain = all(x[:1] in ("", ":") for x in fields)
        return plain and at < len(fields) and _shown(fields[at].partition(":")[2])
    if called in _LOGS and at and isinstance(call.args[0].value, cst.SimpleString):
        found = _DIRECTIVE.findall(call.args[0].value.value)
        return at <= len(found) and found[at - 1] in _SHOWN
    return False
