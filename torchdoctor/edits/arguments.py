"""Arguments of a call, with the white space and comments between them."""

from __future__ import annotations

import libcst as cst


def with_keyword(call: cst.Call, name: str, value: str) -> list[cst.Arg]:
    """The call's arguments and one more, laid out like the others."""
    added = cst.Arg(
        value=cst.parse_expression(value),
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return appended(call, added)


def appended(call: cst.Call, added: cst.Arg) -> list[cst.Arg]:
    """The call's arguments and one more, laid out like the others."""
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
    """The line break between two of the call's arguments, without its comment."""
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
    """A call without one argument, whose own comment goes with it.

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
    """White space with the comments on lines of their own that stand below it as well."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    if not isinstance(below, cst.ParenthesizedWhitespace):
        return space
    lines = [*space.empty_lines, *below.empty_lines]
    return below.with_changes(first_line=space.first_line, empty_lines=lines)


def _space(argument: cst.Arg) -> cst.BaseParenthesizableWhitespace:
    """What stands between an argument, its comma included, and the next one or the bracket."""
    if isinstance(argument.comma, cst.Comma):
        return argument.comma.whitespace_after
    return argument.whitespace_after_arg
