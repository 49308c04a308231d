"""A tensor that a loop joins in each turn, collected in a list and joined once behind the loop."""

from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits import JoinedOnceEdit
from torchdoctor.edits.changes import Changes, Inserted, Replaced
from torchdoctor.edits.syntax import Block, Program, Syntax, argument, source_of

_JOINS = ("torch.cat", "torch.concat", "torch.concatenate", "numpy.concatenate")
_LOOPS = (cst.For, cst.While)
_OF_WHOLE_RESULT = ("dim", "axis")  # arguments that stay with the one call behind the loop


def joined_once(program: Program, edit: JoinedOnceEdit) -> Changes | None:
    """Collect the parts in a list; None where the loop uses the tensor in any other way."""
    place = program.statement_at(edit.line)
    if place is None:
        return None
    block, number = place
    statement = cst.ensure_type(block.body[number], cst.SimpleStatementLine)
    if len(statement.body) != 1:
        return None
    assign = statement.body[0]
    if _is_collected(assign):
        return []
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target = assign.targets[0].target
    parts = _parts(program, assign.value)
    if not isinstance(target, cst.Name) or parts is None:
        return None
    name = target.value
    first, *more = parts
    if source_of(first) != name or not more or f"{name}_parts" in program.code:
        return None
    loop = _outermost_loop(program, statement, name, {target, first})
    if loop is None:
        return None
    return _changes(program, assign, loop, name, more)


def _is_collected(statement: cst.BaseSmallStatement) -> bool:
    """Return True for the statement as this edit writes it."""
    code = source_of(statement)
    return "_parts.append(" in code or "_parts += [" in code


def _parts(program: Program, value: cst.BaseExpression) -> Sequence[cst.BaseExpression] | None:
    """Return the tensors that a call joins, in their order; None: it is no such call."""
    if not isinstance(value, cst.Call) or program.full_name(value.func) not in _JOINS:
        return None
    tensors = argument(value, "tensors", 0)
    names = {arg.keyword.value for arg in value.args if arg.keyword is not None}
    if not isinstance(tensors, (cst.List, cst.Tuple)) or names - {"tensors", *_OF_WHOLE_RESULT}:
        return None
    elements = tensors.elements
    if any(isinstance(element, cst.StarredElement) for element in elements):
        return None
    return [element.value for element in elements]


def _outermost_loop(
    program: Program, statement: cst.CSTNode, name: str, joining: set[cst.CSTNode]
) -> cst.For | cst.While | None:
    """Return the outermost loop that uses the name in this statement alone, which always runs."""
    outermost = None
    for node in program.around(statement):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Try, cst.With)):
            break
        if isinstance(node, _LOOPS):
            uses = {use for use in Syntax(node).of(cst.Name) if use.value == name}
            if uses - joining or node.orelse is not None:
                break
            outermost = node
    if outermost is None or _leaves(outermost):
        return None
    return None if _is_shared(program, outermost, name) else outermost


def _leaves(loop: cst.For | cst.While) -> bool:
    """Return True if the loop may be left so that what stands behind it does not run."""
    syntax = Syntax(loop)
    return bool(syntax.of(cst.Return) or syntax.of(cst.Yield) or syntax.of(cst.Raise))


def _is_shared(program: Program, loop: cst.CSTNode, name: str) -> bool:
    """Return True if other functions may see the name while the loop runs."""
    declarations: list[cst.Global | cst.Nonlocal] = [
        *program.of(cst.Global),
        *program.of(cst.Nonlocal),
    ]
    for declaration in declarations:
        if any(item.name.value == name for item in declaration.names):
            return True
    function = next((n for n in program.around(loop) if isinstance(n, cst.FunctionDef)), None)
    inside = Syntax(function or program.module)
    for scope in inside.of(cst.FunctionDef) + inside.of(cst.Lambda):
        if scope is not function and any(n.value == name for n in Syntax(scope).of(cst.Name)):
            return True
    return False


def _changes(
    program: Program,
    assign: cst.Assign,
    loop: cst.For | cst.While,
    name: str,
    more: Sequence[cst.BaseExpression],
) -> Changes | None:
    call = cst.ensure_type(assign.value, cst.Call)
    parts = f"{name}_parts"
    added = ", ".join(source_of(part) for part in more)
    append = f"{parts}.append({added})" if len(more) == 1 else f"{parts} += [{added}]"
    tensors = argument(call, "tensors", 0)
    rest = [source_of(arg).rstrip(", ") for arg in call.args if arg.value is not tensors]
    joined = f"{name} = {source_of(call.func)}({', '.join([parts, *rest])})"
    try:
        block, number = program.place_of(loop)
    except LookupError:
        return None
    return [
        _inserted(block, number, f"{parts} = [{name}]", after=False),
        Replaced(*program.span(assign), append),
        _inserted(block, number, joined, after=True),
    ]


def _inserted(block: Block, number: int, code: str, after: bool) -> Inserted:
    return Inserted(block, number, code, after=after, statement=cst.parse_statement(code))
