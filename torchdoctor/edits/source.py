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
from torchdoctor.edits.options import at_its_source, command_instead
from torchdoctor.edits.precision import cast_batch, single_precision
from torchdoctor.edits.scaled_step import scaled_step
from torchdoctor.edits.statements import with_statement
from torchdoctor.edits.syntax import (
    Ranges,
    collect,
    covers,
    imports,
    last_name,
    replaced,
)
from torchdoctor.edits.tensors import as_tensor, detached, on_device

# A function that calls one of these trains: gradients must stay on in it.
_TRAINS = frozenset({"backward", "step", "grad", "manual_backward"})
_MARK = "\ufeff"  # of a file's byte order
_OFF = ("torch.no_grad()", "torch.inference_mode()", "torch.no_grad", "torch.inference_mode")


def edited(source: str, edit: Edit) -> str | None:
    """The source with one edit made; the same text where it stands there already.

    Returns:
        None where it cannot be made with certainty: another call than expected stands there, the
        argument may hide in `**options`, or the source does not parse.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError:
        return None
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
    try:
        compile(code.removeprefix(_MARK), "<edited>", "exec")
    except (SyntaxError, ValueError):
        return None
    return code


def _at_line(module: cst.Module, ranges: Ranges, edit: Edit) -> cst.Module | None:
    by_kind: dict[type[Edit], Callable[[cst.Module, Ranges, Any], cst.Module | None]] = {
        KeywordEdit: _with_keyword,
        DropKeywordEdit: _without_keyword,
        DecoratorEdit: _with_decorator,
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
    call = _call_of(module, ranges, edit)
    if call is None:
        return None
    present = _present(call, edit)
    if present is not None and is_computed(module, call.args[present].value):
        return at_its_source(module, call.args[present].value, edit)
    needed = _present(call, replace(edit, keyword=edit.needs or "", position=None))
    if needed is not None and is_computed(module, call.args[needed].value):
        edit = replace(edit, value=_guarded(module.code_for_node(call.args[needed].value), edit))
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
    other = _present(call, replace(edit, keyword=edit.unless or "", position=None))
    if other is not None and is_computed(module, call.args[other].value):
        computed = re.escape(module.code_for_node(call.args[other].value))
        if re.search(rf"(?<!\w){computed}(?!\w)", module.code_for_node(argument.value)):
            return module
    return replaced(module, call, without(call, present))


def _guarded(needed: str, edit: KeywordEdit) -> str:
    """`persistent_workers=args.workers > 0`: the program still runs with `--workers 0`."""
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
    return command_instead(module, call.args[present].value, edit)


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
    except cst.ParserSyntaxError:
        return None, None
    return wrapper.module, _call_of(wrapper.module, wrapper.resolve(PositionProvider), edit)


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


def _with_decorator(module: cst.Module, ranges: Ranges, edit: DecoratorEdit) -> cst.Module | None:
    covering = [
        function for function in collect(module).functions if covers(ranges, function, edit.line)
    ]
    if not covering or not imports(module.body, edit.decorator.split(".", 1)[0]):
        return None
    function = max(covering, key=lambda f: ranges[f].start.line)
    present = [module.code_for_node(d.decorator) for d in function.decorators]
    if any(text in _OFF or text == edit.decorator for text in present):
        return module
    if any(last_name(call.func) in _TRAINS for call in collect(function).calls):
        return None
    added = cst.Decorator(decorator=cst.parse_expression(edit.decorator))
    if function.decorators:
        decorators = [*function.decorators, added]
        changed = function.with_changes(decorators=decorators)
    else:
        # Comments above the function stay above its decorator.
        changed = function.with_changes(decorators=[added])
    return replaced(module, function, changed)
