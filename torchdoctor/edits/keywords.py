"""Edits of one argument of a call, with the white space and comments around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import libcst as cst

from torchdoctor.edits import DropKeywordEdit, KeywordEdit
from torchdoctor.edits.options import at_its_source, command_instead, read_elsewhere
from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import (
    WHOLE,
    Ranges,
    argument_number,
    calls_of,
    only_call,
    parsed,
    replaced,
    source_of,
    with_argument,
)


def with_keyword(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """Return the call with one more argument, laid out like the others."""
    added = cst.Arg(
        value=value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return call.with_changes(args=_appended(call, added))


def _appended(call: cst.Call, added: cst.Arg) -> list[cst.Arg]:
    arguments = list(call.args)
    if not arguments:
        return [added]
    last = arguments[-1]
    comma = last.comma if isinstance(last.comma, cst.Comma) else None
    before_end = last.whitespace_after_arg if comma is None else comma.whitespace_after
    if not isinstance(before_end, cst.ParenthesizedWhitespace):
        between = _line_break(call) or cst.SimpleWhitespace(" ")
        added = added.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(
            comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
        )
        return [*arguments[:-1], last, added]
    # The closing bracket stands on a line of its own, and so shall the new argument. A comment
    # before the bracket belongs to the argument that was the last.
    line_break = _line_break(call) or before_end
    between = before_end.with_changes(indent=line_break.indent, last_line=line_break.last_line)
    end = cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(newline=before_end.first_line.newline),
        indent=before_end.indent,
        last_line=before_end.last_line,
    )
    last = last.with_changes(
        comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
    )
    if comma is not None:
        added = added.with_changes(comma=cst.Comma(whitespace_after=end))
    else:
        added = added.with_changes(whitespace_after_arg=end)
    return [*arguments[:-1], last, added]


def _line_break(call: cst.Call) -> cst.ParenthesizedWhitespace | None:
    """Return the line break between two of the call's arguments, without its comment."""
    commas = [a.comma.whitespace_after for a in call.args[:-1] if isinstance(a.comma, cst.Comma)]
    for space in (*reversed(commas), call.whitespace_before_args):
        if isinstance(space, cst.ParenthesizedWhitespace):
            return cst.ParenthesizedWhitespace(
                first_line=cst.TrailingWhitespace(newline=space.first_line.newline),
                indent=space.indent,
                last_line=space.last_line,
            )
    return None


def without(call: cst.Call, number: int) -> cst.Call:
    """Return a call without one argument, whose own comment goes with it.

    What ends its line stays, where the argument before it stands on the same one, and what is said
    on lines of their own above it and above the next one.
    """
    arguments = call.args
    dropped, left = arguments[number], [*arguments[:number], *arguments[number + 1 :]]
    next_line = _space(dropped)
    if not number:
        space = _joined(call.whitespace_before_args, next_line)
        return call.with_changes(args=left, whitespace_before_args=space)
    before, last = arguments[number - 1], number == len(left)
    space = _space(before)
    if isinstance(space, cst.ParenthesizedWhitespace):
        if last and not isinstance(next_line, cst.ParenthesizedWhitespace):
            space = next_line
        else:
            space = _joined(space, next_line)
    elif last or isinstance(next_line, cst.ParenthesizedWhitespace):
        space = next_line
    if isinstance(before.comma, cst.Comma) and (not last or isinstance(dropped.comma, cst.Comma)):
        comma = before.comma.with_changes(whitespace_after=space)
        left[number - 1] = before.with_changes(comma=comma)
    else:
        left[number - 1] = before.with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=space
        )
    return call.with_changes(args=left)


