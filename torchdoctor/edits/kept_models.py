"""A model that a function or a loop makes again and again, made once and kept."""

import textwrap

import libcst as cst

from torchdoctor.edits import KeptModelEdit, StatementEdit
from torchdoctor.edits.changes import Changes, Removed, Reshaped
from torchdoctor.edits.made_models import MadeModel, made_model
from torchdoctor.edits.statements import with_statement
from torchdoctor.edits.syntax import LED, Program

_NAME = "_kept_model"
_MOST_KEPT = 4  # models


def with_kept_model(program: Program, edit: KeptModelEdit) -> Changes | None:
    """Move what makes the model into a function that keeps it; None where that is not sure."""
    if f"def {_NAME}(" in program.code:
        return []
    made = made_model(program.code, edit.line, edit.name)
    if made is None or _NAME in program.code:
        return None
    places = [program.statement_at(line) for line in range(made.first, made.last + 1)]
    statements = list(dict.fromkeys(place for place in places if place is not None))
    imported = with_statement(program, StatementEdit(file="", statement="import functools"))
    if imported is None or not statements:
        return None
    block, first = statements[0]
    top = next(node for node in program.around(block.body[first]) if node in program.module.body)
    code = _code(program, made)
    call = f"{made.name} = {_NAME}({', '.join(made.given)})"
    return [
        *imported,
        Reshaped(*program.place_of(top), _NAME, lambda statement: _below(statement, code)),
        Reshaped(block, first, call, lambda statement: [_in_place(statement, call)]),
        *(Removed(*place) for place in statements[1:]),
    ]


def _code(program: Program, made: MadeModel) -> str:
    """Return the function that makes the model, and keeps it."""
    lines = program.code.split("\n")[made.first - 1 : made.last]
    body = textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")
    keeps = f"functools.lru_cache(maxsize={_MOST_KEPT})" if made.given else "functools.cache"
    head = f"def {_NAME}({', '.join(made.given)}):"
    return f"@{keeps}\n{head}\n{body}\n    return {made.name}\n"


def _below(statement: cst.CSTNode, code: str) -> list[cst.CSTNode]:
    """Return the new function and what it stands above, set apart."""
    blank = [cst.EmptyLine(indent=False)] * 2
    kept = cst.parse_statement(code).with_changes(leading_lines=blank)
    lines = statement.leading_lines if isinstance(statement, LED) else ()
    comments = [line for line in lines if line.comment is not None]
    return [kept, statement.with_changes(leading_lines=[*blank, *comments])]


def _in_place(statement: cst.CSTNode, call: str) -> cst.CSTNode:
    lines = statement.leading_lines if isinstance(statement, LED) else ()
    return cst.parse_statement(call).with_changes(leading_lines=lines)
