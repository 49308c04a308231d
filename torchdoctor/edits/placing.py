"""A statement before the loop that trains, where all that it needs has a value."""

import libcst as cst

from torchdoctor.edits import BeforeLoopEdit
from torchdoctor.edits.bindings import Bindings, names_read, names_set
from torchdoctor.edits.changes import Changes, Inserted
from torchdoctor.edits.syntax import Block, Program, Syntax, last_name, same_statement, source_of

Place = tuple[Block, int]


def before_loop(program: Program, edit: BeforeLoopEdit) -> Changes | None:
    """Insert a statement before the outermost loop around a line, within its function."""
    added = cst.parse_statement(edit.statement, program.module.config_for_parsing)
    if not program.imports("torch"):
        return None
    if _in_effect(program, edit.line, added):
        return []
    if _sometimes(program, added, edit.name):
        return None
    names = {name.value for name in program.of(cst.Name)}
    if isinstance(added, cst.For) and source_of(added.target) in names:
        return None  # the added loop would overwrite it
    place = _wanted(program, edit)
    place = None if place is None else _where_bound(program, place, edit, added)
    if place is None:
        return None
    return [Inserted(*place, edit.statement, statement=added)]


def _around(program: Program, line: int) -> list[Place]:
    """Return the blocks around a line within its function, the outermost first."""
    scope = program.innermost(program.scopes, line)
    places = []
    for block in Syntax(scope.body if scope is not None else program.module).blocks:
        for number, statement in enumerate(block.body):
            if program.covers(statement, line):
                places.append((block, number))
                break
    return places


def _wanted(program: Program, edit: BeforeLoopEdit) -> Place | None:
    """Return the loop to insert above, or the statement itself where no loop is needed."""
    scope = program.innermost(program.scopes, edit.line)
    if isinstance(scope, cst.ClassDef):
        return None
    scope_name = "<module>" if scope is None else scope.name.value
    # A comprehension and a lambda have frames of their own.
    ran_in = edit.function if edit.function == "<module>" or edit.function[:1] != "<" else ""
    if ran_in and ran_in.rpartition(".")[2] != scope_name:
        return None  # the file is not what ran
    places = _around(program, edit.line)
    for block, number in places:
        loop = block.body[number]
        if isinstance(loop, (cst.For, cst.While)) and not _assigns(program, loop, edit.name):
            return block, number
    return None if edit.needs_loop or not places else places[-1]


def _where_bound(
    program: Program, wanted: Place, edit: BeforeLoopEdit, added: cst.CSTNode
) -> Place | None:
    """Return the wanted place, or the first one below it where all names have a value."""
    bindings = Bindings(program)
    needed = dict.fromkeys([*names_read(added), edit.name])
    if not all(bindings.is_local(name, wanted[0]) for name in names_set(added)):
        return None  # it would be a new variable of the function
    if all(bindings.bound(name, *wanted) for name in needed):
        return wanted
    places = _around(program, edit.line)
    for block, end in places[places.index(_outermost(places, wanted)) :]:
        if _within_loop(program, block, wanted[0]):
            break
        bound_at = [bindings.last_in(name, block, end) for name in needed]
        numbers = [number for number in bound_at if number is not None]
        if not numbers:
            continue
        place = block, max(numbers) + 1
        if all(bindings.bound(name, *place) for name in needed):
            return place
    return None


def _outermost(places: list[Place], wanted: Place) -> Place:
    return next(place for place in places if place[0] is wanted[0])


def _within_loop(program: Program, block: Block, outer: Block) -> bool:
    """Return True if a loop lies between two blocks: a statement there would run at each turn."""
    node: cst.CSTNode = block
    while node is not outer:
        node = program.parents[node]
        if isinstance(node, (cst.For, cst.While)):
            return True
    return False


def _in_effect(program: Program, line: int, added: cst.CSTNode) -> bool:
    """Return True if every run that reaches a line has passed this statement."""
    return any(
        program.line(statement) <= line and same_statement(statement, added)
        for block in program.blocks
        if isinstance(block, cst.Module) or program.covers(block, line)
        for statement in block.body
    )


def _sometimes(program: Program, added: cst.CSTNode, name: str) -> bool:
    """Return True if the program does the same in a branch or a function, now and then."""
    if any(same_statement(line, added) for block in program.blocks for line in block.body):
        return True
    if not Syntax(added).calls("compile"):
        return False
    compiled = [
        source_of(call.args[0].value) for call in program.calls_by("torch.compile") if call.args
    ]
    return name in compiled or bool(program.calls_by(f"{name}.compile"))


def _assigns(program: Program, loop: cst.For | cst.While, name: str) -> bool:
    """Return True if a loop, or a function that it calls, makes what goes by this name."""
    wanted = {name, name.split(".", 1)[0]}
    syntax = Syntax(loop)
    if wanted & {source_of(target) for target in syntax.targets}:
        return True
    waiting = list(program.of(cst.FunctionDef))
    names = {last_name(call.func) for call in syntax.calls()}
    while reached := [function for function in waiting if function.name.value in names]:
        for function in reached:
            waiting.remove(function)
            inside = Syntax(function)
            shared = {node.name.value for node in inside.of(cst.NameItem)}
            made = {source_of(target) for target in inside.targets}
            if wanted & {target for target in made if "." in target or target in shared}:
                return True
            names |= {last_name(call.func) for call in inside.calls()}
    return False
