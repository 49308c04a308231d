"""A statement at the head of a module, or in place of the program's own that sets the same."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits.constants import is_computed
from torchdoctor.edits.syntax import collect, imports, replaced, same_statement

# What may be called between imports: nothing in them trains.
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "matplotlib"})
_RUNS = frozenset({"exec", "eval", "__import__"})


def with_statement(module: cst.Module, statement: str) -> cst.Module | None:
    """The statement behind the imports at the head; the program's own is changed instead.

    None where the program sets the same in a function, in a branch or several times: whether that
    overrules the statement is not known.
    """
    added = cst.ensure_type(cst.parse_statement(statement), cst.SimpleStatementLine)
    body = list(module.body)
    if any(same_statement(line, added) for line in body):
        return module
    made = re.match(r"\w+ = ", statement)  # what is assigned to an attribute begins with its owner
    name = statement[made.end() if made else 0 :].split(".", 1)[0]
    after = _head(body, name)
    if after is None or not imports(body[: after + 1], name):
        return None
    own = _same_setting(module, added.body[0])
    if own:
        return _own_changed(module, own, added.body[0])
    added = added.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return module.with_changes(body=[*body[: after + 1], added, *body[after + 1 :]])


def _head(body: Sequence[cst.CSTNode], name: str) -> int | None:
    """Index of the last of the imports that the module begins with; None without any.

    Other statements may stand between them, but once `name` has been imported none that may train.
    """
    found = None
    for number, line in enumerate(body):
        lines = _simple_lines(line)
        if lines is None:
            break
        if any(isinstance(one, (cst.Import, cst.ImportFrom)) for x in lines for one in x.body):
            if _may_train(body, line):
                break
            found = number
        elif isinstance(line, cst.SimpleStatementLine):
            if imports(body[:number], name) and _may_train(body[:number], line):
                break
        else:
            break
    return found


def _simple_lines(line: cst.CSTNode) -> list[cst.SimpleStatementLine] | None:
    """The lines of a plain statement, or of a `try` or `if` around nothing but such."""
    if isinstance(line, cst.SimpleStatementLine):
        return [line]
    if not isinstance(line, (cst.Try, cst.If)):
        return None
    found = []
    for block in collect(line).blocks:
        for one in block.body:
            if isinstance(one, cst.SimpleStatementLine):
                found.append(one)
            elif not isinstance(one, (cst.Try, cst.If)):
                return None
    return found


def _may_train(above: Sequence[cst.CSTNode], line: cst.CSTNode) -> bool:
    """Whether a statement calls anything but Python's own functions and those of libraries."""
    known = {*dir(builtins)} - _RUNS
    for node in [x for one in (*above, line) for x in collect(one).imports]:
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            module = alias.evaluated_name
            if isinstance(node, cst.ImportFrom):
                module = cst.Module([]).code_for_node(node.module) if node.module else ""
            if module.split(".")[0] in _LIBRARIES and not (
                isinstance(node, cst.ImportFrom) and node.relative
            ):
                known.add(alias.evaluated_alias or alias.evaluated_name.split(".")[0])
    return any(_root(call.func) not in known for call in collect(line).calls)


def _root(node: cst.BaseExpression) -> str:
    """ "torch" of `torch.device("cuda").type`."""
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
    """The program's own calls of the same function, or its assignments to the same attribute."""
    seen = collect(module)
    if isinstance(added, cst.Assign):
        target = cst.Module([]).code_for_node(added.targets[0].target)
        return [
            one
            for one in seen.assigns
            if any(module.code_for_node(x.target).strip() == target for x in one.targets)
        ]
    if not isinstance(added, cst.Expr) or not isinstance(added.value, cst.Call):
        return []
    function = cst.Module([]).code_for_node(added.value.func)
    return [one for one in seen.calls if module.code_for_node(one.func).strip() == function]


def _own_changed(
    module: cst.Module, own: Sequence[cst.CSTNode], added: cst.CSTNode
) -> cst.Module | None:
    """The program's one statement of this kind with the new value, where it runs before loops."""
    for line in module.body:
        if isinstance(line, (cst.For, cst.While)):
            return None
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if len(own) != 1:
                return None
            if isinstance(part, cst.Assign) and part is own[0] and len(part.targets) == 1:
                if is_computed(module, part.value):
                    return None
                return replaced(module, part.value, cst.ensure_type(added, cst.Assign).value)
            if isinstance(part, cst.Expr) and part.value is own[0]:
                call = cst.ensure_type(part.value, cst.Call)
                if is_computed(module, call) or len(call.args) != 1 or call.args[0].star:
                    return None
                given = cst.ensure_type(cst.ensure_type(added, cst.Expr).value, cst.Call).args
                value = call.args[0].with_changes(value=given[0].value)
                return replaced(module, call, call.with_changes(args=[value]))
    return None
