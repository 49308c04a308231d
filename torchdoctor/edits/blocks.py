"""Edits of whole statements: before a loop, under a `with`, and those of a training step."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Sequence

import libcst as cst
from libcst import matchers

from torchdoctor.edits import BeforeLoopEdit, InputEdit, RemoveEdit, ScaledStepEdit, WithEdit
from torchdoctor.edits.syntax import (
    Ranges,
    call_at,
    calls_of,
    collect,
    covers,
    imports,
    innermost,
    last_name,
    replaced,
    same_statement,
    source_of,
)

_COMMENT = re.compile(r"#.*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def needed_before(
    module: cst.Module, inside: Sequence[cst.CSTNode], backward: cst.CSTNode
) -> int | None:
    """Return how many of the statements lead to what the backward pass needs.

    Setting gradients to zero and counting hits often stand between loss and backward. None: what
    `backward` calls may make the loss, so that it would stay outside.
    """
    if _makes_loss(module, backward):
        return None
    code = _COMMENT.sub("", source_of(backward))
    wanted = set(_DOTTED.findall(code))
    for number in range(len(inside) - 1, 0, -1):
        changed = _changed(inside[number])
        if any(_concerns(name, x) for name in wanted for x in changed):
            return number + 1
    return 1


def _concerns(name: str, changed: str) -> bool:
    """Return True if a name (`state`, `state.loss.backward`) may be another after the change."""
    return name == changed or name.startswith(f"{changed}.") or changed.startswith(f"{name}.")


def _changed(statement: cst.CSTNode) -> set[str]:
    """Return what a statement assigns to, or calls for its effect (`losses.append(loss)`)."""
    syntax = collect(statement)
    nodes = list(syntax.targets)
    for value in (x.value for x in syntax.of(cst.Expr)):
        if not isinstance(value, cst.Call):
            continue
        if isinstance(value.func, cst.Attribute):
            nodes.append(value.func.value)
        elif not hasattr(builtins, last_name(value.func)):
            # `add_losses(losses, out)`
            nodes += [x.value for x in value.args if isinstance(x.value, cst.Name)]
    return {source_of(_base(node)) for node in nodes}


def _base(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return `losses` of `losses["ce"]`, `self.state` of `self.state[0].loss`."""
    owner = node
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        owner = node.value if isinstance(node, cst.Subscript) else owner
        node = node.value
    return owner


def _makes_loss(module: cst.Module, backward: cst.CSTNode) -> bool:
    """Return True if the statement leaves it to a function to make the loss."""
    calls = collect(backward).of(cst.Call)
    functions = {x.name.value: x for x in collect(module).of(cst.FunctionDef)}
    passes = [x for x in calls if last_name(x.func) in ("backward", "manual_backward")]
    for call in passes or calls:
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        own = isinstance(owner, cst.Name) and owner.value == "self"
        if call in passes and not (own and not call.args):
            return False
        function = functions.get(last_name(call.func))
        if function is None and call.args:
            return False  # `loss_scaler(loss, optimizer)`
        if function is not None and _passes_parameter(function):
            return False
    return True


