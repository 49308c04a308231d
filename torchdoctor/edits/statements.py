"""A statement at the head of a module, or in place of the program's own that sets the same."""

import re
import sys
from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits import AssignedEdit, StatementEdit
from torchdoctor.edits.changes import Changes, Inserted, Replaced
from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import (
    NAMES,
    Program,
    Syntax,
    called,
    imports,
    same_statement,
    source_of,
)


def with_statement(program: Program, edit: StatementEdit) -> Changes | None:
    """Insert the statement behind the imports at the head, or change the program's own.

    None where the program sets the same in a function or branch, or more than once.
    """
    added = cst.ensure_type(cst.parse_statement(edit.statement), cst.SimpleStatementLine)
    body = list(program.module.body)
    setting = _setting(program, added)
    wanted = {setting, *NAMES["synonyms"].get(setting, ())} - {""}
    occurrences: list[cst.CSTNode] = [
        target for target in program.targets if program.full_name(target) in wanted
    ]
    occurrences += [call for call in program.calls() if program.full_name(call.func) in wanted]
    if len(occurrences) < 2 and any(same_statement(line, added) for line in body):
        return []
    made = re.match(r"\w+ = ", edit.statement)  # otherwise the owner of what is set comes first
    owner = edit.statement[made.end() if made else 0 :].split(".", 1)[0]
    name = "" if _imports_only(added) else owner
    if not name and program.imports(edit.statement.removeprefix("import ")):
        return []
    after = last_import(body, name)
    if after is None:
        return None
    if occurrences:
        return _own_changed(program, occurrences, setting, added)
    inserted = Inserted(
        program.module,
        after if name else _beside_its_like(body[: after + 1], edit.statement, after),
        edit.statement,
        after=True,
        blank_above=bool(name),
        subject=setting,
        statement=added,
    )
    return [inserted]


def with_value(program: Program, edit: AssignedEdit) -> Changes | None:
    """Let the statement at the line assign the value; None: it assigns no such attribute."""
    line = program.innermost(program.of(cst.SimpleStatementLine), edit.line)
    part = line.body[0] if line is not None and len(line.body) == 1 else None
    if not isinstance(part, cst.Assign) or len(part.targets) != 1:
        return None
    target = part.targets[0].target
    if not isinstance(target, cst.Attribute) or target.attr.value != edit.name:
        return None
    if source_of(part.value) == edit.value:
        return []
    return [Replaced(*program.span_with_brackets(part.value), edit.value)]


def last_import(body: Sequence[cst.CSTNode], name: str = "") -> int | None:
    """Return the index of the last import among those with `import name` (any), above any loop."""
    head = None
    for number, line in enumerate(body):
        if isinstance(line, (cst.For, cst.While, cst.FunctionDef, cst.ClassDef)):
            break
        if _imports_only(line) and (head is not None or not name or imports([line], name)):
            head = number
        elif head is not None:
            break
    return head


def _beside_its_like(head: Sequence[cst.CSTNode], statement: str, after: int) -> int:
    """Return the import to put `import copy` behind: the last of the standard library above it."""
    place = None
    if statement.split()[1].split(".")[0] not in sys.stdlib_module_names:
        return after
    for number, line in enumerate(head):
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        for part in line.body:
            code = source_of(part)
            module = code.split()[1].split(".")[0] if isinstance(part, cst.Import) else ""
            if module in sys.stdlib_module_names and (place is None or code < statement):
                place = number
    return after if place is None else place


def _imports_only(line: cst.CSTNode) -> bool:
    """Return True for an import, also within `try` or `if` with nothing that is called."""
    if isinstance(line, cst.SimpleStatementLine):
        return all(isinstance(part, (cst.Import, cst.ImportFrom)) for part in line.body)
    syntax = Syntax(line)
    imported = bool(syntax.of(cst.Import) or syntax.of(cst.ImportFrom))
    return isinstance(line, (cst.Try, cst.If)) and imported and not syntax.calls()


def _setting(program: Program, line: cst.CSTNode) -> str:
    """Return "torch.set_num_threads" of its call, or the name that a statement assigns to."""
    part = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
    if isinstance(part, cst.Assign) and len(part.targets) == 1:
        return program.full_name(part.targets[0].target)
    call = called(line)
    return "" if call is None else program.full_name(call.func)


def _own_changed(
    program: Program,
    occurrences: Sequence[cst.CSTNode],
    setting: str,
    added: cst.SimpleStatementLine,
) -> Changes | None:
    """Give the program's one statement of this kind the new value, if it runs before any loop."""
    for line in program.module.body:
        if isinstance(line, (cst.For, cst.While)) or len(occurrences) != 1:
            return None
        if _setting(program, line) == setting:
            old = _value(line)
            new = _value(added)
            if old is None or new is None or is_computed(program, old):
                return None
            return [Replaced(*program.span_with_brackets(old), source_of(new))]
    return None


def _value(line: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what a statement assigns, or the only argument of its call."""
    part = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if isinstance(part, cst.Assign):
        return part.value
    call = called(line)
    arguments = call.args if call else ()
    return arguments[0].value if len(arguments) == 1 and not arguments[0].star else None
