"""What code that is shown or written says, whatever its layout and its comments."""

from __future__ import annotations

import ast


def same_code(text: str | None, wanted: str) -> bool:
    """Return whether both are the same program, but for layout and comments."""
    return text is not None and ast.dump(ast.parse(text)) == ast.dump(ast.parse(wanted))


def statements(text: str) -> list[str]:
    """Return each statement of one line, as Python itself writes it, from the first on."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    lines = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    return [code for code in map(ast.unparse, lines) if "\n" not in code]


def calls(text: str, callee: str) -> list[str]:
    """Return the calls of a function or a class, as Python itself writes them."""
    return [ast.unparse(call) for call in _calls(text, callee)]


def keywords(text: str, callee: str) -> dict[str, str]:
    """Return the keyword arguments of the only call of a function or a class."""
    [call] = _calls(text, callee)
    return {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg is not None}


def imported(text: str) -> set[str]:
    """Return the full names of what the code imports."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _calls(text: str, callee: str) -> list[ast.Call]:
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func).split(".")[-1] == callee]
