"""A statement at the head of a module, or in place of the program's own that sets the same."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping, Sequence

import libcst as cst

from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import collect, imported, imports, replaced, resolved, same_statement

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
    """The statement behind the imports at the head; the program's own is changed instead.

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
    """The program's own calls and assignments that set the same, under whatever name."""
    setting = _setting(module, {"torch": "torch"}, added)
    wanted = {setting, *_SYNONYMS.get(setting, {})} - {""}
    names, seen = imported(module), collect(module)
    found: list[cst.CSTNode] = []
    plain = set()
    for one in seen.assigns:
        targets = [x.target for x in one.targets]
        if any(_full(module, names, x) in wanted for x in targets):
            found.append(one)
            plain.update(targets)
    found += [x for x in seen.targets if x not in plain and _full(module, names, x) in wanted]
    return found + [x for x in seen.calls if _full(module, names, x.func) in wanted]


def _full(module: cst.Module, names: Mapping[str, str], node: cst.BaseExpression) -> str:
    return resolved(names, module.code_for_node(node))


def _setting(module: cst.Module, names: Mapping[str, str], node: cst.CSTNode) -> str:
    """ "torch.set_num_threads" of its call, or the name that a statement assigns to."""
    if isinstance(node, cst.Assign) and len(node.targets) == 1:
        return _full(module, names, node.targets[0].target)
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        return _full(module, names, node.value.func)
    return ""


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
            if part is own[0] or (isinstance(part, cst.Expr) and part.value is own[0]):
                return _with_value(module, part, added)
    return None


def _with_value(
    module: cst.Module, part: cst.BaseSmallStatement, added: cst.CSTNode
) -> cst.Module | None:
    """The program's own statement with the value of `added`, or what comes to the same."""
    wanted = _setting(module, {"torch": "torch"}, added)
    setting = _setting(module, imported(module), part)
    if isinstance(added, cst.Assign):
        value = added.value
    else:
        call = cst.ensure_type(cst.ensure_type(added, cst.Expr).value, cst.Call)
        value = call.args[0].value
    if setting != wanted:
        same = _SYNONYMS.get(wanted, {}).get(setting, {}).get(module.code_for_node(value))
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
