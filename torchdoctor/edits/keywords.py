"""Edits of one argument of a call, with the white space and comments around it."""

import re

import libcst as cst
from msgspec.structs import replace

from torchdoctor.edits import DropKeywordEdit, KeywordEdit
from torchdoctor.edits.options import at_its_source
from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import WHOLE, Program, Splice, argument, argument_number, source_of

_LITERALS = ("True", "False", "None")
_REST_OF_LINE = re.compile(r"[ \t]*,?[ \t]*(#[^\n]*)?\r?(\n|$)")
_COMMA = re.compile(r"(\s*,)[ \t]*")


def added_argument(program: Program, call: cst.Call, text: str) -> Splice:
    """Return the change that puts one more argument behind the others, laid out like the last."""
    end = program.span(call)[1] - 1  # the closing bracket
    if not call.args:
        return end, end, text
    code, (start, last_end) = program.code, program.span(call.args[-1])
    tail = code[last_end:end]
    comma = "," if tail.lstrip().startswith(",") else ""
    rest = tail.lstrip()[1:] if comma else tail
    before = code[code.rfind("\n", 0, start) + 1 : start]
    own_line = not before.strip()  # the last argument begins its line
    if "\n" not in rest:
        between = program.module.default_newline + before if own_line else " "
        return last_end, end, f",{between}{text}{rest}"
    # The closing bracket stands on a line of its own, and so shall the new argument. A comment
    # before the bracket belongs to the argument that was the last.
    above, _, closing = rest.rpartition("\n")
    indent = before[: len(before) - len(before.lstrip())]
    if program.line(call) == program.line(call.args[-1]):
        indent += program.module.default_indent
    line_end = "\r\n" if above.endswith("\r") else "\n"
    return last_end, end, f",{above}\n{indent}{text}{comma}{line_end}{closing}"


def _dropped_argument(program: Program, call: cst.Call, number: int) -> Splice:
    """Return the change that takes one argument away; a line of its own goes with its comment."""
    code, (start, end) = program.code, program.span(call.args[number])
    begin = code.rfind("\n", 0, start) + 1
    rest = _REST_OF_LINE.match(code, end)
    if rest and not code[begin:start].strip():
        return begin, rest.end(), ""
    comma = _COMMA.match(code, end)
    if comma:
        end = comma.end()
        if code[end] in "#\r\n":  # white space before a comment, or at a line's end, is its own
            start, end = begin + len(code[begin:start].rstrip()), comma.end(1)
    if number == len(call.args) - 1 and number:
        last_end = program.span(call.args[number - 1])[1]
        if "#" not in code[last_end:start]:
            start = last_end
    return start, end, ""


def with_keyword_set(program: Program, edit: KeywordEdit) -> cst.Module | None:
    """Return the module with the argument set, at its source if that is an option or a constant."""
    asked, call = edit, call_of(program, edit)
    if call is None:
        return None
    needed = argument(call, edit.needs or "")
    if needed is not None and is_computed(program, needed):
        edit = replace(edit, value=_guarded(needed, edit))
    old = argument(call, edit.keyword, edit.position)
    if old is None:
        if any(x.star for x in call.args):
            return None
        return program.spliced(added_argument(program, call, f"{edit.keyword}={edit.value}"))
    if old.deep_equals(cst.parse_expression(edit.value)):
        return program.module
    if is_computed(program, old):
        return at_its_source(program, old, asked)
    return program.replaced(old, edit.value)


def without_keyword(program: Program, edit: DropKeywordEdit) -> cst.Module | None:
    """Return the module with one argument of a call left out; the same if the call has it not."""
    call = call_of(program, edit)
    if call is None or any(x.star for x in call.args):
        return None
    number = argument_number(call, edit.keyword, edit.position)
    if number is None:
        return program.module
    given = call.args[number]
    if given.keyword is None:
        return None  # arguments behind it would move up
    if edit.only_literal and source_of(given.value) not in _LITERALS:
        return None
    other = argument(call, edit.unless or "")
    if other is not None and is_computed(program, other):
        computed = re.escape(source_of(other))
        if re.search(rf"(?<!\w){computed}(?!\w)", source_of(given.value)):
            return program.module
    return program.spliced(_dropped_argument(program, call, number))


def _guarded(value: cst.BaseExpression, edit: KeywordEdit) -> str:
    """Return `args.workers > 0` for persistent_workers: the program still runs with --workers 0."""
    needed = source_of(value)
    if not isinstance(value, WHOLE) and not value.lpar:
        needed = f"({needed})"
    return f"{needed} > 0" if edit.value == "True" else f"{edit.value} if {needed} > 0 else None"


def call_of(program: Program, edit: KeywordEdit | DropKeywordEdit) -> cst.Call | None:
    """Return the call that an edit is about; None if it cannot be told."""
    return program.only_call(program.calls(edit.callee), edit.line)


def argument_of(program: Program, edit: KeywordEdit) -> cst.BaseExpression | None:
    """Return the value of an edit's argument; None if the call has none, or cannot be told."""
    call = call_of(program, edit)
    return None if call is None else argument(call, edit.keyword, edit.position)


def origin_of(program: Program, edit: KeywordEdit) -> str | None:
    """Return where the argument comes from, as source: "**options", "config.num_workers"."""
    value, call = argument_of(program, edit), call_of(program, edit)
    if value is not None:
        return source_of(value) if is_computed(program, value) else None
    given = call.args if call else ()
    return next((f"{x.star}{source_of(x.value)}" for x in given if x.star), None)