def _joined(
    space: cst.BaseParenthesizableWhitespace, below: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """Return white space with the comment lines of the white space below it as well."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    if not isinstance(below, cst.ParenthesizedWhitespace):
        return space
    lines = [*space.empty_lines, *below.empty_lines]
    return below.with_changes(first_line=space.first_line, empty_lines=lines)


def _space(argument: cst.Arg) -> cst.BaseParenthesizableWhitespace:
    """Return what stands between an argument with its comma and the next one or the bracket."""
    if isinstance(argument.comma, cst.Comma):
        return argument.comma.whitespace_after
    return argument.whitespace_after_arg


_LITERALS = ("True", "False", "None")


def with_keyword_set(module: cst.Module, ranges: Ranges, edit: KeywordEdit) -> cst.Module | None:
    """Return the module with the argument set, at its source if that is an option or a constant."""
    asked, call = edit, _call_of(module, ranges, edit)
    if call is None:
        return None
    needed = argument_number(call, edit.needs or "")
    if needed is not None and is_computed(module, call.args[needed].value):
        edit = replace(edit, value=_guarded(call.args[needed].value, edit))
    value = cst.parse_expression(edit.value)
    present = argument_number(call, edit.keyword, edit.position)
    if present is None:
        starred = any(argument.star for argument in call.args)
        return None if starred else replaced(module, call, with_keyword(call, edit.keyword, value))
    old = call.args[present].value
    if old.deep_equals(value):
        return module
    if is_computed(module, old):
        return at_its_source(module, old, asked)
    return replaced(module, call, with_argument(call, present, value))


def without_keyword(module: cst.Module, ranges: Ranges, edit: DropKeywordEdit) -> cst.Module | None:
    """Return the module with one argument of a call left out; the same if the call has it not."""
    call = _call_of(module, ranges, edit)
    if call is None or any(argument.star for argument in call.args):
        return None
    present = argument_number(call, edit.keyword, edit.position)
    if present is None:
        return module
    argument = call.args[present]
    if argument.keyword is None:
        return None  # arguments behind it would move up
    if edit.only_literal and source_of(argument.value) not in _LITERALS:
        return None
    other = argument_number(call, edit.unless or "")
    if other is not None and is_computed(module, call.args[other].value):
        computed = re.escape(source_of(call.args[other].value))
        if re.search(rf"(?<!\w){computed}(?!\w)", source_of(argument.value)):
            return module
    return replaced(module, call, without(call, present))


def _guarded(value: cst.BaseExpression, edit: KeywordEdit) -> str:
    """Return `args.workers > 0` for persistent_workers: the program still runs with --workers 0."""
    needed = source_of(value)
    if not isinstance(value, WHOLE) and not value.lpar:
        needed = f"({needed})"
    return f"{needed} > 0" if edit.value == "True" else f"{edit.value} if {needed} > 0 else None"


def _call_of(
    module: cst.Module, ranges: Ranges, edit: KeywordEdit | DropKeywordEdit
) -> cst.Call | None:
    calls = calls_of(module, edit.callee)
    return only_call(calls, ranges, edit.line)


@dataclass(frozen=True)
class GivenArgument:
    """A call that an edit is about, and the value of the argument if the call has it."""

    module: cst.Module
    ranges: Ranges
    call: cst.Call
    value: cst.BaseExpression | None


def given_argument(source: str, edit: KeywordEdit) -> GivenArgument | None:
    """Return the argument as it stands in the source; None if the call cannot be told."""
    try:
        module, ranges = parsed(source)
        call = _call_of(module, ranges, edit)
    except Exception:  # as in `edited`
        return None
    if call is None:
        return None
    present = argument_number(call, edit.keyword, edit.position)
    value = None if present is None else call.args[present].value
    return GivenArgument(module, ranges, call, value)


def by_command(given: GivenArgument, edit: KeywordEdit) -> list[str] | None:
    """Return the command to give instead, if the argument comes from an option that it gives."""
    try:
        return None if given.value is None else command_instead(given.module, given.value, edit)
    except Exception:  # as in `edited`
        return None


def also_reading(given: GivenArgument, edit: KeywordEdit) -> tuple[str, list[int]] | None:
    """Return the option whose default the edit changes, and other lines that read it."""
    if given.value is None:
        return None
    option = read_elsewhere(given.module, given.call, given.value, edit)
    if option is None:
        return None
    name, reads = option
    return name, sorted({given.ranges[read].start.line for read in reads})


def by_hand(given: GivenArgument) -> str | None:
    """Return where the argument comes from, as source: "**options", "config.num_workers"."""
    if given.value is not None:
        return source_of(given.value) if is_computed(given.module, given.value) else None
    stars = [x for x in given.call.args if x.star]
    return next((f"{x.star}{source_of(x.value)}" for x in stars), None)
