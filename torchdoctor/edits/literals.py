"""Where a program's source names a folder, or defines a method."""

from __future__ import annotations

import ast
from pathlib import Path


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


def _nodes(file: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(Path(file).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return []
