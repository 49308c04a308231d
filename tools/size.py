"""Print how large the product is, room by room, and fail where a part is too large to read.

The bounds stand in `pyproject.toml`, under `[tool.size]`. None is on the lines of a
room or of the product: such bounds made the code dense.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
ONE_FILE_EACH = ("checks", "fixes")  # these rooms grow by a file for each check or fix
VAGUE = {"one", "found", "seen", "those", "others", "what", "said"}
GENERATED = re.compile(
    r"docs/(checks|fixes)/|docs/(report|catalogue|agents|cli|frameworks|decisions/faults)\.md"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_bounds(root: Path = ROOT) -> dict[str, Any]:
    """Return the bounds that `pyproject.toml` names."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["tool"]["size"])


def rooms(root: Path) -> dict[str, tuple[int, int]]:
    """Return the lines and the files of each room."""
    sizes = {}
    for folder in sorted((root / "torchdoctor").iterdir()):
        paths = list(folder.rglob("*.py")) if folder.is_dir() else []
        if paths:
            sizes[folder.name] = (sum(map(_lines, paths)), len(paths))
    return sizes


def excesses(root: Path = ROOT) -> list[str]:
    """Return one sentence for each bound that is exceeded."""
    bounds = read_bounds(root)
    sentences = [*_crowded(root, bounds), *_unreadable(root, bounds)]
    for name, size in totals(root).items():
        if size > bounds[name]:
            sentences.append(f"{name.replace('_', ' ')}: {size}, at most {bounds[name]}")
    return sentences


def totals(root: Path) -> dict[str, int]:
    """Return the sizes that concern the whole project, by the names of their bounds."""
    product = (root / "torchdoctor").rglob("*.py")
    pages = [p for p in [*root.glob("*.md"), *(root / "docs").rglob("*.md")] if _by_hand(p, root)]
    return {
        "vague_names": sum(map(_vague_names, product)),
        "docs_words": sum(len(p.read_text(encoding="utf-8").split()) for p in pages),
        "readme_lines": _lines(root / "README.md"),
        "changelog_lines": _lines(root / "CHANGELOG.md"),
        "decision_pages": len(list((root / "docs" / "decisions").glob("*.md"))),
        "rooms": len(rooms(root)),
    }


def _crowded(root: Path, bounds: dict[str, Any]) -> Iterator[str]:
    package = root / "torchdoctor"
    files = Counter(p.parent.relative_to(package).as_posix() for p in package.rglob("*.py"))
    for folder, count in files.items():
        if count > bounds["files"] and folder not in ONE_FILE_EACH:
            yield f"{folder}: {count} files, at most {bounds['files']}"


def _unreadable(root: Path, bounds: dict[str, Any]) -> Iterator[str]:
    for path in sorted((root / "torchdoctor").rglob("*.py")):
        place = path.relative_to(root / "torchdoctor").as_posix()
        if _lines(path) > bounds["file_lines"]:
            yield f"{place}: {_lines(path)} lines, at most {bounds['file_lines']}"
        for function in _functions(path):
            name = f"{place}:{function.name}"
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > bounds["function_lines"] and name not in bounds["long_functions"]:
                yield f"{name}: {lines} lines, at most {bounds['function_lines']}"
            count = _parameters(function)
            if (
                count > bounds["parameters"]
                and name not in bounds["many_parameters"]
                and not place.startswith("probe/")
            ):
                yield f"{name}: {count} parameters, at most {bounds['parameters']}"


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _by_hand(path: Path, root: Path) -> bool:
    return not GENERATED.match(path.relative_to(root).as_posix())


def _functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _parameters(function: Function) -> int:
    a = function.args
    return len([p for p in [*a.posonlyargs, *a.args, *a.kwonlyargs] if p.arg != "self"])


def _vague_names(path: Path) -> int:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return sum(
        (isinstance(n, ast.Name) and n.id in VAGUE) or (isinstance(n, ast.arg) and n.arg in VAGUE)
        for n in nodes
    )


def main() -> int:
    """Print the sizes and return 1 where one is above its bound."""
    bounds = read_bounds()
    print(f"{'room':12}{'lines':>7}{'files':>7}")
    for room, (lines, files) in rooms(ROOT).items():
        print(f"{room:12}{lines:7}{files:7}")
    for name, size in totals(ROOT).items():
        print(f"{name.replace('_', ' ')}: {size}, at most {bounds[name]}")
    above = excesses()
    for sentence in above:
        print(f"too large: {sentence}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
