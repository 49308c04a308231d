"""Whether a script may have a warm image, told by reading it: one that fails costs its imports.

The image itself decides (`probe/warm_image.py`); this only says where it would refuse for sure.
"""

import ast
import sys
from pathlib import Path


def may_be_held_up(script: Path) -> bool:
    """Return False if something else than an import of a library stands before that of torch."""
    try:
        statements = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    for statement in statements:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            return False
        modules = _modules(statement)
        if any(_is_own(script.parent, module) for module in modules):
            return False
        if not modules <= sys.stdlib_module_names:
            return True  # it may import torch
    return False


def _modules(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the first parts of the names of the modules that a statement imports."""
    if isinstance(statement, ast.ImportFrom):
        return {(statement.module or "").partition(".")[0]}
    return {name.name.partition(".")[0] for name in statement.names}


def _is_own(folder: Path, module: str) -> bool:
    """Return True if a module lies beside the script: two launches may differ within it."""
    package = folder / module / "__init__.py"
    return bool(module) and ((folder / f"{module}.py").is_file() or package.is_file())
