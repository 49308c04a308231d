"""One edit of one module's source, with comments and formatting kept. Pure: text in, text out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from torchdoctor.edits import (
    AsTensorEdit,
    BatchCastEdit,
    BeforeLoopEdit,
    DecoratorEdit,
    DetachEdit,
    DropKeywordEdit,
    Edit,
    InputEdit,
    KeywordEdit,
    NonBlockingEdit,
    OnDeviceEdit,
    RemoveEdit,
    ScaledStepEdit,
    SinglePrecisionEdit,
    StatementEdit,
    WithEdit,
)
from torchdoctor.edits.arguments import appended, without
from torchdoctor.edits.blocks import before_loop, with_context, with_input, without_statement
from torchdoctor.edits.constants import is_computed
from torchdoctor.edits.copies import non_blocking
from torchdoctor.edits.decorators import with_decorator
from torchdoctor.edits.options import at_its_source, command_instead, read_elsewhere
from torchdoctor.edits.precision import cast_batch, single_precision
from torchdoctor.edits.scaled_step import scaled_step
from torchdoctor.edits.statements import with_statement
from torchdoctor.edits.syntax import (
    Ranges,
    collect,
    covers,
    last_name,
    replaced,
)
from torchdoctor.edits.tensors import as_tensor, detached, on_device

_LITERALS = ("True", "False", "None")
_MARK = "\ufeff"  # of a file's byte order


def edited(source: str, edit: Edit) -> str | None:
    """The source with one edit made; the same text where it stands there already.

    Returns:
        None where it cannot be made with certainty: another call than expected stands there, the
        argument may hide in `**options`, the source does not parse, or the edit itself fails.
    """
    try:
        return _edited(source, edit)
    except Exception:
        # The instruction stands then: whatever an edit trips over must not cost the report.
        return None


def _edited(source: str, edit: Edit) -> str | None:
    wrapper = MetadataWrapper(cst.parse_module(source))
    module = wrapper.module
    changed: cst.Module | None
    if isinstance(edit, StatementEdit):
        changed = with_statement(module, edit.statement)
    else:
        changed = _at_line(module, wrapper.resolve(PositionProvider), edit)
    if changed is None:
        return None
    code = changed.code
    if source.startswith(_MARK) and not code.startswith(_MARK):
        code = _MARK + code  # LibCST drops it
    compile(code.removeprefix(_MARK), "<edited>", "exec")
    return code


def _at_line(module: cst.Module, ranges: Ranges, edit: Edit) -> cst.Module | None:
    by_kind: dict[type[Edit], Callable[[cst.Module, Ranges, Any], cst.Module | None]] = {
        KeywordEdit: _with_keyword,
        DropKeywordEdit: _without_keyword,
        DecoratorEdit: with_decorator,
        WithEdit: with_context,
        BeforeLoopEdit: before_loop,
        AsTensorEdit: as_tensor,
        OnDeviceEdit: on_device,
        DetachEdit: detached,
        InputEdit: with_input,
        ScaledStepEdit: scaled_step,
        NonBlockingEdit: non_blocking,
        RemoveEdit: without_statement,
        SinglePrecisionEdit: single_precision,
        BatchCastEdit: cast_batch,
    }
    return by_kind[type(edit)](module, ranges, edit)


def edit_call_keyword(
    source: str, line: int, callee: str, keyword: str, value: str, position: int | None = None
) -> str | None:
    """Set an argument of the call of `callee` on a line; as `edited`."""
    edit = KeywordEdit(
        file="", line=line, callee=callee, keyword=keyword, value=value, position=position
    )
    return edited(source, edit)


def _with_keyword(module: cst.Module, ranges: Ranges, edit: KeywordEdit) -> cst.Module | None:
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


def _without_keyword(
    module: cst.Module, ranges: Ranges, edit: DropKeywordEdit
) -> cst.Module | None:
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
