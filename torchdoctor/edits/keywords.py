"""Edits of one argument of a call, with the white space and comments around it."""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from torchdoctor.edits import DropKeywordEdit, KeywordEdit
from torchdoctor.edits.options import at_its_source, command_instead, read_elsewhere
from torchdoctor.edits.origins import is_computed
from torchdoctor.edits.syntax import Ranges, collect, covers, last_name, replaced


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


_LITERALS = ("True", "False", "None")


def with_keyword_set(module: cst.Module, ranges: Ranges, edit: KeywordEdit) -> cst.Module | None:
    """Return the module with the argument set, at its source if that is an option or a constant."""
    asked, call = edit, _call_of(module, ranges, edit)
    if call is None:
        return None
    needed = _present(call, replace(edit, keyword=edit.needs or "", position=None))
    if needed is not None and is_computed(module, call.args[needed].value):
        edit = replace(edit, value=_guarded(module, call.args[needed].value, edit))
    present = _present(call, edit)
    if present is not None and is_computed(module, call.args[present].value):
        old = call.args[present].value
        same = old.deep_equals(cst.parse_expression(edit.value))
        return module if same else at_its_source(module, old, asked)
    changed = _call_with(call, present, edit)
    return None if changed is None else replaced(module, call, changed)


def without_keyword(module: cst.Module, ranges: Ranges, edit: DropKeywordEdit) -> cst.Module | None:
    """Return the module with one argument of a call left out; the same if the call has it not."""
    call = _call_of(module, ranges, edit)
    if call is None or any(argument.star for argument in call.args):
        return None
    present = _present(call, edit)
    if present is None:
        return module
    argument = call.args[present]
    if argument.keyword is None:
        return None  # those behind it would move up
    if edit.only_literal and module.code_for_node(argument.value) not in _LITERALS:
        return None
    other = _present(call, replace(edit, keyword=edit.unless or "", position=None))
    if other is not None and is_computed(module, call.args[other].value):
        computed = re.escape(module.code_for_node(call.args[other].value))
        if re.search(rf"(?<!\w){computed}(?!\w)", module.code_for_node(argument.value)):
            return module
    return replaced(module, call, without(call, present))


_WHOLE = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)  # binds tighter than `>`


def _guarded(module: cst.Module, value: cst.BaseExpression, edit: KeywordEdit) -> str:
    """`persistent_workers=args.workers > 0`: the program still runs with `--workers 0`."""
    needed = module.code_for_node(value)
    if not isinstance(value, _WHOLE) and not value.lpar:
        needed = f"({needed})"
    return f"{needed} > 0" if edit.value == "True" else f"{edit.value} if {needed} > 0 else None"


def _call_of(
    module: cst.Module, ranges: Ranges, edit: KeywordEdit | DropKeywordEdit
) -> cst.Call | None:
    covering = [
        call
        for call in collect(module).calls
        if last_name(call.func) == edit.callee and covers(ranges, call, edit.line)
    ]
    starting = [call for call in covering if ranges[call].start.line == edit.line]
    chosen = starting or covering
    return chosen[0] if len(chosen) == 1 else None


def _present(call: cst.Call, edit: KeywordEdit | DropKeywordEdit) -> int | None:
    """Index of the argument where the call has it already."""
    for number, argument in enumerate(call.args):
        named = argument.keyword is not None and argument.keyword.value == edit.keyword
        placed = argument.keyword is None and not argument.star and number == edit.position
        if named or (placed and not any(a.star for a in call.args[:number])):
            return number
    return None


def by_command(source: str, edit: KeywordEdit) -> list[str] | None:
    """The command to give instead, where the argument comes from an option that it gives."""
    module, call = _parsed_call(source, edit)
    present = None if call is None else _present(call, edit)
    if module is None or call is None or present is None:
        return None
    try:
        return command_instead(module, call.args[present].value, edit)
    except Exception:  # as in `edited`
        return None


def also_reading(source: str, edit: KeywordEdit) -> tuple[str, list[int]] | None:
    """The option whose default the edit changes, and lines outside its call that read it too."""
    try:
        wrapper = MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError:
        return None
    module, ranges = wrapper.module, wrapper.resolve(PositionProvider)
    call = _call_of(module, ranges, edit)
    present = None if call is None else _present(call, edit)
    if call is None or present is None:
        return None
    found = read_elsewhere(module, call, call.args[present].value, edit)
    if found is None:
        return None
    name, reads = found
    return name, sorted({ranges[read].start.line for read in reads})


def by_hand(source: str, edit: KeywordEdit) -> str | None:
    """Where the argument's value comes from, as source: "**options", "config.num_workers"."""
    module, call = _parsed_call(source, edit)
    if module is None or call is None:
        return None
    present = _present(call, edit)
    if present is not None:
        value = call.args[present].value
        return module.code_for_node(value) if is_computed(module, value) else None
    stars = [x for x in call.args if x.star]
    return next((f"{x.star}{module.code_for_node(x.value)}" for x in stars), None)


def _parsed_call(source: str, edit: KeywordEdit) -> tuple[cst.Module | None, cst.Call | None]:
    try:
        wrapper = MetadataWrapper(cst.parse_module(source))
        return wrapper.module, _call_of(wrapper.module, wrapper.resolve(PositionProvider), edit)
    except Exception:  # as in `edited`
        return None, None


def _call_with(call: cst.Call, present: int | None, edit: KeywordEdit) -> cst.Call | None:
    value = cst.parse_expression(edit.value)
    if present is not None:
        argument = call.args[present]
        if argument.value.deep_equals(value):
            return call
        changed = argument.with_changes(value=value)
        return call.with_changes(args=[*call.args[:present], changed, *call.args[present + 1 :]])
    if any(argument.star for argument in call.args):
        return None
    added = cst.Arg(
        value=value,
        keyword=cst.Name(edit.keyword),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return call.with_changes(args=appended(call, added))
