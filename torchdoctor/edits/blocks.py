"""Edits of whole statements: under a `with`, and those of a training step."""

import builtins
import re
from collections.abc import Collection, Iterator, Sequence

import libcst as cst
from libcst import matchers

from torchdoctor.edits import InputEdit, RemoveEdit, ScaledStepEdit, WithEdit
from torchdoctor.edits.bindings import Bindings
from torchdoctor.edits.changes import Around, Changes, Inserted, Removed, Replaced, Wrapped
from torchdoctor.edits.syntax import WHOLE, Block, Program, Syntax, called, last_name, source_of

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


def scaled_step(program: Program, edit: ScaledStepEdit) -> Changes | None:
    """Put `loss.backward()` ... `optimizer.step()` of one block through the scaler."""
    if f"{edit.scaler}.scale(" in program.code:
        return []
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
    name = source_of(owner)
    scaler = edit.scaler
    changes = [
        *_through(program, block.body[number], loss, f"{scaler}.scale(", ").backward()"),
        *_through(program, block.body[stepped], owner, f"{scaler}.step(", ")"),
        _statement(block, stepped, f"{scaler}.update()"),
    ]
    # Whatever lies between the two may clip the gradients, or look at them.
    if between:
        changes.append(_statement(block, number, f"{scaler}.unscale_({name})"))
    return changes


def _is_optimizer(node: cst.BaseExpression) -> bool:
    return _OPTIMIZER in last_name(node).lower()


def _through(
    program: Program, line: cst.CSTNode, given: cst.BaseExpression, before: str, behind: str
) -> Changes:
    """Put what a statement's call is a method of through a call of the scaler."""
    call = called(line)
    if call is None:
        return []
    start, end = program.span_with_brackets(given)
    # Around, so that what changes within what is given does so as well.
    return [
        Around(start, end, before, behind),
        Replaced(end, program.span_with_brackets(call)[1], ""),
    ]


def _statement(block: Block, number: int, code: str) -> Inserted:
    return Inserted(block, number, code, after=True, statement=cst.parse_statement(code))


def _receiver(statement: cst.CSTNode, method: str) -> cst.BaseExpression | None:
    """Return `loss` of the statement `loss.backward()`; None for anything else."""
    call = called(statement)
    if call is None or call.args or not isinstance(call.func, cst.Attribute):
        return None
    return call.func.value if call.func.attr.value == method else None


def with_context(program: Program, edit: WithEdit) -> Changes | None:
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
            return []
    chosen = _passes(program, edit)
    if chosen is None:
        return None
    block, first, end = chosen
    inside = block.body[first:end]
    head = inside[0]
    if isinstance(head, (cst.FunctionDef, cst.ClassDef)):
        return None
    context = edit.context.replace("{device}", _device(program, edit, block, first))
    if len(inside) == 1 and isinstance(head, cst.With):
        # One more item, before the program's own, which may overrule it.
        start = program.span_with_brackets(head.items[0].item)[0]
        return [Replaced(start, start, f"{context}, ")]
    return [Wrapped(block, first, end, context)]


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


def _device(program: Program, edit: WithEdit, block: Block, first: int) -> str:
    """Return the program's own name for the type of its device, or the type that was seen."""
    bindings = Bindings(program)
    for name, expression in _device_names(program, edit):
        if bindings.bound(name, block, first):
            return expression
    return f'"{edit.device}"'


def _device_names(program: Program, edit: WithEdit) -> Iterator[tuple[str, str]]:
    """Yield what the program may call its device here, with the expression for its type."""
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
        yield "device_type", "device_type"
    if _values(bound, "device") or "device" in given:
        # A parameter is what the program made elsewhere.
        made = _values(program.of(cst.Assign), "device")
        typed = made and all(x.startswith(("torch.device(", "torch.accel")) for x in made)
        yield "device", "device.type" if typed else "torch.device(device).type"
    if any(value.startswith("Accelerator(") for value in _values(bound, "accelerator")):
        yield "accelerator", "accelerator.device.type"
    owned = any(source_of(target) == "self.device" for target in program.targets)
    if owned and "self" in given:
        yield "self.device", "torch.device(self.device).type"


def _covering(program: Program, body: Sequence[cst.CSTNode], line: int) -> int | None:
    return next((n for n, node in enumerate(body) if program.covers(node, line)), None)


def with_input(program: Program, edit: InputEdit) -> Changes | None:
    """Chain a method to the call's first argument: `model(x)` -> `model(x.to(...))`."""
    call = program.only_call(program.calls_by(edit.callee), edit.line)
    if call is None or not program.imports("torch") or not call.args:
        return None
    given = call.args[0]
    if source_of(given.value).endswith(edit.method):
        return []
    if given.star or given.keyword is not None or not isinstance(given.value, WHOLE):
        return None
    if "{argument}" in edit.method:
        return _in_place_of(program, given.value, edit.method)
    return [Around(*program.span_with_brackets(given.value), "", edit.method)]


def _in_place_of(program: Program, given: cst.BaseExpression, code: str) -> Changes | None:
    """Put code in the place of a name that it holds as "{argument}"."""
    if not isinstance(given, cst.Name):
        return None
    return [Replaced(*program.span_with_brackets(given), code.format(argument=given.value))]


def without_statement(program: Program, edit: RemoveEdit) -> Changes | None:
    """Remove a call that is a statement; `pass` stands in its place if it was alone."""
    place = program.statement_at(edit.line)
    if place is None:
        return None
    block, number = place
    line = block.body[number]
    call = called(line)
    if call is None or last_name(call.func) != edit.callee:
        return None
    return [Removed(block, number)]
