"""Calls that only report, moved to where their result is read, or made in every so many steps."""

import re
from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits import RareCallEdit
from torchdoctor.edits.bindings import Bindings
from torchdoctor.edits.changes import Changes, Inserted, Removed, Reshaped
from torchdoctor.edits.syntax import Block, Program, Syntax, called, last_name, source_of

_SEVERAL = re.compile(r"torch\.distributed|torch\.nn\.parallel|accelerate|deepspeed|horovod")
_OF_ONE_RANK = re.compile(r"rank|main|master|primary|is_zero")
_WITH_STEP = 3  # arguments of a range


def called_rarely(program: Program, edit: RareCallEdit) -> Changes | None:
    """Change each statement that calls the function; None if that is not certain for one."""
    changes: Changes = []
    for call in program.calls(edit.function):
        above: cst.CSTNode = program.parents[call]
        if not isinstance(above, (cst.Expr, cst.Assign)):
            if any(isinstance(node, cst.If) for node in program.around(call)):
                continue  # it reports, in some of the steps
            return None
        statement = program.parents[above]
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return None
        block, number = program.place_of(statement)
        if _is_conditional(program, block):
            continue
        call_changes = (
            _every(program, block, number, edit.every)
            if called(statement) is not None
            else _moved(program, block, number)
        )
        if call_changes is None:
            return None
        changes += call_changes
    return changes if program.calls(edit.function) else None


def _is_conditional(program: Program, block: Block) -> bool:
    return isinstance(program.parents.get(block), cst.If)


def _moved(program: Program, block: Block, number: int) -> Changes | None:
    """Move an assignment into the one `if` below it, of the same block, that reads its name."""
    statement = cst.ensure_type(block.body[number], cst.SimpleStatementLine)
    assign = cst.ensure_type(statement.body[0], cst.Assign)
    names = [
        target.target.value for target in assign.targets if isinstance(target.target, cst.Name)
    ]
    if len(names) != 1 or len(assign.targets) != 1 or not isinstance(block, cst.IndentedBlock):
        return None
    name = names[0]
    scope = _function(program, block)
    readers = [reader for reader in Syntax(scope).of(cst.Name) if reader.value == name]
    readers = [reader for reader in readers if reader is not assign.targets[0].target]
    places = [
        n for n, line in enumerate(block.body) if set(Syntax(line).of(cst.Name)) & set(readers)
    ]
    if len(places) != 1 or places[0] < number:
        return None
    reader = block.body[places[0]]
    if not isinstance(reader, cst.If) or not isinstance(reader.body, cst.IndentedBlock):
        return None
    inside = Syntax(reader.body).of(cst.Name)
    if reader.orelse is not None or any(reader not in inside for reader in readers):
        return None
    if _differs_by_rank(program, reader.test):
        return None  # what is called there may need every rank
    between = block.body[number + 1 : places[0]]
    learns = any(Syntax(line).calls("step", "backward") for line in between)
    if learns or set(_names(assign.value)) & _changed(between):
        return None
    code = source_of(statement)
    made = statement.with_changes(leading_lines=())
    return [Removed(block, number), Inserted(reader.body, 0, code, statement=made)]


def _differs_by_rank(program: Program, test: cst.BaseExpression) -> bool:
    several = any(_SEVERAL.match(name) for name in program.imported.values())
    return several or _OF_ONE_RANK.search(source_of(test)) is not None


def _function(program: Program, block: Block) -> cst.CSTNode:
    around = [block, *program.around(block)]
    return next((node for node in around if isinstance(node, cst.FunctionDef)), program.module)


def _names(node: cst.CSTNode) -> list[str]:
    return [name.value for name in Syntax(node).of(cst.Name)]


def _changed(statements: Sequence[cst.CSTNode]) -> set[str]:
    """Return the names that statements assign to, or hand to a call that may change them."""
    changed: set[str] = set()
    for statement in statements:
        syntax = Syntax(statement)
        for target in syntax.targets:
            changed |= set(_names(target))
        for call in syntax.calls():
            if last_name(call.func) not in ("print", "float", "int", "len", "item"):
                changed |= set(_names(call))
    return changed


def _every(program: Program, block: Block, number: int, every: int) -> Changes | None:
    """Put a statement under `if step % 10 == 0:`, where the loop around it counts its steps."""
    loop = program.parents.get(block)
    if not isinstance(loop, (cst.For, cst.While)):
        return None
    counter = _counter(loop)
    if counter is None or not Bindings(program).bound(counter, block, number):
        return None
    test = f"{counter} % {every} == 0"

    def under(made: cst.CSTNode) -> list[cst.CSTNode]:
        statement = cst.ensure_type(made, cst.SimpleStatementLine)
        inside = cst.IndentedBlock([statement.with_changes(leading_lines=())])
        condition = cst.parse_expression(test)
        return [cst.If(test=condition, body=inside, leading_lines=statement.leading_lines)]

    return [Reshaped(block, number, f"if {test}", under)]


def _counter(loop: cst.For | cst.While) -> str | None:
    """Return the name that goes up by one in each pass of a loop."""
    if isinstance(loop, cst.For):
        target = loop.target
        iterated = loop.iter
        if isinstance(iterated, cst.Call) and last_name(iterated.func) == "range":
            by_one = len(iterated.args) < _WITH_STEP
            return target.value if by_one and isinstance(target, cst.Name) else None
        counts = isinstance(iterated, cst.Call) and last_name(iterated.func) == "enumerate"
        if counts and isinstance(target, cst.Tuple) and len(target.elements) == 2:
            first = target.elements[0].value
            return first.value if isinstance(first, cst.Name) else None
    lines = [line for line in loop.body.body if isinstance(line, cst.SimpleStatementLine)]
    for part in [
        statement
        for line in lines
        for statement in line.body
        if isinstance(statement, cst.AugAssign)
    ]:
        adds = isinstance(part.operator, cst.AddAssign) and source_of(part.value) == "1"
        if adds and isinstance(part.target, cst.Name):
            name = part.target.value
            here = [target for target in Syntax(loop.body).targets if source_of(target) == name]
            return name if len(here) == 1 else None
    return None
