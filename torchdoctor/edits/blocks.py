"""Edits of whole statements: one put before a loop, or several put under a `with`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import libcst as cst
from libcst import matchers

from torchdoctor.edits import BeforeLoopEdit, InputEdit, RemoveEdit, WithEdit
from torchdoctor.edits.losses import needed_before
from torchdoctor.edits.syntax import (
    Ranges,
    call_at,
    collect,
    covers,
    imports,
    last_name,
    replaced,
    same_statement,
)

_LEARNS = frozenset({"backward", "step"})


def with_context(module: cst.Module, ranges: Ranges, edit: WithEdit) -> cst.Module | None:
    """From the statement that calls `edit.callee` to the last before `edit.before`, indented."""
    if not imports(module.body, edit.context.split(".", 1)[0]):
        return None
    seen = collect(module)
    prefix, marker, suffix = edit.context.partition("{device}")
    for one in seen.withs:
        headers = [module.code_for_node(item.item) for item in one.items]
        same = [x == edit.context or (marker and _between(x, prefix, suffix)) for x in headers]
        if any(same) and covers(ranges, one, edit.line):
            return module
    if not _called_there(module, ranges, edit):
        return None
    found = None
    for block in seen.blocks:
        first = _covering(block.body, ranges, edit.line)
        end = _covering(block.body, ranges, edit.before)
        if first is not None and end is not None and first < end:
            found = block, first, end  # blocks come outermost first: the innermost stays
    if found is None:
        return None
    block, first, end = found
    if any(_learns(statement) for statement in block.body[first:end]):
        return None
    needed = needed_before(module, block.body[first:end], block.body[end])
    if needed is None:
        return None
    inside = block.body[first : first + needed]
    end = first + needed
    if isinstance(inside[0], (cst.FunctionDef, cst.ClassDef)):
        return None
    head = inside[0]
    item = cst.WithItem(
        item=cst.parse_expression(edit.context.replace("{device}", _device(module, ranges, edit)))
    )
    if len(inside) == 1 and isinstance(head, cst.With):
        # One more item, before the program's own, which may overrule it.
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return replaced(
            module, head, head.with_changes(items=[item.with_changes(comma=comma), *head.items])
        )
    lines = head.leading_lines if isinstance(head, _LED) else ()
    # What is said above the first statement stays above it all.
    body = [head.with_changes(leading_lines=()) if lines else head, *inside[1:]]
    wrapped = cst.With(items=[item], body=cst.IndentedBlock(body=body), leading_lines=lines)
    return _with_body(module, block, [*block.body[:first], wrapped, *block.body[end:]])


def _values(
    module: cst.Module, assigns: Sequence[cst.Assign], without: Collection[cst.Assign]
) -> dict[str, list[str]]:
    """What each plain name is bound to, as source."""
    found: dict[str, list[str]] = {}
    for assign in assigns:
        for one in assign.targets if assign not in without else ():
            if isinstance(one.target, cst.Name):
                found.setdefault(one.target.value, []).append(module.code_for_node(assign.value))
    return found


def _between(text: str, prefix: str, suffix: str) -> bool:
    return text.startswith(prefix) and text.endswith(suffix)


def _device(module: cst.Module, ranges: Ranges, edit: WithEdit) -> str:
    """The program's own name for the type of its device, or the type that was seen."""
    seen = collect(module)
    around = [x for x in seen.functions if covers(ranges, x, edit.line)]
    given = {p.name.value for x in around for p in collect(x.params).parameters}
    elsewhere = {
        assign for x in seen.functions if x not in around for assign in collect(x.body).assigns
    }
    bound, anywhere = _values(module, seen.assigns, elsewhere), _values(module, seen.assigns, set())
    if "device_type" in bound:
        return "device_type"
    if "device" in bound or "device" in given:
        # A parameter is what the program made elsewhere.
        made = [x.startswith(("torch.device(", "torch.accel")) for x in anywhere.get("device", [])]
        return "device.type" if made and all(made) else "torch.device(device).type"
    if any(value.startswith("Accelerator(") for value in bound.get("accelerator", ())):
        return "accelerator.device.type"
    owned = any(module.code_for_node(target).strip() == "self.device" for target in seen.targets)
    return "torch.device(self.device).type" if owned and "self" in given else f'"{edit.device}"'


