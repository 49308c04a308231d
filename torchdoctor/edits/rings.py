"""A list that is overwritten in a ring in place of a deque, whose elements stay in their order."""

import re

import libcst as cst

from torchdoctor.edits import RingEdit
from torchdoctor.edits.changes import Changes, Replaced, Reshaped
from torchdoctor.edits.syntax import Program, argument, called, last_name, source_of

_DEQUE = "collections.deque"
_SAMPLE = "random.sample"


def with_ring(program: Program, edit: RingEdit) -> Changes | None:
    """Change all uses of the deque, a field of the program's own; None if one is not known."""
    fields = {
        attribute for attribute in program.of(cst.Attribute) if program.covers(attribute, edit.line)
    }
    names = {field.attr.value for field in fields if source_of(field.value) == "self"}
    deques = {name: _made(program, name) for name in names}
    fitting = [(name, made) for name, made in deques.items() if made is not None]
    if not fitting and re.search(r"self\.\w+_oldest = 0\b", program.code):
        return []
    if len(fitting) != 1:
        return None
    name, (statement, call) = fitting[0]
    bound = argument(call, "maxlen", 1)
    if bound is None or source_of(bound) == "None":
        return None
    if len(call.args) > 1 and source_of(call.args[0].value) not in ("[]", "()"):
        return None
    changes: Changes = []
    for use in program.of(cst.Attribute):
        if use.attr.value == name and use is not statement.targets[0].target:
            use_changes = _use(program, use)
            if use_changes is None:
                return None
            changes += use_changes
    begin = cst.parse_module(
        f"self.{name} = []\nself.{name}_size = {source_of(bound)}\nself.{name}_oldest = 0\n"
    ).body
    line = program.parents[statement]

    def begun(made: cst.CSTNode) -> list[cst.CSTNode]:
        old_line = cst.ensure_type(made, cst.SimpleStatementLine)
        return [begin[0].with_changes(leading_lines=old_line.leading_lines), *begin[1:]]

    return [*changes, Reshaped(*program.place_of(line), f"ring {name}", begun)]


def _made(program: Program, name: str) -> tuple[cst.Assign, cst.Call] | None:
    """Return the one statement of an `__init__` that makes a field a deque, and its call."""
    assigns = []
    for assign in program.of(cst.Assign):
        targets = [source_of(target.target) for target in assign.targets]
        if f"self.{name}" in targets:
            assigns.append(assign)
    if len(assigns) != 1 or len(assigns[0].targets) != 1:
        return None
    assign = assigns[0]
    value = assign.value
    if not isinstance(value, cst.Call) or program.full_name(value.func) != _DEQUE:
        return None
    line = program.parents[assign]
    around = list(program.around(assign))
    first = next((node for node in around if isinstance(node, cst.FunctionDef)), None)
    if first is None or first.name.value != "__init__" or any(arg.star for arg in value.args):
        return None
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    return (assign, value) if alone else None


def _use(program: Program, use: cst.Attribute) -> Changes | None:
    """Return what becomes of one use of the field; None where it is no use that is known."""
    code = source_of(use)
    above = program.parents[use]
    if source_of(use.value) != "self":
        return None
    if isinstance(above, cst.Attribute):
        return _append(program, use, above)
    if isinstance(above, cst.Subscript):
        return _subscript(program, use, above)
    call = program.parents.get(above)
    if not isinstance(above, cst.Arg) or not isinstance(call, cst.Call):
        return None
    if last_name(call.func) == "len":
        return []
    drawn = program.full_name(call.func) == _SAMPLE and call.args[0] is above
    size = argument(call, "k", 1)
    if not drawn or len(call.args) != 2 or size is None:
        return None
    place = f"({code}_oldest + i) % len({code})"
    picked = f"{source_of(call.func)}(range(len({code})), {source_of(size)})"
    text = f"[{code}[{place}] for i in {picked}]"
    return [Replaced(*program.span_with_brackets(call), text)]


def _append(program: Program, use: cst.Attribute, method: cst.Attribute) -> Changes | None:
    call = program.parents[method]
    expression = program.parents[call]
    line = program.parents.get(expression)
    if method.attr.value != "append" or line is None or called(line) is not call:
        return None
    given = [arg for arg in getattr(call, "args", ()) if not arg.star and arg.keyword is None]
    if len(given) != 1:
        return None
    code = source_of(use)
    value = source_of(given[0].value)
    ring = cst.parse_statement(
        f"if len({code}) < {code}_size:\n"
        f"    {code}.append({value})\n"
        "else:\n"
        f"    {code}[{code}_oldest] = {value}\n"
        f"    {code}_oldest = ({code}_oldest + 1) % {code}_size\n"
    )

    def overwritten(made: cst.CSTNode) -> list[cst.CSTNode]:
        old_line = cst.ensure_type(made, cst.SimpleStatementLine)
        return [ring.with_changes(leading_lines=old_line.leading_lines)]

    return [Reshaped(*program.place_of(line), f"append {code}", overwritten)]


def _subscript(program: Program, use: cst.Attribute, above: cst.Subscript) -> Changes | None:
    """Return the change of `self.memory[i]`, which is only read."""
    if above.value is not use or len(above.slice) != 1 or above in program.targets:
        return None
    index = above.slice[0].slice
    code = source_of(use)
    if not isinstance(index, cst.Index) or not isinstance(index.value, cst.Name):
        return None
    if isinstance(program.parents[above], cst.Del):
        return None
    text = f"({code}_oldest + {source_of(index.value)}) % len({code})"
    return [Replaced(*program.span(index.value), text)]
