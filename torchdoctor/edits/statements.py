"""A statement at the head of a module, or in place of the program's own that sets the same."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping, Sequence

import libcst as cst

from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import (
    collect,
    imported,
    imports,
    replaced,
    resolved,
    same_statement,
    source_of,
)

# What may be called between imports: nothing in them trains.
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "matplotlib"})
# What sets the same under another name; by the value that is wanted, its own value for it.
_SYNONYMS: dict[str, dict[str, dict[str, str]]] = {
    "torch.set_float32_matmul_precision": {
        "torch.backends.cuda.matmul.allow_tf32": {'"high"': "True"},
        "torch.backends.cuda.matmul.fp32_precision": {},
        "torch.backends.fp32_precision": {},
    },
    "torch.backends.cudnn.allow_tf32": {
        "torch.backends.cudnn.flags": {},
        "torch.backends.cudnn.set_flags": {},
        "torch.backends.cudnn.fp32_precision": {},
        "torch.backends.cudnn.conv.fp32_precision": {},
        "torch.backends.fp32_precision": {},
    },
    "torch.backends.cudnn.benchmark": {
        "torch.backends.cudnn.flags": {},
        "torch.backends.cudnn.set_flags": {},
    },
}
_RUNS = frozenset({"exec", "eval", "__import__"})


def with_statement(module: cst.Module, statement: str) -> cst.Module | None:
    """Insert the statement behind the imports at the head, or change the program's own.

    None where the program sets the same in a function, in a branch or several times: whether that
    overrules the statement is not known.
    """
    added = cst.ensure_type(cst.parse_statement(statement), cst.SimpleStatementLine)
    body = list(module.body)
    own = _same_setting(module, added.body[0])
    if len(own) < 2 and any(same_statement(line, added) for line in body):
        return module
    made = re.match(r"\w+ = ", statement)  # what is assigned to an attribute begins with its owner
    name = statement[made.end() if made else 0 :].split(".", 1)[0]
    after = _head(body, name)
    if after is None or not imports(body[: after + 1], name):
        return None
    if own:
        return _own_changed(module, own, added.body[0])
    added = added.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return module.with_changes(body=[*body[: after + 1], added, *body[after + 1 :]])


def _head(body: Sequence[cst.CSTNode], name: str) -> int | None:
    """Return the index of the last import at the module's head; None without any.

    Other statements may stand between them, but once `name` has been imported none that may train.
    """
    last_import = None
    for number, line in enumerate(body):
        lines = _simple_lines(line)
        if lines is None:
            break
        if any(isinstance(part, (cst.Import, cst.ImportFrom)) for x in lines for part in x.body):
            if _may_train(body, line):
                break
            last_import = number
        elif isinstance(line, cst.SimpleStatementLine):
            if imports(body[:number], name) and _may_train(body[:number], line):
                break
        else:
            break
    return last_import


def _simple_lines(line: cst.CSTNode) -> list[cst.SimpleStatementLine] | None:
    """Return the lines of a plain statement, or of a `try` or `if` around only such."""
    if isinstance(line, cst.SimpleStatementLine):
        return [line]
    if not isinstance(line, (cst.Try, cst.If)):
        return None
    simple = []
    for block in collect(line).blocks:
        for statement in block.body:
            if isinstance(statement, cst.SimpleStatementLine):
                simple.append(statement)
            elif not isinstance(statement, (cst.Try, cst.If)):
                return None
    return simple


def _may_train(above: Sequence[cst.CSTNode], line: cst.CSTNode) -> bool:
    """Return True if a statement calls more than Python's and libraries' functions."""
    known = {*dir(builtins)} - _RUNS
    for node in [x for statement in (*above, line) for x in collect(statement).imports]:
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            module = alias.evaluated_name
            if isinstance(node, cst.ImportFrom):
                module = source_of(node.module) if node.module else ""
            if module.split(".")[0] in _LIBRARIES and not (
                isinstance(node, cst.ImportFrom) and node.relative
            ):
                known.add(alias.evaluated_alias or alias.evaluated_name.split(".")[0])
    return any(_root(call.func) not in known for call in collect(line).of(cst.Call))


def _root(node: cst.BaseExpression) -> str:
    """Return "torch" of `torch.device("cuda").type`."""
    while not isinstance(node, cst.Name):
        if isinstance(node, cst.Call):
            node = node.func
        elif isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        else:
            # A method of a literal: "a b".split()
            return "str" if isinstance(node, cst.BaseString) else ""
    return node.value


def _same_setting(module: cst.Module, added: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the program's own calls and assignments that set the same, by whatever name."""
    setting = _setting({"torch": "torch"}, added)
    wanted = {setting, *_SYNONYMS.get(setting, {})} - {""}
    names, syntax = imported(module), collect(module)
    settings: list[cst.CSTNode] = []
    plain = set()
    for assign in syntax.of(cst.Assign):
        targets = [x.target for x in assign.targets]
        if any(_full(names, x) in wanted for x in targets):
            settings.append(assign)
            plain.update(targets)
    settings += [x for x in syntax.targets if x not in plain and _full(names, x) in wanted]
    return settings + [x for x in syntax.of(cst.Call) if _full(names, x.func) in wanted]


def _full(names: Mapping[str, str], node: cst.BaseExpression) -> str:
    return resolved(names, source_of(node))


def _setting(names: Mapping[str, str], node: cst.CSTNode) -> str:
    """Return "torch.set_num_threads" of its call, or the name that a statement assigns to."""
    if isinstance(node, cst.Assign) and len(node.targets) == 1:
        return _full(names, node.targets[0].target)
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        return _full(names, node.value.func)
    return ""


def _own_changed(
    module: cst.Module, own: Sequence[cst.CSTNode], added: cst.CSTNode
) -> cst.Module | None:
    """Change the program's one statement of this kind, if it runs before any loop."""
    for line in module.body:
        if isinstance(line, (cst.For, cst.While)):
            return None
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if len(own) != 1:
                return None
            if part is own[0] or (isinstance(part, cst.Expr) and part.value is own[0]):
                return _with_value(module, part, added)
    return None


def _with_value(
    module: cst.Module, part: cst.BaseSmallStatement, added: cst.CSTNode
) -> cst.Module | None:
    """Return the module with the value of `added`, or what comes to the same, in `part`."""
    wanted = _setting({"torch": "torch"}, added)
    setting = _setting(imported(module), part)
    if isinstance(added, cst.Assign):
        value = added.value
    else:
        call = cst.ensure_type(cst.ensure_type(added, cst.Expr).value, cst.Call)
        value = call.args[0].value
    if setting != wanted:
        same = _SYNONYMS.get(wanted, {}).get(setting, {}).get(source_of(value))
        if same is None:
            return None
        value = cst.parse_expression(same)
    if isinstance(part, cst.Assign) and len(part.targets) == 1:
        return None if is_computed(module, part.value) else replaced(module, part.value, value)
    if not isinstance(part, cst.Expr) or not isinstance(part.value, cst.Call):
        return None
    own = part.value
    if any(is_computed(module, x.value) for x in own.args) or len(own.args) != 1:
        return None
    if own.args[0].star:
        return None
    return replaced(module, own, own.with_changes(args=[own.args[0].with_changes(value=value)]))