_LED = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


def _learns(statement: cst.CSTNode) -> bool:
    for call in collect(statement).calls:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _LEARNS:
            return True
    return False


def _called_there(module: cst.Module, ranges: Ranges, edit: WithEdit) -> bool:
    """Whether the line calls what the recording says: by its expression, or a function's name."""
    if call_at(module, ranges, edit.line, edit.callee) is not None:
        return True
    named = [x for x in collect(module).calls if last_name(x.func) == edit.callee]
    return sum(covers(ranges, call, edit.line) for call in named) == 1


def _covering(body: Sequence[cst.CSTNode], ranges: Ranges, line: int) -> int | None:
    return next((n for n, node in enumerate(body) if covers(ranges, node, line)), None)


def _with_body(
    module: cst.Module, block: cst.Module | cst.IndentedBlock, body: Sequence[cst.CSTNode]
) -> cst.Module | None:
    if isinstance(block, cst.Module):
        return module.with_changes(body=body)
    return replaced(module, block, block.with_changes(body=body))


def before_loop(module: cst.Module, ranges: Ranges, edit: BeforeLoopEdit) -> cst.Module | None:
    """A statement before the outermost loop around a line, or before its statement without one.

    Loops count within the function that covers the line.
    """
    added = cst.parse_statement(edit.statement, module.config_for_parsing)
    if not imports(module.body, "torch"):
        return None
    seen = collect(module)
    if _in_effect(seen.blocks, ranges, edit.line, added):
        return module
    if _sometimes(module, added, edit.name):
        return None
    if isinstance(added, cst.For) and _is_used(module, cst.ensure_type(added.target, cst.Name)):
        return None  # the added loop would overwrite it
    scope = _innermost([x for x in seen.scopes if covers(ranges, x, edit.line)], ranges)
    if isinstance(scope, cst.ClassDef):
        return None
    blocks = collect(scope.body if scope is not None else module).blocks
    innermost = None
    for block in blocks:
        number = _covering(block.body, ranges, edit.line)
        if number is None:
            continue
        innermost = block, number
        loop = block.body[number]
        if isinstance(loop, (cst.For, cst.While)) and not _assigns(module, loop, edit.name):
            return _inserted(module, block, number, added)
    if edit.needs_loop or innermost is None:
        return None
    return _inserted(module, *innermost, added)


def _in_effect(
    blocks: Sequence[cst.Module | cst.IndentedBlock],
    ranges: Ranges,
    line: int,
    added: cst.CSTNode,
) -> bool:
    """Whether every run that comes to a line has passed this statement, in a block around it."""
    for block in blocks:
        if isinstance(block, cst.Module) or covers(ranges, block, line):
            passed = [one for one in block.body if ranges[one].start.line <= line]
            if any(same_statement(one, added) for one in passed):
                return True
    return False


def _sometimes(module: cst.Module, added: cst.CSTNode, name: str) -> bool:
    """Whether the program does the same in a branch or a function: not known when, or how often."""
    seen = collect(module)
    if any(same_statement(line, added) for block in seen.blocks for line in block.body):
        return True
    if not any(last_name(call.func) == "compile" for call in collect(added).calls):
        return False
    for call in seen.calls:
        code = module.code_for_node(call.func).strip()
        given = [module.code_for_node(x.value).strip() for x in call.args[:1]]
        if code == f"{name}.compile" or (code == "torch.compile" and given == [name]):
            return True
    return False


def _is_used(module: cst.Module, name: cst.Name) -> bool:
    return bool(matchers.findall(module, matchers.Name(value=name.value)))


