"""Edits of how a tensor is made, moved or kept."""

import re

import libcst as cst
from libcst import matchers

from torchdoctor.edits import AsTensorEdit, DetachEdit, NonBlockingEdit, OnDeviceEdit
from torchdoctor.edits.changes import ArgumentAdded, Around, Changes, Replaced
from torchdoctor.edits.syntax import WHOLE, Program, Syntax, argument, called, last_name, source_of

_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide)
_ARITHMETIC_ASSIGN = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)
# Without digits to show, those of the tensor's type appear, or `tensor(...)`.
_SHOWN = tuple("eEfFgG%")
_MOVES = ("to", "cuda")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TYPE = re.compile(r"(torch\.)?(float|half|double|bfloat16|long|int|uint8|bool)\d*$")
_DEVICE = re.compile(r"""(['"](cuda|mps|xpu|hpu)|torch\.device\(|([\w.]*[._])?device$)""")
_BACKWARD = ("backward", "manual_backward", "grad")
_TAKEN = ("dtype", "device")  # all that torch.as_tensor knows besides the data
_KEEPS = ("append", "appendleft")


def non_blocking(program: Program, edit: NonBlockingEdit) -> Changes | None:
    """Add `non_blocking=True` to moves of the loop's batch, above the line of the model's call."""
    loop = program.innermost(program.of(cst.For), edit.line)
    if loop is None:
        return None
    yielded = _yielded(loop)
    moves = [
        call
        for call in Syntax(loop.body).calls(*_MOVES)
        if program.line(call) <= edit.line and _moves_batch(call, yielded)
    ]
    if not moves:
        return None
    blocking = [call for call in moves if argument(call, "non_blocking") is None]
    return [ArgumentAdded(call, "non_blocking", "True") for call in blocking]


def _yielded(loop: cst.For) -> set[str]:
    """Return the names of a batch's parts: the loop's targets, and of comprehensions over them."""
    names = set(_NAME.findall(source_of(loop.target)))
    for part in Syntax(loop.body).of(cst.CompFor):
        if names & set(_NAME.findall(source_of(part.iter))):
            names |= set(_NAME.findall(source_of(part.target)))
    return names


def _moves_batch(call: cst.Call, yielded: set[str]) -> bool:
    """Return True if a part of the batch is moved to a device, not only to another type."""
    if not isinstance(call.func, cst.Attribute) or any(a.star for a in call.args):
        return False
    moved = call.func.value
    while isinstance(moved, cst.Subscript):
        moved = moved.value
    if not isinstance(moved, cst.Name) or moved.value not in yielded:
        return False
    plain = [source_of(a.value) for a in call.args if a.keyword is None]
    if last_name(call.func) == "cuda":
        return len(plain) < 2
    if not plain:
        return argument(call, "device") is not None
    return len(plain) < 3 and not _TYPE.match(plain[0])


def as_tensor(program: Program, edit: AsTensorEdit) -> Changes | None:
    """Change `torch.tensor(x)` to `torch.as_tensor(x)`, of a list to as_tensor(np.array(x))."""
    call = program.only_call(program.calls_by("torch.tensor"), edit.line)
    if call is None:
        done = program.only_call(program.calls_by("torch.as_tensor"), edit.line)
        return [] if done else None
    if not call.args or call.args[0].star or call.args[0].keyword is not None:
        return None
    if any(a.star or a.keyword is None or a.keyword.value not in _TAKEN for a in call.args[1:]):
        return None
    changes: Changes = [Replaced(*program.span(call.func), "torch.as_tensor")]
    if edit.joined:
        numpy = next((alias for alias, full in program.imported.items() if full == "numpy"), None)
        if numpy is None:
            return None
        rows = call.args[0].value
        changes.append(Around(*program.span_with_brackets(rows), f"{numpy}.array(", ")"))
    return changes


def on_device(program: Program, edit: OnDeviceEdit) -> Changes | None:
    """Change `torch.zeros(4).to(device)` to `torch.zeros(4, device=device)`."""
    maker = program.only_call(program.calls_by(f"torch.{edit.maker}"), edit.line)
    if maker is None:
        return None
    if argument(maker, "device") is not None:
        return []
    move = program.parents.get(program.parents[maker])
    if not isinstance(move, cst.Call) or not isinstance(move.func, cst.Attribute):
        return None
    device, (_, made), (_, moved) = _device(move), program.span(maker), program.span(move)
    if move.func.value is not maker or device is None or any(a.star for a in maker.args):
        return None
    if "#" in program.code[made:moved]:
        return None  # a comment would be lost
    return [ArgumentAdded(maker, "device", device), Replaced(made, moved, "")]


def _device(move: cst.Call) -> str | None:
    """Return the source of the device that `.to(...)` or `.cuda()` moves to; None: not sure."""
    plain = [a for a in move.args if a.keyword is None or a.keyword.value == "device"]
    further = [a.keyword.value for a in move.args if a not in plain and a.keyword is not None]
    if any(name != "non_blocking" for name in further):
        return None
    if last_name(move.func) == "cuda" and not plain:
        return '"cuda"'
    if last_name(move.func) != "to" or len(plain) != 1 or plain[0].star:
        return None
    code = source_of(plain[0].value)
    return code if _DEVICE.match(code) else None


