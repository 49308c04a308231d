"""Which statements a backward pass needs: those that lead to its loss."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits.syntax import collect, last_name

_COMMENT = re.compile(r"#.*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def needed_before(
    module: cst.Module, inside: Sequence[cst.CSTNode], backward: cst.CSTNode
) -> int | None:
    """How many of the statements lead to what the backward pass needs; those behind need not move.

    Setting gradients to zero and counting what was right often stand between loss and backward.

    Args:
        module: that they stand in.
        inside: from the model's call on.
        backward: the statement that makes the pass, or calls what makes it.

    Returns:
        None where the loss may be made by what `backward` calls, so that it would stay outside.
    """
    if _makes_loss(module, backward):
        return None
    code = _COMMENT.sub("", module.code_for_node(backward))
    wanted = set(_DOTTED.findall(code))
    for number in range(len(inside) - 1, 0, -1):
        changed = _changed(module, inside[number])
        if any(_concerns(name, x) for name in wanted for x in changed):
            return number + 1
    return 1


def _concerns(name: str, changed: str) -> bool:
    """Whether what is read by this name (`state`, `state.loss.backward`) may be another then."""
    return name == changed or name.startswith(f"{changed}.") or changed.startswith(f"{name}.")


def _changed(module: cst.Module, statement: cst.CSTNode) -> set[str]:
    """What a statement assigns to, or calls something on for its effect (`losses.append(loss)`)."""
    seen = collect(statement)
    nodes = list(seen.targets)
    for value in seen.expressions:
        if not isinstance(value, cst.Call):
            continue
        if isinstance(value.func, cst.Attribute):
            nodes.append(value.func.value)
        elif not hasattr(builtins, last_name(value.func)):
            # `add_losses(losses, out)`
            nodes += [x.value for x in value.args if isinstance(x.value, cst.Name)]
    return {module.code_for_node(_base(node)).strip() for node in nodes}


def _base(node: cst.BaseExpression) -> cst.BaseExpression:
    """`losses` of `losses["ce"]`, `self.state` of `self.state[0].loss`."""
    found = node
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        found = node.value if isinstance(node, cst.Subscript) else found
        node = node.value
    return found


def _makes_loss(module: cst.Module, backward: cst.CSTNode) -> bool:
    """Whether the statement leaves it to a function to make the loss: `self.backward_G()`."""
    calls = collect(backward).calls
    functions = {x.name.value: x for x in collect(module).functions}
    passes = [x for x in calls if last_name(x.func) in ("backward", "manual_backward")]
    for call in passes or calls:
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        own = isinstance(owner, cst.Name) and owner.value == "self"
        if call in passes and not (own and not call.args):
            return False
        function = functions.get(last_name(call.func))
        if function is None and call.args:
            return False  # `loss_scaler(loss, optimizer)`
        if function is not None and _passes_parameter(module, function):
            return False
    return True


def _passes_parameter(module: cst.Module, function: cst.FunctionDef) -> bool:
    """Whether a function makes the backward pass of nothing but what it was given."""
    seen = collect(function)
    given = {x.name.value for x in seen.parameters} - {"self"}
    given -= {module.code_for_node(x).strip() for x in seen.targets}
    passes = [x for x in seen.calls if last_name(x.func) in ("backward", "manual_backward")]
    read = [set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", module.code_for_node(x))) for x in passes]
    return bool(read) and all(names & given for names in read)
