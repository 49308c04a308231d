"""Whether the training reads what a function returns, or only what is printed and logged does."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

_REPORTS = ("print", "log", "info", "debug", "add_scalar", "append", "set_postfix", "write")
_COLLECTIVES = (  # of torch.distributed: each rank waits there for all others
    "all_reduce",
    "all_gather",
    "all_gather_object",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "gather_for_metrics",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter_object_list",
    "sync_and_compute",
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef, ast.Module)


def only_reported(files: list[str], function: str) -> bool:
    """Return True if every call's result is dropped, or read by reports and under an `if` alone.

    And if the function itself assigns to nothing but its own names. False where that is not clear.
    """
    trees = [tree for tree in map(parsed_file, files) if tree is not None]
    calls = 0
    for tree in trees:
        for scope in ast.walk(tree):
            if isinstance(scope, (*FUNCTIONS, ast.Module)):
                for statement in _statements(scope):
                    for call in calls_in(statement, function):
                        calls += 1
                        if not _is_reported(scope, statement, call):
                            return False
    defined = [node for tree in trees for node in definitions(tree, function)]
    return calls > 0 and len(defined) == 1 and not _changes_something(defined[0])


def reporter(files: list[str], function: str) -> tuple[str, str] | None:
    """Return file and name of the function that only reports: this one, or the one that calls it.

    A metric's inner loop is read by the metric alone. None where nothing of this is clear.
    """
    visited: set[str] = set()
    while function not in visited:
        visited.add(function)
        if only_reported(files, function):
            return next(((file, function) for file in files if _defines(file, function)), None)
        callers = {name for file in files for name in _callers(file, function)}
        if len(callers) != 1:
            return None
        function = callers.pop()
    return None


def _defines(file: str, function: str) -> bool:
    tree = parsed_file(file)
    return tree is not None and any(definitions(tree, function))


def _callers(file: str, function: str) -> Iterator[str]:
    """Yield the names of the functions that call one; "" for the module."""
    tree = parsed_file(file)
    for scope in ast.walk(tree) if tree is not None else ():
        if isinstance(scope, (*FUNCTIONS, ast.Module)):
            statements = list(_statements(scope))
            if any(True for statement in statements for _ in calls_in(statement, function)):
                yield getattr(scope, "name", "")


def holds_collectives(files: list[str], function: str) -> bool:
    """Return True if a function, or one of the same files that it calls, calls a collective.

    A rank that leaves such a call out would keep all others waiting.
    """
    trees = [tree for tree in map(parsed_file, files) if tree is not None]
    defined: dict[str, list[ast.AST]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, FUNCTIONS):
            defined.setdefault(node.name, []).append(node)
    visited = {function}
    open_names = [function]
    while open_names:
        for body in defined.get(open_names.pop(), ()):
            called = {_name(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
            if not called.isdisjoint(_COLLECTIVES):
                return True
            further = [name for name in called if name in defined and name not in visited]
            visited.update(further)
            open_names += further
    return False


def has_call(file: str, function: str) -> bool:
    """Return True if a file calls a function of this name."""
    tree = parsed_file(file)
    calls = (
        (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else ()
    )
    return any(_name(call.func) == function for call in calls)


def parsed_file(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None: it cannot be read."""
    try:
        return _tree(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None


def definitions(tree: ast.AST, function: str) -> Iterator[ast.AST]:
    """Yield the functions of a tree that have a name."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name == function:
            yield node


def nodes_of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of scopes in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, SCOPES):
            yield from nodes_of_scope(node)


@functools.lru_cache(maxsize=8)
def _tree(source: str) -> ast.Module:
    """Return the syntax tree of a source, which is asked about for each of its functions."""
    return ast.parse(source)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Yield the simple statements, and the heads of others, of a scope but not of those in it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, ast.stmt):
            yield node
        yield from _statements(node)


def calls_in(statement: ast.stmt, function: str) -> Iterator[ast.Call]:
    """Yield calls of the function in a statement, without the bodies of compound ones."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            continue
        for node in ast.walk(child):
            if isinstance(node, ast.Call) and _name(node.func) == function:
                yield node


def _name(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _is_reported(scope: ast.AST, statement: ast.stmt, call: ast.Call) -> bool:
    if isinstance(statement, ast.Expr):
        return statement.value is call or _is_report(statement.value)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if len(names) != len(statement.targets):
        return False
    return all(
        isinstance(reader, ast.Expr) and _is_report(reader.value)
        for reader in _statements(scope)
        if reader is not statement and _reads(reader, names)
    )


def _reads(statement: ast.stmt, names: list[str]) -> bool:
    heads = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    return any(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        for head in heads
        for node in ast.walk(head)
    )


def _is_report(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _name(value.func) in _REPORTS


def _changes_something(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Delete)):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Call):
            name = _name(node.func) or ""
            in_place = name.endswith("_") and not name.endswith("__")
            if in_place or name in ("append", "extend", "update", "step", "backward"):
                return True
    return False
