"""Data flows one way: what each room may import."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "torchdoctor"
ORDER = [
    "errors",
    "records",
    "probe",
    "edits",
    "fixes",
    "checks",
    "record_files",
    "catalogue",
    "reports",
    "recording",
    "diagnosis",
    "candidates",
    "trials",
    "report_assembly",
    "machine",
    "checkup",
    "cli",
]
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE)
ONLY_IN = {
    "rich": {"reports", "cli"},
    "typer": {"cli"},
    "psutil": {"recording"},
    "pynvml": {"recording"},
}


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path, top_level_only: bool) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    room = _room(path)
    for name in _imports(path, top_level_only=True):
        parts = name.split(".")
        if parts[0] == "torchdoctor" and len(parts) > 1 and parts[1] != room:
            assert ORDER.index(parts[1]) < ORDER.index(room), f"{room} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    room = _room(path)
    for name in _imports(path, top_level_only=False):
        top = name.split(".")[0]
        assert top != "torch" or room in ("fixes", "probe"), f"{path} imports torch"
        if top in ONLY_IN:
            assert room in ONLY_IN[top], f"{path} imports {top}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if _room(p) in ("probe", "fixes")], ids=lambda p: p.stem
)
def test_what_runs_in_the_users_process_needs_only_the_standard_library(path: Path) -> None:
    for name in _imports(path, top_level_only=True):
        assert name.split(".")[0] in sys.stdlib_module_names, f"{path} imports {name}"


def test_files_stay_readable() -> None:
    long = {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 340}
    assert not long