def detached(program: Program, edit: DetachEdit) -> Changes | None:
    """Detach the value that a statement keeps; with `from_item` in place of `.item()`."""
    place = program.statement_at(edit.line)
    line = None if place is None else place[0].body[place[1]]
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    value = _kept(line, edit.name)
    if value is None:
        return None
    scope = program.innermost(program.of(cst.FunctionDef), edit.line) or program.module
    if edit.from_item:
        return _from_item(program, scope, line, edit.name)
    code = source_of(value)
    if code.endswith((".detach()", ".item()")):
        return []
    # An attribute or a global may be read in the whole file.
    declared = matchers.findall(scope, matchers.NameItem(name=matchers.Name(edit.name)))
    reach = scope if edit.name.isidentifier() and not declared else program.module
    if isinstance(value, (cst.Tuple, cst.List, cst.Dict)) or _learned_from(reach, edit.name):
        return None
    simple = isinstance(value, WHOLE) or value.lpar
    before, behind = ("", ".detach()") if simple else ("(", ").detach()")
    return [Around(*program.span_with_brackets(value), before, behind)]


def _from_item(
    program: Program, scope: cst.Module | cst.FunctionDef, line: cst.SimpleStatementLine, name: str
) -> Changes | None:
    """Change `total += loss.item()` to `total += loss.detach()`, where a tensor does as well."""
    syntax = Syntax(line)
    if syntax.calls("detach"):
        return []
    items = [c for c in syntax.calls("item") if not c.args and isinstance(c.func, cst.Attribute)]
    if len(items) != 1 or isinstance(line.body[0], cst.Expr) or not program.imports("torch"):
        return None
    uses = [node for node in Syntax(scope).of(cst.Name) if node.value == name]
    if not uses or not all(_needs_no_number(program, use) for use in uses):
        return None
    function = cst.ensure_type(items[0].func, cst.Attribute)
    return [Replaced(*program.span(function.attr), "detach")]


def _needs_no_number(program: Program, use: cst.Name) -> bool:
    """Return True if a name is set to a number here, computed with, or shown with its digits."""
    node: cst.CSTNode = use
    while True:
        above = program.parents[node]
        if isinstance(above, cst.AugAssign):
            return above.target is node and isinstance(above.operator, _ARITHMETIC_ASSIGN)
        if isinstance(above, cst.AssignTarget):
            assign = program.parents[above]
            return isinstance(getattr(assign, "value", None), (cst.Float, cst.Integer))
        if isinstance(above, cst.FormattedStringExpression):
            spec = [getattr(part, "value", "") for part in above.format_spec or ()]
            return above.conversion is None and "".join(map(str, spec)).endswith(_SHOWN)
        if isinstance(above, cst.Arg):
            return above.keyword is None and source_of(program.parents[above]).startswith("float(")
        if not isinstance(getattr(above, "operator", None), _ARITHMETIC):
            return False
        node = above


def _kept(line: cst.SimpleStatementLine, name: str) -> cst.BaseExpression | None:
    """Return what the statement adds to the name, or appends to it."""
    statement = line.body[0]
    call = called(line)
    if isinstance(statement, cst.AugAssign):
        adds = isinstance(statement.operator, cst.AddAssign)
        return statement.value if adds and source_of(statement.target) == name else None
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        value = statement.value
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            return None
        is_sum = source_of(statement.targets[0].target) == source_of(value.left) == name
        return value.right if is_sum else None
    if call is None or not isinstance(call.func, cst.Attribute) or len(call.args) != 1:
        return None
    keeps = call.func.attr.value in _KEEPS and source_of(call.func.value) == name
    return call.args[0].value if keeps and not call.args[0].star else None


def _learned_from(scope: cst.Module | cst.FunctionDef, name: str) -> bool:
    """Return True if a backward pass goes through a name, or what is computed from it."""
    syntax = Syntax(scope)
    # What each name is made of, as source.
    assigned = [
        (t.target, assignment.value)
        for assignment in syntax.of(cst.Assign)
        for t in assignment.targets
    ]
    assigned += [(assignment.target, assignment.value) for assignment in syntax.of(cst.AugAssign)]
    made_of = [(_mention(source_of(name)), source_of(value)) for name, value in assigned]
    for function in syntax.of(cst.FunctionDef) if isinstance(scope, cst.Module) else ():
        mention = rf"(?<!\w){function.name.value}(?!\w)"
        made_of += [(mention, source_of(returned)) for returned in Syntax(function).of(cst.Return)]
    patterns = {_mention(name)}
    size = 0
    while len(patterns) > size:
        size = len(patterns)
        mentions = re.compile("|".join(patterns))
        patterns |= {mention for mention, code in made_of if mentions.search(code)}
    return any(mentions.search(source_of(call)) for call in syntax.calls(*_BACKWARD))


def _mention(name: str) -> str:
    """Return a pattern of a name in source; of an attribute, with any owner."""
    owner, _, attribute = name.rpartition(".")
    if owner and attribute.isidentifier():
        return rf"\.{attribute}(?!\w|\s*\()"
    return rf"(?<![\w.]){re.escape(name)}(?!\w)"
