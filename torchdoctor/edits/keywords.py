"""Edits of one argument of a call, at the call or where the argument's value comes from."""

import re
from collections.abc import Sequence

import libcst as cst
from msgspec.structs import replace

from torchdoctor.edits import DropKeywordEdit, KeywordEdit
from torchdoctor.edits.changes import ArgumentAdded, ArgumentDropped, Change, Changes, Replaced
from torchdoctor.edits.options import at_its_source
from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import WHOLE, Program, argument, argument_number, source_of

_LITERALS = ("True", "False", "None")


def with_keyword_set(
    program: Program, edit: KeywordEdit, beside: Sequence[Change] = ()
) -> Changes | None:
    """Return the changes that set the argument, at its source if that is an option or a constant.

    `beside`: what other edits change, which may be the number that this argument needs.
    """
    asked = edit
    call = call_of(program, edit)
    if call is None:
        return None
    needed = argument(call, edit.needs or "")
    written = _is_written(program, call, edit.needs or "", beside)
    if needed is not None and is_computed(program, needed) and not written:
        edit = replace(edit, value=_guarded(needed, edit))
    old = argument(call, edit.keyword, edit.position)
    if old is None:
        if any(arg.star for arg in call.args):
            return None
        return [ArgumentAdded(call, edit.keyword, edit.value)]
    if old.deep_equals(cst.parse_expression(edit.value)):
        return []
    if is_computed(program, old):
        return at_its_source(program, old, asked)
    return [Replaced(*program.span(old), edit.value)]


def _is_written(program: Program, call: cst.Call, keyword: str, beside: Sequence[Change]) -> bool:
    """Return True if another edit writes this argument of a call itself, not where it is from."""
    old = argument(call, keyword)
    return old is not None and any(
        isinstance(change, Replaced) and (change.start, change.end) == program.span(old)
        for change in beside
    )


def without_keyword(
    program: Program, edit: DropKeywordEdit, beside: Sequence[Change] = ()
) -> Changes | None:
    """Return the changes that leave out one argument of a call; none if the call has it not."""
    call = call_of(program, edit)
    if call is None or any(arg.star for arg in call.args):
        return None
    number = argument_number(call, edit.keyword, edit.position)
    if number is None:
        return []
    given = call.args[number]
    if given.keyword is None:
        return None  # arguments behind it would move up
    if edit.only_literal and source_of(given.value) not in _LITERALS:
        return None
    other = argument(call, edit.unless or "")
    written = _is_written(program, call, edit.unless or "", beside)
    if other is not None and is_computed(program, other) and not written:
        computed = re.escape(source_of(other))
        if re.search(rf"(?<!\w){computed}(?!\w)", source_of(given.value)):
            return []
    return [ArgumentDropped(call, number)]


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
    value = argument_of(program, edit)
    call = call_of(program, edit)
    if value is not None:
        return source_of(value) if is_computed(program, value) else None
    given = call.args if call else ()
    return next((f"{arg.star}{source_of(arg.value)}" for arg in given if arg.star), None)