def _passes_parameter(function: cst.FunctionDef) -> bool:
    """Return True if a function makes the backward pass of nothing but its parameters."""
    syntax = collect(function)
    given = {x.name.value for x in syntax.of(cst.Param)} - {"self"}
    given -= {source_of(x) for x in syntax.targets}
    passes = [
        x for x in syntax.of(cst.Call) if last_name(x.func) in ("backward", "manual_backward")
    ]
    read = [set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", source_of(x))) for x in passes]
    return bool(read) and all(names & given for names in read)


_OPTIMIZER = "opt"  # in the name of what is stepped; a scheduler's steps are its own
# Past the step without `update()`, the scaler refuses the next `unscale_()`.
_LEAVES = matchers.OneOf(
    matchers.Continue(), matchers.Break(), matchers.Return(), matchers.Raise(), matchers.Yield()
)


def scaled_step(module: cst.Module, ranges: Ranges, edit: ScaledStepEdit) -> cst.Module | None:
    """Put `loss.backward()` ... `optimizer.step()` of one block through the scaler."""
    if f"{edit.scaler}.scale(" in module.code:
        return module
    if edit.scaler in module.code:
        return None  # a name of the user's
    syntax = collect(module)
    for block in reversed(syntax.blocks):  # the innermost first
        for number, statement in enumerate(block.body):
            if not covers(ranges, statement, edit.line):
                continue
            loss = _receiver(statement, "backward")
            if loss is None:
                return None
            return _with_scaler(module, block, number, loss, edit.scaler)
    return None


def _with_scaler(
    module: cst.Module,
    block: cst.Module | cst.IndentedBlock,
    number: int,
    loss: cst.BaseExpression,
    scaler: str,
) -> cst.Module | None:
    after = block.body[number + 1 :]
    steps = [
        (place, owner)
        for place, statement in enumerate(after, number + 1)
        if (owner := _receiver(statement, "step")) is not None
        and _OPTIMIZER in last_name(owner).lower()
    ]
    # A second backward pass, or a step elsewhere, would need a scaler's call of its own.
    learning = calls_of(module, "backward", "step")
    optimizers = [
        x
        for x in learning
        if isinstance(x.func, cst.Attribute)
        and (x.func.attr.value == "backward" or _OPTIMIZER in last_name(x.func.value).lower())
    ]
    if len(steps) != 1 or len(optimizers) != 2:
        return None
    place, owner = steps[0]
    if any(matchers.findall(x, _LEAVES) for x in block.body[number + 1 : place]):
        return None
    loss_text, name = source_of(loss), source_of(owner)
    body = list(block.body)
    stepped = _statements(f"{scaler}.step({name})", body[place])
    update = cst.parse_statement(f"{scaler}.update()")
    backward = _statements(f"{scaler}.scale({loss_text}).backward()", body[number])
    # Whatever lies between the two may clip the gradients, or look at them.
    unscale = [cst.parse_statement(f"{scaler}.unscale_({name})")] if place > number + 1 else []
    changed = [
        *body[:number],
        backward,
        *unscale,
        *body[number + 1 : place],
        stepped,
        update,
        *body[place + 1 :],
    ]
    if isinstance(block, cst.Module):
        return module.with_changes(body=changed)
    return replaced(module, block, block.with_changes(body=changed))


def _statements(code: str, like: cst.CSTNode) -> cst.SimpleStatementLine:
    """Return a statement with the comments of the one that it replaces."""
    made = cst.ensure_type(cst.parse_statement(code), cst.SimpleStatementLine)
    old = cst.ensure_type(like, cst.SimpleStatementLine)
    return made.with_changes(
        leading_lines=old.leading_lines, trailing_whitespace=old.trailing_whitespace
    )


def _receiver(statement: cst.CSTNode, method: str) -> cst.BaseExpression | None:
    """Return `loss` of the statement `loss.backward()`; None for anything else."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    call = statement.body[0].value if isinstance(statement.body[0], cst.Expr) else None
    if not isinstance(call, cst.Call) or call.args or not isinstance(call.func, cst.Attribute):
        return None
    return call.func.value if call.func.attr.value == method else None


_LEARNS = frozenset({"backward", "step"})


def with_context(module: cst.Module, ranges: Ranges, edit: WithEdit) -> cst.Module | None:
    """Put the statements from `edit.callee` to the last before `edit.before` under a `with`."""
    if not imports(module.body, edit.context.split(".", 1)[0]):
        return None
    syntax = collect(module)
    prefix, marker, suffix = edit.context.partition("{device}")
    for statement in syntax.of(cst.With):
        headers = [source_of(item.item) for item in statement.items]
        same = [x == edit.context or (marker and _between(x, prefix, suffix)) for x in headers]
        if any(same) and covers(ranges, statement, edit.line):
            return module
    if not _called_there(module, ranges, edit):
        return None
    deepest = None
    for block in syntax.blocks:
        first = _covering(block.body, ranges, edit.line)
        end = _covering(block.body, ranges, edit.before)
        if first is not None and end is not None and first < end:
            deepest = block, first, end  # blocks come outermost first: the innermost stays
    if deepest is None:
        return None
    block, first, end = deepest
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


def _values(assigns: Sequence[cst.Assign], without: Collection[cst.Assign]) -> dict[str, list[str]]:
    """Return what each plain name is bound to, as source."""
    values: dict[str, list[str]] = {}
    for assign in assigns:
        for target in assign.targets if assign not in without else ():
            if isinstance(target.target, cst.Name):
                values.setdefault(target.target.value, []).append(source_of(assign.value))
    return values


def _between(text: str, prefix: str, suffix: str) -> bool:
    return text.startswith(prefix) and text.endswith(suffix)


def _device(module: cst.Module, ranges: Ranges, edit: WithEdit) -> str:
    """Return the program's own name for the type of its device, or the type that was seen."""
    syntax = collect(module)
    around = [x for x in syntax.of(cst.FunctionDef) if covers(ranges, x, edit.line)]
    given = {p.name.value for x in around for p in collect(x.params).of(cst.Param)}
    elsewhere = {
        assign
        for x in syntax.of(cst.FunctionDef)
        if x not in around
        for assign in collect(x.body).of(cst.Assign)
    }
    bound, anywhere = (
        _values(syntax.of(cst.Assign), elsewhere),
        _values(syntax.of(cst.Assign), set()),
    )
    if "device_type" in bound:
        return "device_type"
    if "device" in bound or "device" in given:
        # A parameter is what the program made elsewhere.
        made = [x.startswith(("torch.device(", "torch.accel")) for x in anywhere.get("device", [])]
        return "device.type" if made and all(made) else "torch.device(device).type"
    if any(value.startswith("Accelerator(") for value in bound.get("accelerator", ())):
        return "accelerator.device.type"
    owned = any(source_of(target) == "self.device" for target in syntax.targets)
    return "torch.device(self.device).type" if owned and "self" in given else f'"{edit.device}"'


_LED = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


def _learns(statement: cst.CSTNode) -> bool:
    for call in collect(statement).of(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _LEARNS:
            return True
    return False


def _called_there(module: cst.Module, ranges: Ranges, edit: WithEdit) -> bool:
    """Return True if the line calls what the recording says, by expression or function name."""
    if call_at(module, ranges, edit.line, edit.callee) is not None:
        return True
    named = calls_of(module, edit.callee)
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
    """Insert a statement before the outermost loop around a line, or before its statement.

    Loops count within the function that covers the line.
    """
    added = cst.parse_statement(edit.statement, module.config_for_parsing)
    if not imports(module.body, "torch"):
        return None
    syntax = collect(module)
    if _in_effect(syntax.blocks, ranges, edit.line, added):
        return module
    if _sometimes(module, added, edit.name):
        return None
    if isinstance(added, cst.For) and _is_used(module, cst.ensure_type(added.target, cst.Name)):
        return None  # the added loop would overwrite it
    scope = innermost(syntax.scopes, ranges, edit.line)
    if isinstance(scope, cst.ClassDef):
        return None
    blocks = collect(scope.body if scope is not None else module).blocks
    deepest = None
    for block in blocks:
        number = _covering(block.body, ranges, edit.line)
        if number is None:
            continue
        deepest = block, number
        loop = block.body[number]
        if isinstance(loop, (cst.For, cst.While)) and not _assigns(module, loop, edit.name):
            return _inserted(module, block, number, added)
    if edit.needs_loop or deepest is None:
        return None
    return _inserted(module, *deepest, added)


def _in_effect(
    blocks: Sequence[cst.Module | cst.IndentedBlock],
    ranges: Ranges,
    line: int,
    added: cst.CSTNode,
) -> bool:
    """Return True if every run that reaches a line has passed this statement."""
    for block in blocks:
        if isinstance(block, cst.Module) or covers(ranges, block, line):
            passed = [statement for statement in block.body if ranges[statement].start.line <= line]
            if any(same_statement(statement, added) for statement in passed):
                return True
    return False


def _sometimes(module: cst.Module, added: cst.CSTNode, name: str) -> bool:
    """Return True if the program does the same in a branch or a function, now and then."""
    syntax = collect(module)
    if any(same_statement(line, added) for block in syntax.blocks for line in block.body):
        return True
    if not any(last_name(call.func) == "compile" for call in collect(added).of(cst.Call)):
        return False
    for call in syntax.of(cst.Call):
        code = source_of(call.func)
        given = [source_of(x.value) for x in call.args[:1]]
        if code == f"{name}.compile" or (code == "torch.compile" and given == [name]):
            return True
    return False


def _is_used(module: cst.Module, name: cst.Name) -> bool:
    return bool(matchers.findall(module, matchers.Name(value=name.value)))


def _assigns(module: cst.Module, loop: cst.For | cst.While, name: str) -> bool:
    """Return True if a loop makes what goes by this name (`model`, `self.net`), or its owner.

    Also by functions of the file that it calls: by `global`, or of an attribute.
    """
    wanted = {name, name.split(".", 1)[0]}
    functions, syntax = collect(module).of(cst.FunctionDef), collect(loop)
    if wanted & {source_of(target) for target in syntax.targets}:
        return True
    reached: set[cst.FunctionDef] = set()
    called = {last_name(x.func) for x in syntax.of(cst.Call)}
    while True:
        further = {x for x in functions if x.name.value in called} - reached
        if not further:
            return False
        for function in further:
            inside = collect(function)
            made = {source_of(target) for target in inside.targets}
            shared = matchers.findall(function, matchers.NameItem())
            declared = {cst.ensure_type(x, cst.NameItem).name.value for x in shared}
            if wanted & {x for x in made if "." in x or x in declared}:
                return True
            called |= {last_name(x.func) for x in inside.of(cst.Call)}
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


def with_input(module: cst.Module, ranges: Ranges, edit: InputEdit) -> cst.Module | None:
    """Chain a method to the call's first argument: `model(x)` -> `model(x.to(...))`."""
    call = call_at(module, ranges, edit.line, edit.callee)
    if call is None or not imports(module.body, "torch") or not call.args:
        return None
    argument = call.args[0]
    code = source_of(argument.value)
    if code.endswith(edit.method):
        return module
    simple = isinstance(argument.value, (cst.Name, cst.Attribute, cst.Subscript, cst.Call))
    if argument.star or argument.keyword is not None or not simple:
        return None
    changed = argument.with_changes(value=cst.parse_expression(code + edit.method))
    return replaced(module, call, call.with_changes(args=[changed, *call.args[1:]]))


def without_statement(module: cst.Module, ranges: Ranges, edit: RemoveEdit) -> cst.Module | None:
    """Remove a call that is a statement; `pass` stands in its place if it was alone."""
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
    """Remove a statement; comments above it stay, above the next or at the block's end."""
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
