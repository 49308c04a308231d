"""Edits of how a tensor is made, moved or kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
from libcst import matchers

from torchdoctor.edits import AsTensorEdit, DetachEdit, NonBlockingEdit, OnDeviceEdit
from torchdoctor.edits.keywords import with_keyword
from torchdoctor.edits.syntax import (
    Ranges,
    argument_number,
    call_at,
    collect,
    covers,
    imported,
    imports,
    innermost,
    last_name,
    replaced,
    source_of,
)

_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide)
_ARITHMETIC_ASSIGN = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)
_LOGS = frozenset({"debug", "info", "warning", "error"})
# With digits to show: without, those of the tensor's type appear, or `tensor(...)`.
_SHOWN = frozenset("eEfFgG%")
_DIRECTIVE = re.compile(r"%(?!%)[-+ #0-9.]*([a-zA-Z])")
_FIELD = re.compile(r"\{([^{}]*)\}")


def only_arithmetic(scope: cst.CSTNode, name: str) -> bool:
    """Return True if a name is only set to numbers, computed with, and shown as a number."""
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
    """Return True if what `"%.3f" % total` shows of a name is a number."""
    if path[1] is not node.right:
        return False
    at = 0
    if isinstance(node.right, cst.Tuple):
        at = next((n for n, x in enumerate(node.right.elements) if x in path), 0)
    directives = _DIRECTIVE.findall(cst.ensure_type(node.left, cst.SimpleString).value)
    return at < len(directives) and directives[at] in _SHOWN


def _takes(call: cst.Call, path: Sequence[cst.CSTNode]) -> bool:
    """Return True if a call gives the same for both: `float(total)`, `"{:.3f}".format(total)`."""
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
        directives = _DIRECTIVE.findall(call.args[0].value.value)
        return at <= len(directives) and directives[at - 1] in _SHOWN
    return False


_MOVES = ("to", "cuda")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TYPE = re.compile(r"(torch\.)?(float|half|double|bfloat16|long|int|uint8|bool)\d*$")


def non_blocking(module: cst.Module, ranges: Ranges, edit: NonBlockingEdit) -> cst.Module | None:
    """Add `non_blocking=True` to `x.to(device)` for what the loop around a line yields.

    Only above that line, where the batch is handed to the model. None where nothing is moved there.
    """
    loop = innermost(collect(module).of(cst.For), ranges, edit.line)
    if loop is None:
        return None
    yielded = _yielded(loop)
    moves = [
        call
        for call in collect(loop.body).of(cst.Call)
        if last_name(call.func) in _MOVES
        and ranges[call].start.line <= edit.line
        and _moves_batch(call, yielded)
    ]
    if not moves:
        return None
    blocking = {call for call in moves if argument_number(call, "non_blocking") is None}
    changed = module.visit(_NonBlocking(blocking)) if blocking else module
    return changed if isinstance(changed, cst.Module) else None


class _NonBlocking(cst.CSTTransformer):
    """`non_blocking=True` for each of these calls, in one pass: a second would not know them."""

    def __init__(self, calls: set[cst.Call]) -> None:
        self._calls = calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        if original_node not in self._calls:
            return updated_node
        return with_keyword(updated_node, "non_blocking", cst.Name("True"))


def _yielded(loop: cst.For) -> set[str]:
    """Return the names of a batch's parts: the loop's targets, and of comprehensions over them."""
    names = set(_NAME.findall(source_of(loop.target)))
    for part in collect(loop.body).of(cst.CompFor):
        if names & set(_NAME.findall(source_of(part.iter))):
            names |= set(_NAME.findall(source_of(part.target)))
    return names


def _moves_batch(call: cst.Call, yielded: set[str]) -> bool:
    """Return True if a part of the batch is moved to a device, not only to another type."""
    if not isinstance(call.func, cst.Attribute) or any(a.star for a in call.args):
        return False
    moved = call.func.value
    while isinstance(moved, cst.Subscript):
        moved = moved.value
    if not isinstance(moved, cst.Name) or moved.value not in yielded:
        return False
    plain = [source_of(a.value) for a in call.args if a.keyword is None]
    if last_name(call.func) == "cuda":
        return len(plain) < 2
    device = plain[:1] or ["" for _ in range(argument_number(call, "device") is not None)]
    return len(plain) < 3 and bool(device) and not _TYPE.match(device[0])


_DEVICE = re.compile(r"""(['"](cuda|mps|xpu|hpu)|torch\.device\(|([\w.]*[._])?device$)""")
_BACKWARD = frozenset({"backward", "manual_backward", "grad"})
_TAKEN = ("dtype", "device")  # all that torch.as_tensor knows besides the data
_KEEPS = ("append", "appendleft")


def as_tensor(module: cst.Module, ranges: Ranges, edit: AsTensorEdit) -> cst.Module | None:
    """Change `torch.tensor(x)` to `torch.as_tensor(x)`, of a list to as_tensor(np.array(x))."""
    call = call_at(module, ranges, edit.line, "torch.tensor")
    if call is None:
        return module if call_at(module, ranges, edit.line, "torch.as_tensor") else None
    if not call.args or call.args[0].star or call.args[0].keyword is not None:
        return None
    if any(a.star or a.keyword is None or a.keyword.value not in _TAKEN for a in call.args[1:]):
        return None
    arguments = list(call.args)
    if edit.joined:
        numpy = next((x for x, full in imported(module).items() if full == "numpy"), None)
        if numpy is None:
            return None
        code = source_of(arguments[0].value)
        joined = cst.parse_expression(f"{numpy}.array({code})")
        arguments[0] = arguments[0].with_changes(value=joined)
    function = cst.parse_expression("torch.as_tensor")
    return replaced(module, call, call.with_changes(func=function, args=arguments))


def on_device(module: cst.Module, ranges: Ranges, edit: OnDeviceEdit) -> cst.Module | None:
    """Change `torch.zeros(4).to(device)` to `torch.zeros(4, device=device)`."""
    maker = call_at(module, ranges, edit.line, f"torch.{edit.maker}")
    if maker is None:
        return None
    if argument_number(maker, "device") is not None:
        return module
    moves = [
        call
        for call in collect(module).of(cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.value is maker
    ]
    if len(moves) != 1 or any(a.star for a in maker.args):
        return None
    device = _device(moves[0])
    comments = [len(matchers.findall(x, matchers.Comment())) for x in (moves[0], maker)]
    if device is None or comments[0] > comments[1]:
        return None
    added = with_keyword(maker, "device", cst.parse_expression(device))
    return replaced(module, moves[0], added)


def _device(move: cst.Call) -> str | None:
    """Return the source of the device that `.to(...)` or `.cuda()` moves to; None: not sure."""
    name = last_name(move.func)
    plain = [a for a in move.args if a.keyword is None or a.keyword.value == "device"]
    further = [a for a in move.args if a not in plain]
    if any(a.keyword is None or a.keyword.value != "non_blocking" for a in further):
        return None
    if name == "cuda" and not plain:
        return '"cuda"'
    if name != "to" or len(plain) != 1 or plain[0].star:
        return None
    code = source_of(plain[0].value)
    return code if _DEVICE.match(code) else None


def detached(module: cst.Module, ranges: Ranges, edit: DetachEdit) -> cst.Module | None:
    """Detach the value that a statement keeps; with `from_item` in place of `.item()`."""
    for block in collect(module).blocks:
        for line in block.body:
            if isinstance(line, cst.SimpleStatementLine) and covers(ranges, line, edit.line):
                return _detached_line(module, ranges, line, edit)
    return None


def _detached_line(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine, edit: DetachEdit
) -> cst.Module | None:
    value = _kept(line, edit.name) if len(line.body) == 1 else None
    if value is None:
        return None
    if edit.from_item:
        if any(last_name(call.func) == "detach" for call in collect(line).of(cst.Call)):
            return module
        items = [
            c for c in collect(line).of(cst.Call) if last_name(c.func) == "item" and not c.args
        ]
        if len(items) != 1 or not isinstance(items[0].func, cst.Attribute):
            return None
        if isinstance(line.body[0], cst.Expr) or not _only_shown(module, ranges, line, edit.name):
            return None
        function = items[0].func.with_changes(attr=cst.Name("detach"))
        return replaced(module, items[0], items[0].with_changes(func=function))
    code = source_of(value)
    if code.endswith((".detach()", ".item()")):
        return module
    if _learned_from(_where_known(module, ranges, line, edit.name), edit.name):
        return None
    if isinstance(value, (cst.Tuple, cst.List, cst.Dict)):
        return None
    simple = isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or value.lpar
    made = cst.parse_expression(f"{code}.detach()" if simple else f"({code}).detach()")
    return replaced(module, value, made)


def _kept(line: cst.SimpleStatementLine, name: str) -> cst.BaseExpression | None:
    """Return what the statement adds to the name, or appends to it."""
    statement = line.body[0]
    if isinstance(statement, cst.AugAssign):
        adds = isinstance(statement.operator, cst.AddAssign)
        same = source_of(statement.target) == name
        return statement.value if adds and same else None
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        value = statement.value
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            return None
        target = source_of(statement.targets[0].target)
        left = source_of(value.left)
        return value.right if target == name == left else None
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        call = statement.value
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _KEEPS:
            same = source_of(call.func.value) == name
            if same and len(call.args) == 1 and not call.args[0].star:
                return call.args[0].value
    return None


def _only_shown(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine, name: str
) -> bool:
    """Return True if a tensor without dimensions does for a name what a number does."""
    if not name.isidentifier() or not imports(module.body, "torch"):
        return False
    return only_arithmetic(_scope(module, ranges, line), name)


def _scope(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine
) -> cst.Module | cst.FunctionDef:
    """Return the innermost function around a statement, or the module."""
    return innermost(collect(module).of(cst.FunctionDef), ranges, ranges[line].start.line) or module


def _where_known(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine, name: str
) -> cst.Module | cst.FunctionDef:
    """Return where a name may be read; an attribute or a global in the whole file."""
    scope = _scope(module, ranges, line)
    declared = matchers.findall(scope, matchers.NameItem(name=matchers.Name(name)))
    return scope if name.isidentifier() and not declared else module


def _learned_from(scope: cst.Module | cst.FunctionDef, name: str) -> bool:
    """Return True if a backward pass goes through a name, or what is computed from it."""
    syntax = collect(scope)
    known, size = {_mention(name)}, 0
    while len(known) > size:
        size = len(known)
        mentions = re.compile("|".join(known))
        for assign in syntax.of(cst.Assign):
            if mentions.search(source_of(assign.value)):
                known |= {_mention(source_of(x.target)) for x in assign.targets}
        for more in syntax.of(cst.AugAssign):
            if mentions.search(source_of(more.value)):
                known.add(_mention(source_of(more.target)))
        for function in syntax.of(cst.FunctionDef) if isinstance(scope, cst.Module) else ():
            given = [x.value for x in collect(function).of(cst.Return) if x.value is not None]
            if any(mentions.search(source_of(x)) for x in given):
                known.add(rf"(?<!\w){function.name.value}(?!\w)")
    backward = [x for x in syntax.of(cst.Call) if last_name(x.func) in _BACKWARD]
    return any(mentions.search(source_of(x)) for x in backward)


def _mention(name: str) -> str:
    """Return a pattern of a name in source; of an attribute, with any owner."""
    owner, _, attribute = name.rpartition(".")
    if owner and attribute.isidentifier():
        return rf"\.{attribute}(?!\w|\s*\()"
    return rf"(?<![\w.]){re.escape(name)}(?!\w)"
