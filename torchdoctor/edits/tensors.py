"""Edits of how a tensor is made, moved or kept."""

from __future__ import annotations

import re

import libcst as cst
from libcst import matchers

from torchdoctor.edits import AsTensorEdit, DetachEdit, OnDeviceEdit
from torchdoctor.edits.arguments import with_keyword
from torchdoctor.edits.number_uses import only_arithmetic
from torchdoctor.edits.syntax import (
    Ranges,
    call_at,
    collect,
    covers,
    imports,
    last_name,
    replaced,
)

_DEVICE = re.compile(r"""(['"](cuda|mps|xpu|hpu)|torch\.device\(|([\w.]*[._])?device$)""")
_BACKWARD = frozenset({"backward", "manual_backward", "grad"})
_TAKEN = ("dtype", "device")  # all that torch.as_tensor knows besides the data
_KEEPS = ("append", "appendleft")


def as_tensor(module: cst.Module, ranges: Ranges, edit: AsTensorEdit) -> cst.Module | None:
    """`torch.tensor(x)` -> `torch.as_tensor(x)`, of a list `torch.as_tensor(np.array(x))`."""
    call = call_at(module, ranges, edit.line, "torch.tensor")
    if call is None:
        return module if call_at(module, ranges, edit.line, "torch.as_tensor") else None
    if not call.args or call.args[0].star or call.args[0].keyword is not None:
        return None
    if any(a.star or a.keyword is None or a.keyword.value not in _TAKEN for a in call.args[1:]):
        return None
    arguments = list(call.args)
    if edit.joined:
        numpy = _numpy(module)
        if numpy is None:
            return None
        code = module.code_for_node(arguments[0].value)
        joined = cst.parse_expression(f"{numpy}.array({code})")
        arguments[0] = arguments[0].with_changes(value=joined)
    function = cst.parse_expression("torch.as_tensor")
    return replaced(module, call, call.with_changes(func=function, args=arguments))


def _numpy(module: cst.Module) -> str | None:
    """The name that numpy was imported under."""
    for line in module.body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            for alias in part.names if isinstance(part, cst.Import) else ():
                if alias.evaluated_name == "numpy":
                    return alias.evaluated_alias or "numpy"
    return None


def on_device(module: cst.Module, ranges: Ranges, edit: OnDeviceEdit) -> cst.Module | None:
    """`torch.zeros(4).to(device)` -> `torch.zeros(4, device=device)`."""
    maker = call_at(module, ranges, edit.line, f"torch.{edit.maker}")
    if maker is None:
        return None
    if any(a.keyword is not None and a.keyword.value == "device" for a in maker.args):
        return module
    moves = [
        call
        for call in collect(module).calls
        if isinstance(call.func, cst.Attribute) and call.func.value is maker
    ]
    if len(moves) != 1 or any(a.star for a in maker.args):
        return None
    device = _device(module, moves[0])
    said = [len(matchers.findall(x, matchers.Comment())) for x in (moves[0], maker)]
    if device is None or said[0] > said[1]:
        return None
    arguments = with_keyword(maker, "device", device)
    return replaced(module, moves[0], maker.with_changes(args=arguments))


def _device(module: cst.Module, move: cst.Call) -> str | None:
    """The device that `.to(...)` or `.cuda()` moves to, as source; None where it is not sure."""
    name = last_name(move.func)
    plain = [a for a in move.args if a.keyword is None or a.keyword.value == "device"]
    others = [a for a in move.args if a not in plain]
    if any(a.keyword is None or a.keyword.value != "non_blocking" for a in others):
        return None
    if name == "cuda" and not plain:
        return '"cuda"'
    if name != "to" or len(plain) != 1 or plain[0].star:
        return None
    code = module.code_for_node(plain[0].value)
    return code if _DEVICE.match(code) else None


def detached(module: cst.Module, ranges: Ranges, edit: DetachEdit) -> cst.Module | None:
    """The value that a statement keeps, `.detach()`ed; with `from_item` in place of `.item()`."""
    for block in collect(module).blocks:
        for line in block.body:
            if isinstance(line, cst.SimpleStatementLine) and covers(ranges, line, edit.line):
                return _detached_line(module, ranges, line, edit)
    return None


