"""The shapes of statements that say two things at once, or come too late, found in the tree."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

LONGEST_FUNCTION = 60
LONGEST_FILE = 600
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_NOT_PLAIN = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Starred)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _names(node: ast.AST, kind: type[ast.expr_context] = ast.Load) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, kind)}


def _calls(node: ast.AST) -> bool:
    return any(isinstance(x, (ast.Call, ast.Subscript)) for x in ast.walk(node))


def _is_packed(node: ast.stmt) -> bool:
    """Return True if it assigns as many plain expressions to as many names or attributes."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    [left] = node.targets
    right = node.value
    if not isinstance(left, ast.Tuple) or not isinstance(right, ast.Tuple):
        return False
    if len(left.elts) != len(right.elts):
        return False
    if any(not isinstance(x, (ast.Name, ast.Attribute)) for x in left.elts):
        return False
    if any(isinstance(x, ast.Lambda) for x in right.elts):
        return False
    if any(isinstance(x, _NOT_PLAIN) for x in ast.walk(right)):
        return False
    attributes = [x for x in left.elts if isinstance(x, ast.Attribute)]
    if any(not isinstance(x.value, ast.Name) for x in attributes):
        return False
    if attributes and _calls(right):
        return False  # a call may read what was just assigned
    assigned = {ast.unparse(x) for x in left.elts}
    read = {ast.unparse(x) for x in ast.walk(right) if isinstance(x, (ast.Name, ast.Attribute))}
    return not assigned & read


class _Visitor(ast.NodeVisitor):
    """Collects packed assignments with the functions around them, outermost first."""

    def __init__(self) -> None:
        self.around: list[ast.AST] = []
        self.found: list[tuple[ast.Assign, list[ast.AST]]] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and _is_packed(node) and self._is_safe(node):
            self.found.append((node, [x for x in self.around if isinstance(x, _SCOPES)]))
        self.around.append(node)
        self.generic_visit(node)
        self.around.pop()

    def _is_safe(self, node: ast.Assign) -> bool:
        """Return True if nothing that runs between the two could see only one of them."""
        if any(isinstance(x, ast.Try) for x in self.around):
            return False
        if not _calls(node.value):
            return True
        scopes = [x for x in self.around if isinstance(x, _SCOPES)]
        if not scopes:
            return False
        shared = [x for x in ast.walk(scopes[-1]) if isinstance(x, (ast.Nonlocal, ast.Global))]
        inner = [x for x in ast.walk(scopes[-1]) if isinstance(x, _SCOPES) and x is not scopes[-1]]
        assigned = _names(node.targets[0], ast.Store)
        return not shared and not any(assigned & _names(x) for x in inner)


def packed(code: str) -> Iterator[ast.Assign]:
    """Yield assignments of several unrelated things that can be several statements.

    Left alone: a swap, what a comment explains as a whole, and what has no room in its function.
    """
    lines = code.splitlines()
    visitor = _Visitor()
    visitor.visit(ast.parse(code))
    added: dict[ast.AST | None, int] = {}
    for node, functions in visitor.found:
        own = lines[node.lineno - 1 : node.end_lineno]
        if any("#" in line for line in own) or ";" in own[-1]:
            continue
        if not own[0][: node.col_offset].isspace() and node.col_offset:
            continue  # `if x: a, b = 1, 2`
        assert isinstance(node.value, ast.Tuple)
        more = len(node.value.elts)
        spans = [(x, int(x.end_lineno or 0) - int(x.lineno) + 1) for x in functions]  # type: ignore[attr-defined]
        if any(length + added.get(x, 0) + more > LONGEST_FUNCTION for x, length in spans):
            continue
        if len(lines) + added.get(None, 0) + more > LONGEST_FILE:
            continue
        for key in [None, *functions]:
            added[key] = added.get(key, 0) + more
        yield node


def late_constants(code: str) -> Iterator[ast.Assign | ast.AnnAssign]:
    """Yield constants that stand below functions or classes and need none of them."""
    tree = ast.parse(code)
    body = tree.body
    first = next((n for n, x in enumerate(body) if isinstance(x, _DEFINITIONS)), len(body))
    known = set(dir(builtins)) | {"__file__", "__name__"}
    for node in body[:first]:
        known |= _bound(node)
    assigned = [name for node in ast.walk(tree) for name in _stored(node)]
    for node in body[first:]:
        name = _constant(node)
        if name is None or assigned.count(name) > 1 or not _loads(node) <= known:
            continue
        known.add(name)
        assert isinstance(node, (ast.Assign, ast.AnnAssign))
        yield node


def _bound(node: ast.stmt) -> set[str]:
    names = _names(node, ast.Store)
    for part in ast.walk(node):
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            names |= {(x.asname or x.name).partition(".")[0] for x in part.names}
    return names


def _stored(node: ast.AST) -> list[str]:
    stored = isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
    return [node.id] if stored else []  # type: ignore[attr-defined]


def _loads(node: ast.stmt) -> set[str]:
    """Return the names that it needs, but those that a comprehension or lambda of it binds."""
    arguments = {x.arg for x in ast.walk(node) if isinstance(x, ast.arg)}
    own = _names(node, ast.Store) | arguments
    return _names(node) - own


def _constant(node: ast.stmt) -> str | None:
    """Return the name of a constant that a statement assigns."""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target = node.target
    if not isinstance(target, ast.Name) or not _CONSTANT.fullmatch(target.id):
        return None
    return target.id
