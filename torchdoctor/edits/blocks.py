"""Edits of whole statements: before a loop, under a `with`, and those of a training step."""

import builtins
import re
from collections.abc import Collection, Sequence

import libcst as cst
from libcst import matchers

from torchdoctor.edits import BeforeLoopEdit, InputEdit, RemoveEdit, ScaledStepEdit, WithEdit
from torchdoctor.edits.syntax import (
    LED,
    WHOLE,
    Block,
    Program,
    Syntax,
    called,
    last_name,
    same_statement,
    source_of,
)

_COMMENT = re.compile(r"#.*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_BACKWARD = ("backward", "manual_backward")
_OPTIMIZER = "opt"  # in the name of what is stepped; a scheduler's steps are its own
# Past the step without `update()`, the scaler refuses the next `unscale_()`.
_LEAVES = matchers.OneOf(
    matchers.Continue(), matchers.Break(), matchers.Return(), matchers.Raise(), matchers.Yield()
)


def _needed_before(
    program: Program, inside: Sequence[cst.CSTNode], backward: cst.CSTNode
) -> int | None:
    """Return how many of the statements lead to what the backward pass needs.

    Not those that zero gradients or count. None: `backward` may make the loss by what it calls.
    """
    if _makes_loss(program, backward):
        return None
    wanted = set(_DOTTED.findall(_COMMENT.sub("", source_of(backward))))
    for number in range(len(inside) - 1, 0, -1):
        changed = _changed(inside[number])
        for name in wanted:  # `state`, `state.loss.backward`
            if any(f"{name}.".startswith(f"{x}.") or x.startswith(f"{name}.") for x in changed):
                return number + 1
    return 1


def _changed(statement: cst.CSTNode) -> set[str]:
    """Return what a statement assigns to, or calls for its effect (`losses.append(loss)`)."""
    syntax = Syntax(statement)
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


def _makes_loss(program: Program, backward: cst.CSTNode) -> bool:
    """Return True if the statement leaves it to a function to make the loss."""
    calls = Syntax(backward).calls()
    functions = {x.name.value: x for x in program.of(cst.FunctionDef)}
    passes = [x for x in calls if last_name(x.func) in _BACKWARD]
    for call in passes or calls:
        own = isinstance(call.func, cst.Attribute) and source_of(call.func.value) == "self"
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
    syntax = Syntax(function)
    given = {x.name.value for x in syntax.of(cst.Param)} - {"self"}
    given -= {source_of(x) for x in syntax.targets}
    passes = syntax.calls(*_BACKWARD)
    read = [set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", source_of(x))) for x in passes]
    return bool(read) and all(names & given for names in read)


def scaled_step(program: Program, edit: ScaledStepEdit) -> cst.Module | None:
    """Put `loss.backward()` ... `optimizer.step()` of one block through the scaler."""
    if f"{edit.scaler}.scale(" in program.code:
        return program.module
    place = program.statement_at(edit.line)
    if edit.scaler in program.code or place is None:
        return None  # a name of the user's
    block, number = place
    loss = _receiver(block.body[number], "backward")
    after = [
        (at, owner)
        for at, line in enumerate(block.body[number + 1 :], number + 1)
        if (owner := _receiver(line, "step")) is not None and _is_optimizer(owner)
    ]
    # A second backward pass, or a step elsewhere, would need a scaler's call of its own.
    learning = [
        x
        for x in program.calls("backward", "step")
        if isinstance(x.func, cst.Attribute)
        and (x.func.attr.value == "backward" or _is_optimizer(x.func.value))
    ]
    if loss is None or len(after) != 1 or len(learning) != 2:
        return None
    stepped, owner = after[0]
    between = block.body[number + 1 : stepped]
    if any(matchers.findall(x, _LEAVES) for x in between):
        return None
    name, scaler = source_of(owner), edit.scaler
    backward = _in_place(f"{scaler}.scale({source_of(loss)}).backward()", block.body[number])
    # Whatever lies between the two may clip the gradients, or look at them.
    unscale = [cst.parse_statement(f"{scaler}.unscale_({name})")] if between else []
    step = _in_place(f"{scaler}.step({name})", block.body[stepped])
    update = cst.parse_statement(f"{scaler}.update()")
    before, rest = block.body[:number], block.body[stepped + 1 :]
    return program.with_body(block, [*before, backward, *unscale, *between, step, update, *rest])


def _is_optimizer(node: cst.BaseExpression) -> bool:
    return _OPTIMIZER in last_name(node).lower()


def _in_place(code: str, line: cst.CSTNode) -> cst.CSTNode:
    made = cst.ensure_type(cst.parse_statement(code), cst.SimpleStatementLine)
    return line.with_changes(body=made.body)


def _receiver(statement: cst.CSTNode, method: str) -> cst.BaseExpression | None:
    """Return `loss` of the statement `loss.backward()`; None for anything else."""
    call = called(statement)
    if call is None or call.args or not isinstance(call.func, cst.Attribute):
        return None
    return call.func.value if call.func.attr.value == method else None


def with_context(program: Program, edit: WithEdit) -> cst.Module | None:
    """Put the statements from `edit.callee` to the last before `edit.before` under a `with`."""
    if not program.imports(edit.context.split(".", 1)[0]):
        return None
    prefix, marker, suffix = edit.context.partition("{device}")
    for statement in program.of(cst.With):
        headers = [source_of(item.item) for item in statement.items]
        same = [
            x.startswith(prefix) and x.endswith(suffix) if marker else x == edit.context
            for x in headers
        ]
        if any(same) and program.covers(statement, edit.line):
            return program.module
    chosen = _passes(program, edit)
    if chosen is None:
        return None
    block, first, end = chosen
    inside = block.body[first:end]
    head = inside[0]
    if isinstance(head, (cst.FunctionDef, cst.ClassDef)):
        return None
    context = edit.context.replace("{device}", _device(program, edit))
    item = cst.WithItem(item=cst.parse_expression(context))
    if len(inside) == 1 and isinstance(head, cst.With):
        # One more item, before the program's own, which may overrule it.
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        items = [item.with_changes(comma=comma), *head.items]
        return program.replaced(head, head.with_changes(items=items))
    lines = head.leading_lines if isinstance(head, LED) else ()
    # What is said above the first statement stays above it all.
    body = [head.with_changes(leading_lines=()) if lines else head, *inside[1:]]
    wrapped = cst.With(items=[item], body=cst.IndentedBlock(body=body), leading_lines=lines)
    return program.with_body(block, [*block.body[:first], wrapped, *block.body[end:]])


def _passes(program: Program, edit: WithEdit) -> tuple[Block, int, int] | None:
    """Return the statements from the forward pass to the loss: their block, first and end."""
    # The line calls what the recording says, by expression or by a function's name.
    named = [x for x in program.calls(edit.callee) if program.covers(x, edit.line)]
    by_expression = program.only_call(program.calls_by(edit.callee), edit.line)
    if by_expression is None and len(named) != 1:
        return None
    chosen = None
    for block in program.blocks:
        first = _covering(program, block.body, edit.line)
        end = _covering(program, block.body, edit.before)
        if first is not None and end is not None and first < end:
            chosen = block, first, end  # blocks come outermost first: the innermost stays
    if chosen is None:
        return None
    block, first, end = chosen
    inside = block.body[first:end]
    learns = [call for line in inside for call in Syntax(line).calls("backward", "step")]
    if any(isinstance(call.func, cst.Attribute) for call in learns):
        return None
    needed = _needed_before(program, inside, block.body[end])
    return None if needed is None else (block, first, first + needed)


def _values(assigns: Collection[cst.Assign], name: str) -> list[str]:
    return [
        source_of(assign.value)
        for assign in assigns
        for target in assign.targets
        if source_of(target.target) == name
    ]


def _device(program: Program, edit: WithEdit) -> str:
    """Return the program's own name for the type of its device, or the type that was seen."""
    around = [x for x in program.of(cst.FunctionDef) if program.covers(x, edit.line)]
    given = {p.name.value for x in around for p in Syntax(x.params).of(cst.Param)}
    elsewhere = {
        assign
        for x in program.of(cst.FunctionDef)
        if x not in around
        for assign in Syntax(x.body).of(cst.Assign)
    }
    bound = [x for x in program.of(cst.Assign) if x not in elsewhere]
    if _values(bound, "device_type"):
        return "device_type"
    if _values(bound, "device") or "device" in given:
        # A parameter is what the program made elsewhere.
        made = _values(program.of(cst.Assign), "device")
        typed = made and all(x.startswith(("torch.device(", "torch.accel")) for x in made)
        return "device.type" if typed else "torch.device(device).type"
    if any(value.startswith("Accelerator(") for value in _values(bound, "accelerator")):
        return "accelerator.device.type"
    owned = any(source_of(target) == "self.device" for target in program.targets)
    return "torch.device(self.device).type" if owned and "self" in given else f'"{edit.device}"'


def _covering(program: Program, body: Sequence[cst.CSTNode], line: int) -> int | None:
    return next((n for n, node in enumerate(body) if program.covers(node, line)), None)


def before_loop(program: Program, edit: BeforeLoopEdit) -> cst.Module | None:
    """Insert a statement before the outermost loop around a line, within its function."""
    added = cst.parse_statement(edit.statement, program.module.config_for_parsing)
    if not program.imports("torch"):
        return None
    if _in_effect(program, edit.line, added):
        return program.module
    if _sometimes(program, added, edit.name):
        return None
    names = {x.value for x in program.of(cst.Name)}
    if isinstance(added, cst.For) and source_of(added.target) in names:
        return None  # the added loop would overwrite it
    scope = program.innermost(program.scopes, edit.line)
    if isinstance(scope, cst.ClassDef):
        return None
    deepest = None
    for block in Syntax(scope.body if scope is not None else program.module).blocks:
        number = _covering(program, block.body, edit.line)
        if number is None:
            continue
        deepest = block, number
        loop = block.body[number]
        if isinstance(loop, (cst.For, cst.While)) and not _assigns(program, loop, edit.name):
            return _inserted(program, block, number, added)
    if edit.needs_loop or deepest is None:
        return None
    return _inserted(program, *deepest, added)


def _in_effect(program: Program, line: int, added: cst.CSTNode) -> bool:
    """Return True if every run that reaches a line has passed this statement."""
    return any(
        program.line(statement) <= line and same_statement(statement, added)
        for block in program.blocks
        if isinstance(block, cst.Module) or program.covers(block, line)
        for statement in block.body
    )


def _sometimes(program: Program, added: cst.CSTNode, name: str) -> bool:
    """Return True if the program does the same in a branch or a function, now and then."""
    if any(same_statement(line, added) for block in program.blocks for line in block.body):
        return True
    if not Syntax(added).calls("compile"):
        return False
    compiled = [source_of(x.args[0].value) for x in program.calls_by("torch.compile") if x.args]
    return name in compiled or bool(program.calls_by(f"{name}.compile"))


def _assigns(program: Program, loop: cst.For | cst.While, name: str) -> bool:
    """Return True if a loop, or a function that it calls, makes what goes by this name."""
    wanted = {name, name.split(".", 1)[0]}
    syntax = Syntax(loop)
    if wanted & {source_of(target) for target in syntax.targets}:
        return True
    waiting = list(program.of(cst.FunctionDef))
    names = {last_name(x.func) for x in syntax.calls()}
    while reached := [x for x in waiting if x.name.value in names]:
        for function in reached:
            waiting.remove(function)
            inside = Syntax(function)
            shared = {x.name.value for x in inside.of(cst.NameItem)}
            made = {source_of(target) for target in inside.targets}
            if wanted & {x for x in made if "." in x or x in shared}:
                return True
            names |= {last_name(x.func) for x in inside.calls()}
    return False


def _inserted(
    program: Program,
    block: Block,
    number: int,
    added: cst.SimpleStatementLine | cst.BaseCompoundStatement,
) -> cst.Module:
    # Comments above the loop stay with the loop.
    loop, above = block.body[number], block.body[number - 1] if number else None
    spaced = isinstance(loop, LED) and any(line.comment is None for line in loop.leading_lines)
    if spaced and not isinstance(above, cst.SimpleStatementLine) and above is not None:
        added = added.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return program.with_body(block, [*block.body[:number], added, *block.body[number:]])


def with_input(program: Program, edit: InputEdit) -> cst.Module | None:
    """Chain a method to the call's first argument: `model(x)` -> `model(x.to(...))`."""
    call = program.only_call(program.calls_by(edit.callee), edit.line)
    if call is None or not program.imports("torch") or not call.args:
        return None
    given = call.args[0]
    if source_of(given.value).endswith(edit.method):
        return program.module
    if given.star or given.keyword is not None or not isinstance(given.value, WHOLE):
        return None
    return program.replaced(given.value, source_of(given.value) + edit.method)


def without_statement(program: Program, edit: RemoveEdit) -> cst.Module | None:
    """Remove a call that is a statement; `pass` stands in its place if it was alone."""
    place = program.statement_at(edit.line)
    if place is None:
        return None
    block, number = place
    line = block.body[number]
    call = called(line)
    if call is None or last_name(call.func) != edit.callee:
        return None
    if len(block.body) == 1:
        return program.spliced((*program.span(call), "pass"))
    # Comments above it stay.
    return program.spliced((*program.lines_of(line), ""))
