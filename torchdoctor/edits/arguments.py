"""Arguments of a call, with the white space and comments between them."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst


def without(arguments: Sequence[cst.Arg], number: int) -> list[cst.Arg]:
    """All arguments but one, whose own comment goes with it.

    What ends its line stays, where the argument before it stands on the same one.
    """
    dropped, left = arguments[number], [*arguments[:number], *arguments[number + 1 :]]
    if not number:
        return left
    before, last = arguments[number - 1], number == len(left)
    space, next_line = _space(before), _space(dropped)
    if isinstance(space, cst.ParenthesizedWhitespace):
        if not last:
            return left
        if isinstance(next_line, cst.ParenthesizedWhitespace):
            next_line = next_line.with_changes(first_line=space.first_line)
    elif not last and not isinstance(next_line, cst.ParenthesizedWhitespace):
        return left
    if isinstance(dropped.comma, cst.Comma):
        comma = dropped.comma.with_changes(whitespace_after=next_line)
        left[number - 1] = before.with_changes(comma=comma)
    else:
        left[number - 1] = before.with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=next_line
        )
    return left


def _space(argument: cst.Arg) -> cst.BaseParenthesizableWhitespace:
    """What stands between an argument, its comma included, and the next one or the bracket."""
    if isinstance(argument.comma, cst.Comma):
        return argument.comma.whitespace_after
    return argument.whitespace_after_arg
