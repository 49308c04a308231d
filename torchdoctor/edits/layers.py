"""Where the source makes a model's layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from torchdoctor.edits.syntax import collect, covers, last_name

_CONV = re.compile(r"Conv(Transpose)?[123]d$")
_NORM = re.compile(r"(Sync)?BatchNorm([123]d)?$")


def convolutions_before_norm(file: str, line: int, count: int) -> list[int]:
    """Lines (1-based) of the convolutions whose output a batch normalization gets at once.

    Args:
        file: of the model's class.
        line: within that class.
        count: how many were seen in the model; where the source shows another number, [].
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(Path(file).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, cst.ParserSyntaxError):
        return []
    module, ranges = wrapper.module, wrapper.resolve(PositionProvider)
    scopes = [
        x for x in collect(module).scopes if isinstance(x, cst.ClassDef) and covers(ranges, x, line)
    ]
    if not scopes:
        return []
    inside = max(scopes, key=lambda one: ranges[one].start.line)
    found = {x for x in (*_in_sequence(inside), *_by_name(module, inside)) if _has_bias(x)}
    return sorted(ranges[one].start.line for one in found) if len(found) == count else []


def _in_sequence(node: cst.CSTNode) -> list[cst.Call]:
    """Convolutions that a batch normalization follows among the same arguments or in one list."""
    seen = collect(node)
    rows: list[Sequence[cst.BaseExpression]] = [[a.value for a in x.args] for x in seen.calls]
    rows += [[element.value for element in x.elements] for x in seen.lists]
    return [
        first
        for row in rows
        for first, second in pairwise(row)
        if isinstance(first, cst.Call) and isinstance(second, cst.Call)
        if _CONV.search(last_name(first.func)) and _NORM.search(last_name(second.func))
    ]


def _by_name(module: cst.Module, inside: cst.ClassDef) -> list[cst.Call]:
    """`self.conv1` and `self.bn1` of `self.bn1(self.conv1(x))`."""
    seen = collect(inside)
    made: dict[str, list[cst.Call]] = {}
    for assign in seen.assigns:
        if isinstance(assign.value, cst.Call) and len(assign.targets) == 1:
            name = module.code_for_node(assign.targets[0].target).strip()
            made.setdefault(name, []).append(assign.value)
    found = []
    for call in seen.calls:
        given = call.args[0].value if len(call.args) == 1 else None
        if not isinstance(given, cst.Call):
            continue
        norms = made.get(module.code_for_node(call.func).strip(), [])
        convs = made.get(module.code_for_node(given.func).strip(), [])
        if len(norms) == len(convs) == 1 and _NORM.search(last_name(norms[0].func)):
            found += [one for one in convs if _CONV.search(last_name(one.func))]
    return found


def _has_bias(call: cst.Call) -> bool:
    given = [a for a in call.args if a.keyword is not None and a.keyword.value == "bias"]
    return not any(isinstance(a.value, cst.Name) and a.value.value == "False" for a in given)
