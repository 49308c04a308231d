"""Whether the source shows that each call of a function gives another result."""

import ast
from collections.abc import Iterator

from torchdoctor.edits.unused_results import FUNCTIONS, calls_in, definitions, parsed_file

_RANDOM_MODULES = ("random", "secrets")
_DRAWS = (
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "multinomial",
    "bernoulli",
    "normal_",
    "uniform_",
    "shuffle",
    "sample",
    "choice",
    "choices",
)
_Loop = (ast.For, ast.AsyncFor, ast.While)


def differs_each_call(files: list[str], function: str) -> bool:
    """Return True if a function draws random numbers, or each call gets what a loop makes anew."""
    trees = [tree for tree in map(parsed_file, files) if tree is not None]
    defined = [node for tree in trees for node in definitions(tree, function)]
    if defined and all(map(_draws, defined)):
        return True
    calls = [differs for tree in trees for differs in _calls_differ(tree, function, [])]
    return bool(calls) and all(calls)


def _draws(function: ast.AST) -> bool:
    """Return True if a function calls what draws random numbers."""
    return any(
        names[-1] in _DRAWS or not set(names[:-1]).isdisjoint(_RANDOM_MODULES)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and (names := _dotted(node.func))
    )


def _dotted(node: ast.expr) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else names


def _calls_differ(node: ast.AST, function: str, loops: list[ast.AST]) -> Iterator[bool]:
    """Yield for each call whether an argument of it is made anew by the loop around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda)):
            yield from _calls_differ(child, function, [])
        else:
            around = [*loops, child] if isinstance(child, _Loop) else loops
            if isinstance(child, ast.stmt):
                for call in calls_in(child, function):
                    made = _stored(around[-1]) if around else set()
                    yield not made.isdisjoint(_arguments(call))
            yield from _calls_differ(child, function, around)


def _stored(loop: ast.AST) -> set[str]:
    """Return the names that a loop makes in each turn."""
    names = (node for node in ast.walk(loop) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _arguments(call: ast.Call) -> set[str]:
    """Return the names that a call is given."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    nodes = (node for each in given for node in ast.walk(each))
    return {node.id for node in nodes if isinstance(node, ast.Name)}
