"""The source of a program, and what Python's own parser says of it: folders, methods, loops.

Fixes ask this at once; LibCST, which the edits need, takes long to import.
"""

import ast
from collections.abc import Sequence
from pathlib import Path


def read_source(path: Path) -> str:
    """Return the text of a file. Raises OSError and UnicodeDecodeError."""
    # newline="": line ends stay as they are, or the patch would not apply.
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


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


def attributes_set(file: str) -> set[str]:
    """Return the names of the attributes that a file assigns to other objects than `self`."""
    targets = (node for node in _nodes(file) if isinstance(getattr(node, "ctx", None), ast.Store))
    attributes = (
        node for target in targets for node in ast.walk(target) if isinstance(node, ast.Attribute)
    )
    return {attribute.attr for attribute in attributes if ast.unparse(attribute.value) != "self"}


def batch_loops(file: str, model: str, leaves: Sequence[bool]) -> list[tuple[int, tuple[str, ...]]]:
    """Return lines of loops that feed a model such batches, with the names of float64 tensors."""
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