def _detached_line(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine, edit: DetachEdit
) -> cst.Module | None:
    value = _kept(module, line, edit.name) if len(line.body) == 1 else None
    if value is None:
        return None
    if edit.from_item:
        if any(last_name(call.func) == "detach" for call in collect(line).calls):
            return module
        items = [c for c in collect(line).calls if last_name(c.func) == "item" and not c.args]
        if len(items) != 1 or not isinstance(items[0].func, cst.Attribute):
            return None
        if isinstance(line.body[0], cst.Expr) or not _only_shown(module, ranges, line, edit.name):
            return None
        function = items[0].func.with_changes(attr=cst.Name("detach"))
        return replaced(module, items[0], items[0].with_changes(func=function))
    code = module.code_for_node(value)
    if code.endswith((".detach()", ".item()")):
        return module
    if _learned_from(module, _where_known(module, ranges, line, edit.name), edit.name):
        return None
    if isinstance(value, (cst.Tuple, cst.List, cst.Dict)):
        return None
    simple = isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or value.lpar
    made = cst.parse_expression(f"{code}.detach()" if simple else f"({code}).detach()")
    return replaced(module, value, made)


def _kept(
    module: cst.Module, line: cst.SimpleStatementLine, name: str
) -> cst.BaseExpression | None:
    """What the statement adds to the name, or appends to it."""
    statement = line.body[0]
    if isinstance(statement, cst.AugAssign):
        adds = isinstance(statement.operator, cst.AddAssign)
        same = module.code_for_node(statement.target).strip() == name
        return statement.value if adds and same else None
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        value = statement.value
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            return None
        target = module.code_for_node(statement.targets[0].target).strip()
        left = module.code_for_node(value.left).strip()
        return value.right if target == name == left else None
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        call = statement.value
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _KEEPS:
            same = module.code_for_node(call.func.value).strip() == name
            if same and len(call.args) == 1 and not call.args[0].star:
                return call.args[0].value
    return None


def _only_shown(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine, name: str
) -> bool:
    """Whether a tensor without dimensions does for a name what a number does."""
    if not name.isidentifier() or not imports(module.body, "torch"):
        return False
    return only_arithmetic(_scope(module, ranges, line), name)


def _scope(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine
) -> cst.Module | cst.FunctionDef:
    """The innermost function around a statement, or the module."""
    at = ranges[line].start.line
    scopes = [f for f in collect(module).functions if covers(ranges, f, at)]
    return max(scopes, key=lambda f: ranges[f].start.line, default=module)


def _where_known(
    module: cst.Module, ranges: Ranges, line: cst.SimpleStatementLine, name: str
) -> cst.Module | cst.FunctionDef:
    """Where a name may be read: an attribute or a global name in the whole file."""
    scope = _scope(module, ranges, line)
    declared = matchers.findall(scope, matchers.NameItem(name=matchers.Name(name)))
    return scope if name.isidentifier() and not declared else module


def _learned_from(module: cst.Module, scope: cst.Module | cst.FunctionDef, name: str) -> bool:
    """Whether a backward pass goes through a name, or through what is computed from it."""
    seen = collect(scope)
    known, size = {_mention(name)}, 0
    while len(known) > size:
        size = len(known)
        mentions = re.compile("|".join(known))
        for one in seen.assigns:
            if mentions.search(module.code_for_node(one.value)):
                known |= {_mention(module.code_for_node(x.target).strip()) for x in one.targets}
        for more in seen.augmented:
            if mentions.search(module.code_for_node(more.value)):
                known.add(_mention(module.code_for_node(more.target).strip()))
        for function in seen.functions if isinstance(scope, cst.Module) else ():
            given = [x.value for x in collect(function).returns if x.value is not None]
            if any(mentions.search(module.code_for_node(x)) for x in given):
                known.add(rf"(?<!\w){function.name.value}(?!\w)")
    backward = [x for x in seen.calls if last_name(x.func) in _BACKWARD]
    return any(mentions.search(module.code_for_node(x)) for x in backward)


def _mention(name: str) -> str:
    """A pattern of a name in source; of an attribute, whatever its owner is called there."""
    owner, _, attribute = name.rpartition(".")
    if owner and attribute.isidentifier():
        return rf"\.{attribute}(?!\w|\s*\()"
    return rf"(?<![\w.]){re.escape(name)}(?!\w)"
