"""Where a program switches something off by its name: `use_cache=False`."""

import ast
from dataclasses import dataclass

from torchdoctor.edits.unused_results import parsed_file


@dataclass(frozen=True, kw_only=True)
class SwitchedOff:
    """A line that gives False to a name; `callee`: last part of what is called, None: assigned."""

    file: str
    line: int
    callee: str | None


def switched_off(file: str, name: str) -> list[SwitchedOff]:
    """Return the lines of a file that switch it off; of what is read in none, []."""
    tree = parsed_file(file)
    lines = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and any(_is_off(keyword, name) for keyword in node.keywords):
            callee = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            lines.append(SwitchedOff(file=file, line=node.lineno, callee=callee))
        elif isinstance(node, ast.Assign) and _is_false(node.value):
            targets = [target for target in node.targets if isinstance(target, ast.Attribute)]
            if any(target.attr == name for target in targets):
                lines.append(SwitchedOff(file=file, line=node.lineno, callee=None))
    return lines


def _is_off(keyword: ast.keyword, name: str) -> bool:
    return keyword.arg == name and _is_false(keyword.value)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
