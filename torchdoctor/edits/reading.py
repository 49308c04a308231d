"""What the source of a program says, by Python's own parser: folders, methods, layers, loops.

Fixes ask this at once; LibCST, which the edits need, takes long to import.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_CONV = re.compile(r"Conv(Transpose)?[123]d$")
_NORM = re.compile(r"(Sync)?BatchNorm([123]d)?$")


def names_of_folder(file: str, folder: str) -> list[tuple[int, str]]:
    """Return lines (1-based) and text of string literals that name a folder or a place in it."""
    folder = folder.rstrip("/")
    literals = [
        (node.lineno, node.value)
        for node in _nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.rstrip("/") == folder or node.value.startswith(folder + "/")
    ]
    return sorted(set(literals))


def method_of_class(file: str, cls: str, method: str) -> int | None:
    """Return the line (1-based) at which a class defines a method; None if it does not, itself."""
    for node in _nodes(file):
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == method:
                    return part.lineno
    return None


def convolutions_before_norm(file: str, line: int, count: int) -> list[int]:
    """Return lines (1-based) of convolutions that a batch normalization follows at once.

    They lie in the class around the line. If the source shows another number than `count`, [].
    """
    classes = [
        node
        for node in _nodes(file)
        if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not classes:
        return []
    inside = max(classes, key=lambda node: node.lineno)
    convolutions = {x for x in (*_in_sequence(inside), *_by_name(inside)) if _has_bias(x)}
    lines = sorted(node.lineno for node in convolutions)
    return lines if len(lines) == count else []


def _in_sequence(inside: ast.ClassDef) -> list[ast.Call]:
    """Return convolutions that a batch normalization follows among arguments or in a list."""
    rows = [_values(node) for node in ast.walk(inside) if isinstance(node, ast.Call)]
    rows += [node.elts for node in ast.walk(inside) if isinstance(node, ast.List)]
    return [
        first
        for row in rows
        for first, second in pairwise(row)
        if isinstance(first, ast.Call) and _makes(first, _CONV)
        if isinstance(second, ast.Call) and _makes(second, _NORM)
    ]


def _by_name(inside: ast.ClassDef) -> list[ast.Call]:
    """Return convolutions such as `self.conv1` of `self.bn1(self.conv1(x))`."""
    made: dict[str, list[ast.Call]] = {}
    for node in ast.walk(inside):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                made.setdefault(ast.unparse(target), []).append(node.value)
    convolutions = []
    for node in ast.walk(inside):
        values = _values(node) if isinstance(node, ast.Call) else []
        if (
            not isinstance(node, ast.Call)
            or len(values) != 1
            or not isinstance(values[0], ast.Call)
        ):
            continue
        norms = made.get(ast.unparse(node.func), [])
        convs = made.get(ast.unparse(values[0].func), [])
        if len(norms) == len(convs) == 1 and _makes(norms[0], _NORM):
            convolutions += [conv for conv in convs if _makes(conv, _CONV)]
    return convolutions


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(x.value for x in call.keywords)]


def _makes(call: ast.Call, kind: re.Pattern[str]) -> bool:
    return kind.search(ast.unparse(call.func).rpartition(".")[2]) is not None


def _has_bias(call: ast.Call) -> bool:
    given = [x.value for x in call.keywords if x.arg == "bias"]
    return not any(isinstance(x, ast.Constant) and x.value is False for x in given)


def batch_loops(file: str, model: str, leaves: Sequence[bool]) -> list[tuple[int, tuple[str, ...]]]:
    """Return lines (1-based) of loops that feed a model, and the names to cast in each.

    `leaves` says which of a batch's tensors are float64; other loops take other batches.
    """
    loops = []
    for loop in _nodes(file):
        if not isinstance(loop, ast.For) or not _calls(loop, model):
            continue
        names = _batch_names(loop)
        if len(names) == len(leaves):
            wanted = tuple(n for n, double in zip(names, leaves, strict=True) if double)
            loops.append((loop.lineno, wanted))
    return sorted(loops)


def _calls(loop: ast.For, model: str) -> bool:
    """Return True if the model is called in the loop, not in a loop within it."""
    below: list[ast.AST] = list(loop.body)
    while below:
        node = below.pop()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == model:
            return True
        if not isinstance(node, ast.For):
            below += ast.iter_child_nodes(node)
    return False


def _batch_names(loop: ast.For) -> list[str]:
    """Return the names of a batch's parts: `x, y`, also behind the number of `enumerate`."""
    target: ast.expr = loop.target
    if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "enumerate":
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return []
        target = target.elts[1]
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else []


def _nodes(file: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(Path(file).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return []
