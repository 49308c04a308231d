"""Copies of tensors that are only read, left out."""

from collections.abc import Iterator

import libcst as cst

from torchdoctor.edits import ReadOriginalEdit
from torchdoctor.edits.changes import Changes, Replaced
from torchdoctor.edits.syntax import Program, Syntax, last_name, source_of

_CHANGING = (
    "append",
    "appendleft",
    "extend",
    "insert",
    "update",
    "setdefault",
    "pop",
    "popitem",
    "clear",
    "remove",
    "sort",
    "reverse",
)
_ATOMS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)


def read_original(program: Program, edit: ReadOriginalEdit) -> Changes | None:
    """Read `x` in place of `x.clone()`, `torch.clone(x)` or `copy.deepcopy(x)` at the line.

    None where the function writes to one of the two; a deep copy, which may be of a list or a
    dictionary, must besides be read by its elements alone: no other code may change it.
    """
    copies = [call for call in program.calls("clone", "deepcopy") if _copied(program, call)]
    call = program.only_call(copies, edit.line)
    original = None if call is None else _copied(program, call)
    if call is None or original is None:
        return None
    scope = program.innermost(program.of(cst.FunctionDef), edit.line) or program.module
    name = _assigned_name(program, call)
    roots = {name, _root(original)} - {None}
    if any(_root(written) in roots for written in _written(scope)):
        return None
    is_deep = last_name(call.func) == "deepcopy"
    if is_deep and (name is None or not _is_read_by_elements(program, scope, name)):
        return None
    start, end = program.span(call)
    if "#" in program.code[start:end]:
        return None  # a comment would be lost
    text = source_of(original)
    is_atom = isinstance(original, _ATOMS) or original.lpar
    return [Replaced(start, end, text if is_atom else f"({text})")]


def _copied(program: Program, call: cst.Call) -> cst.BaseExpression | None:
    """Return what a call copies as a whole; None: it copies nothing, or in a certain way."""
    full_name = program.full_name(call.func)
    if full_name in ("torch.clone", "copy.deepcopy"):
        plain = len(call.args) == 1 and not call.args[0].star and call.args[0].keyword is None
        return call.args[0].value if plain else None
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "clone"
    if not is_method or call.args or program.imported.get(full_name.split(".")[0]):
        return None
    return cst.ensure_type(call.func, cst.Attribute).value


def _assigned_name(program: Program, call: cst.Call) -> str | None:
    """Return the name that a copy is assigned to; None: it goes elsewhere."""
    assign = program.parents.get(call)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target = assign.targets[0].target
    return target.value if isinstance(target, cst.Name) else None


def _root(node: cst.BaseExpression) -> str | None:
    """Return the name that an expression begins with, as `x` in `x.detach()[0]`."""
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else None


def _written(scope: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what a scope changes in place, by what the source shows."""
    syntax = Syntax(scope)
    yield from (
        target for target in syntax.targets if isinstance(target, (cst.Subscript, cst.Attribute))
    )
    yield from (assignment.target for assignment in syntax.of(cst.AugAssign))
    yield from (node.target for node in syntax.of(cst.Del))
    for call in syntax.calls():
        yield from (arg.value for arg in call.args if arg.keyword and arg.keyword.value == "out")
        if isinstance(call.func, cst.Attribute):
            method = call.func.attr.value
            in_place = method.endswith("_") and not method.endswith("__")
            if in_place or method in _CHANGING:
                yield call.func.value


def _is_read_by_elements(program: Program, scope: cst.CSTNode, name: str) -> bool:
    """Return True if a name is read as `name[...]` or `name.attribute` alone."""
    for use in Syntax(scope).of(cst.Name):
        above = program.parents.get(use)
        if use.value != name or isinstance(above, cst.AssignTarget):
            continue
        if not isinstance(above, (cst.Subscript, cst.Attribute)) or above.value is not use:
            return False
    return True
