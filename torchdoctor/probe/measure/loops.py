"""How many loops stand around a line of the user's source, by its syntax."""

import ast
import functools
import linecache

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LONGEST = 1_000_000  # characters of a file


def loops_around(location):
    """Return how many loops and comprehensions of its function stand around a line."""
    return _loops_by_line(location["file"]).get(location["line"], 0)


@functools.lru_cache(32)
def _loops_by_line(filename):
    lines = {}

    def note(node, depth):
        if isinstance(node, _FUNCTIONS):
            depth = 0
        for name, value in ast.iter_fields(node):
            # What a loop goes over, and its `else`, are made once.
            inside = isinstance(node, _LOOPS) and name in ("body", "test")
            inside = inside or (isinstance(node, _COMPREHENSIONS) and name != "generators")
            deeper = depth + inside
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    if deeper and hasattr(child, "lineno"):
                        is_function = isinstance(child, _FUNCTIONS)
                        last = child.lineno if is_function else child.end_lineno
                        for line in range(child.lineno, last + 1):
                            lines[line] = max(lines.get(line, 0), deeper)
                    note(child, deeper)

    source = "".join(linecache.getlines(filename))
    try:
        note(ast.parse(source if len(source) < _LONGEST else ""), 0)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return lines
