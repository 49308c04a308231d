"""Edits of how a batch is copied to a device."""

from __future__ import annotations

import re

import libcst as cst

from torchdoctor.edits import NonBlockingEdit
from torchdoctor.edits.arguments import with_keyword
from torchdoctor.edits.syntax import Ranges, collect, covers, last_name

_MOVES = ("to", "cuda")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TYPE = re.compile(r"(torch\.)?(float|half|double|bfloat16|long|int|uint8|bool)\d*$")


def non_blocking(module: cst.Module, ranges: Ranges, edit: NonBlockingEdit) -> cst.Module | None:
    """`x.to(device)` -> `x.to(device, non_blocking=True)` for what the loop around a line yields.

    Only above that line, where the batch is handed to the model. None where nothing is moved there.
    """
    loops = [x for x in collect(module).loops if covers(ranges, x, edit.line)]
    if not loops:
        return None
    loop = max(loops, key=lambda one: ranges[one].start.line)
    yielded = _yielded(module, loop)
    moves = [
        call
        for call in collect(loop.body).calls
        if last_name(call.func) in _MOVES
        and ranges[call].start.line <= edit.line
        and _moves_batch(module, call, yielded)
    ]
    if not moves:
        return None
    blocking = {call for call in moves if not _keyword(call, "non_blocking")}
    changed = module.visit(_Add(blocking)) if blocking else module
    return changed if isinstance(changed, cst.Module) else None


def _yielded(module: cst.Module, loop: cst.For) -> set[str]:
    """Names of a batch's parts: the loop's targets, and of comprehensions over them."""
    found = set(_NAME.findall(module.code_for_node(loop.target)))
    for part in collect(loop.body).comprehensions:
        if found & set(_NAME.findall(module.code_for_node(part.iter))):
            found |= set(_NAME.findall(module.code_for_node(part.target)))
    return found


def _moves_batch(module: cst.Module, call: cst.Call, yielded: set[str]) -> bool:
    """Whether a part of the batch is moved to a device, not only to another type."""
    if not isinstance(call.func, cst.Attribute) or any(a.star for a in call.args):
        return False
    moved = call.func.value
    while isinstance(moved, cst.Subscript):
        moved = moved.value
    if not isinstance(moved, cst.Name) or moved.value not in yielded:
        return False
    plain = [module.code_for_node(a.value) for a in call.args if a.keyword is None]
    if last_name(call.func) == "cuda":
        return len(plain) < 2
    device = plain[:1] or ["" for _ in range(_keyword(call, "device"))]
    return len(plain) < 3 and bool(device) and not _TYPE.match(device[0])


def _keyword(call: cst.Call, name: str) -> bool:
    return any(a.keyword is not None and a.keyword.value == name for a in call.args)


class _Add(cst.CSTTransformer):
    """`non_blocking=True` for each of these very calls."""

    def __init__(self, calls: set[cst.Call]) -> None:
        self._calls = calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        if original_node not in self._calls:
            return updated_node
        arguments = with_keyword(updated_node, "non_blocking", "True")
        return updated_node.with_changes(args=arguments)