def _assigns(module: cst.Module, loop: cst.For | cst.While, name: str) -> bool:
    """Whether a loop makes what goes by this name (`model`, `self.net`), or its owner.

    Also by functions of the file that it calls: by `global`, or of an attribute.
    """
    wanted = {name, name.split(".", 1)[0]}
    functions, seen = collect(module).functions, collect(loop)
    if wanted & {module.code_for_node(target).strip() for target in seen.targets}:
        return True
    reached: set[cst.FunctionDef] = set()
    called = {last_name(x.func) for x in seen.calls}
    while True:
        further = {x for x in functions if x.name.value in called} - reached
        if not further:
            return False
        for function in further:
            inside = collect(function)
            made = {module.code_for_node(target).strip() for target in inside.targets}
            shared = matchers.findall(function, matchers.NameItem())
            declared = {cst.ensure_type(x, cst.NameItem).name.value for x in shared}
            if wanted & {x for x in made if "." in x or x in declared}:
                return True
            called |= {last_name(x.func) for x in inside.calls}
        reached |= further


def _inserted(
    module: cst.Module,
    block: cst.Module | cst.IndentedBlock,
    number: int,
    added: cst.SimpleStatementLine | cst.BaseCompoundStatement,
) -> cst.Module | None:
    # Comments above the loop stay with the loop.
    loop, above = block.body[number], block.body[number - 1] if number else None
    spaced = isinstance(loop, _LED) and any(line.comment is None for line in loop.leading_lines)
    if spaced and not isinstance(above, cst.SimpleStatementLine) and above is not None:
        added = added.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return _with_body(module, block, [*block.body[:number], added, *block.body[number:]])


def _innermost(
    scopes: Sequence[cst.FunctionDef | cst.ClassDef], ranges: Ranges
) -> cst.FunctionDef | cst.ClassDef | None:
    return max(scopes, key=lambda one: ranges[one].start.line, default=None)


def with_input(module: cst.Module, ranges: Ranges, edit: InputEdit) -> cst.Module | None:
    """`model(x)` -> `model(x.to(...))`: a method chained to the call's first argument."""
    call = call_at(module, ranges, edit.line, edit.callee)
    if call is None or not imports(module.body, "torch") or not call.args:
        return None
    argument = call.args[0]
    code = module.code_for_node(argument.value)
    if code.endswith(edit.method):
        return module
    simple = isinstance(argument.value, (cst.Name, cst.Attribute, cst.Subscript, cst.Call))
    if argument.star or argument.keyword is not None or not simple:
        return None
    changed = argument.with_changes(value=cst.parse_expression(code + edit.method))
    return replaced(module, call, call.with_changes(args=[changed, *call.args[1:]]))


def without_statement(module: cst.Module, ranges: Ranges, edit: RemoveEdit) -> cst.Module | None:
    """The module without one call that is a statement; `pass` in its place where it was alone."""
    for block in collect(module).blocks:
        for number, line in enumerate(block.body):
            if not isinstance(line, cst.SimpleStatementLine) or not covers(ranges, line, edit.line):
                continue
            call = line.body[0].value if isinstance(line.body[0], cst.Expr) else None
            if len(line.body) != 1 or not isinstance(call, cst.Call):
                return None
            if last_name(call.func) != edit.callee:
                return None
            return _without(module, block, number)
    return None


def _without(
    module: cst.Module, block: cst.Module | cst.IndentedBlock, number: int
) -> cst.Module | None:
    """What is said above the statement stays, above the next one or at the block's end."""
    line = cst.ensure_type(block.body[number], cst.SimpleStatementLine)
    if len(block.body) == 1:
        return _with_body(module, block, [line.with_changes(body=[cst.Pass()])])
    below = list(block.body[number + 1 :])
    above = line.leading_lines if any(x.comment for x in line.leading_lines) else ()
    if below and isinstance(below[0], _LED):
        below[0] = below[0].with_changes(leading_lines=[*above, *below[0].leading_lines])
    elif above:
        changed = block.with_changes(body=block.body[:number], footer=[*above, *block.footer])
        return changed if isinstance(changed, cst.Module) else replaced(module, block, changed)
    return _with_body(module, block, [*block.body[:number], *below])
