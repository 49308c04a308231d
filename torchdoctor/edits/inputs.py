"""Changes what a model gets: its first argument, such as `model(x)` -> `model(x.to(...))`."""

import libcst as cst

from torchdoctor.edits import InputEdit
from torchdoctor.edits.changes import Around, Changes, Replaced
from torchdoctor.edits.syntax import WHOLE, Program, source_of

_ARGUMENT = "{argument}"  # in the method of an edit: stands in place of the argument


def with_input(program: Program, edit: InputEdit) -> Changes | None:
    """Chain a method to the call's first argument: `model(x)` -> `model(x.to(...))`."""
    call = program.only_call(program.calls_by(edit.callee), edit.line)
    if call is None or not program.imports("torch") or not call.args:
        return None
    first = call.args[0]
    if source_of(first.value).endswith(edit.method):
        return []
    if first.star or first.keyword is not None or not isinstance(first.value, WHOLE):
        return None
    span = program.span_with_brackets(first.value)
    if _ARGUMENT not in edit.method:
        return [Around(*span, before="", behind=edit.method)]
    if not isinstance(first.value, cst.Name):
        return None
    return [Replaced(*span, text=edit.method.format(argument=first.value.value))]
