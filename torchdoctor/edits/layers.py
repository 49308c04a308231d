"""Where the source makes a model's layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import libcst as cst

from torchdoctor.edits.syntax import (
    argument_number,
    collect,
    innermost,
    last_name,
    parsed,
    source_of,
)

_CONV = re.compile(r"Conv(Transpose)?[123]d$")
_NORM = re.compile(r"(Sync)?BatchNorm([123]d)?$")


def convolutions_before_norm(file: str, line: int, count: int) -> list[int]:
    """Return lines (1-based) of convolutions that a batch normalization follows at once.

    They lie in the class around the line. If the source shows another number than `count`, [].
    """
    try:
        module, ranges = parsed(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, cst.ParserSyntaxError):
        return []
    inside = innermost(collect(module).of(cst.ClassDef), ranges, line)
    if inside is None:
        return []
    convolutions = {x for x in (*_in_sequence(inside), *_by_name(inside)) if _has_bias(x)}
    lines = sorted(ranges[node].start.line for node in convolutions)
    return lines if len(lines) == count else []


def _in_sequence(node: cst.CSTNode) -> list[cst.Call]:
    """Return convolutions that a batch normalization follows among arguments or in a list."""
    syntax = collect(node)
    rows: list[Sequence[cst.BaseExpression]] = [
        [a.value for a in x.args] for x in syntax.of(cst.Call)
    ]
    rows += [[element.value for element in x.elements] for x in syntax.of(cst.List)]
    return [
        first
        for row in rows
        for first, second in pairwise(row)
        if isinstance(first, cst.Call) and isinstance(second, cst.Call)
        if _CONV.search(last_name(first.func)) and _NORM.search(last_name(second.func))
    ]


def _by_name(inside: cst.ClassDef) -> list[cst.Call]:
    """Return convolutions such as `self.conv1` of `self.bn1(self.conv1(x))`."""
    syntax = collect(inside)
    made: dict[str, list[cst.Call]] = {}
    for assign in syntax.of(cst.Assign):
        if isinstance(assign.value, cst.Call) and len(assign.targets) == 1:
            name = source_of(assign.targets[0].target)
            made.setdefault(name, []).append(assign.value)
    convolutions = []
    for call in syntax.of(cst.Call):
        given = call.args[0].value if len(call.args) == 1 else None
        if not isinstance(given, cst.Call):
            continue
        norms = made.get(source_of(call.func), [])
        convs = made.get(source_of(given.func), [])
        if len(norms) == len(convs) == 1 and _NORM.search(last_name(norms[0].func)):
            convolutions += [conv for conv in convs if _CONV.search(last_name(conv.func))]
    return convolutions


def _has_bias(call: cst.Call) -> bool:
    given = argument_number(call, "bias")
    return given is None or source_of(call.args[given].value) != "False"
