"""Data flows one way: what each room may import."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "torchdoctor"
ORDER = [
    "errors",
    "records",
    "gpu_data_sheets",
    "torchrun_commands",
    "scaling",
    "scaling_words",
    "probe",
    "edits",
    "fixes",
    "ceilings",
    "checks",
    "record_files",
    "record_schema",
    "coverage",
    "coverage_tables",
    "thresholds",
    "catalogue",
    "reports",
    "recording",
    "tensorboard_log",
    "source_patch",
    "diagnosis",
    "diagnosis_by_experiment",
    "prospects",
    "candidates",
    "trials",
    "comparison",
    "report_doubts",
    "offered_fixes",
    "report_assembly",
    "machine",
    "gate",
    "machine_noise",
    "run_settings",
    "checkup",
    "trace_verdict",
    "trace_checkup",
    "commands",
    "cli",
    "__main__",
]
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE)
# A file, or a room with all its files.
ONLY_IN = {
    "torch": {"fixes", "ceilings"},  # there inside functions, which the user's process calls
    "rich": {"reports/terminal.py"},
    "typer": {"commands", "cli.py"},
    "psutil": {"recording"},
    "pynvml": {"recording"},
    "tensorboard": {"tensorboard_log"},
    "matplotlib": {"tensorboard_log/drawing.py"},
}


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path, at_import_only: bool) -> list[str]:
    """Dotted names that a file imports, relative ones and `from torchdoctor import x` in full."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    found = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")), at_import_only):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = list(package[: len(package) - node.level + 1]) if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def _statements(node: ast.AST, at_import_only: bool) -> Iterator[ast.AST]:
    """All statements below; with `at_import_only` those that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        yield child
        if at_import_only and isinstance(
            child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        ):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield from _statements(child, at_import_only)


def _later_rooms(path: Path) -> list[str]:
    """Imports of rooms that come after the file's own, or of none that is known."""
    room, wrong = _room(path), []
    for name in _imports(path, at_import_only=True):
        parts = name.split(".")
        if parts[0] != "torchdoctor" or parts[1] in (room, "__version__"):
            continue
        if parts[1] not in ORDER[: ORDER.index(room)]:
            wrong.append(name)
    return wrong


def _strays(path: Path) -> list[str]:
    """Imports, wherever they stand, of packages that belong to other files."""
    here = {_room(path), path.relative_to(PACKAGE).as_posix()}
    tops = {name.split(".")[0] for name in _imports(path, at_import_only=False)}
    return sorted(top for top in tops if top in ONLY_IN and not here & ONLY_IN[top])


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    assert _later_rooms(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    assert _strays(path) == []


@pytest.mark.parametrize(
    "line",
    [
        "from torchdoctor import diagnosis",
        "from torchdoctor.diagnosis import diagnose",
        "import torchdoctor.cli",
        "from ..diagnosis import diagnose",
        "from .. import diagnosis",
        "try:\n    from torchdoctor import trials\nexcept ImportError:\n    pass",
    ],
)
def test_an_import_against_the_order_is_seen(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file_with(line, tmp_path, monkeypatch)
    assert len(_later_rooms(path)) == 1


def test_heavy_packages_are_seen_inside_functions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file_with("def f():\n    import torch.nn, rich, typer, json", tmp_path, monkeypatch)
    assert _strays(path) == ["rich", "torch", "typer"]
    assert _later_rooms(path) == []


def _file_with(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = folder / "torchdoctor"
    (package / "reports").mkdir(parents=True)
    monkeypatch.setitem(globals(), "PACKAGE", package)
    path = package / "reports" / "html.py"
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "path", [p for p in FILES if _room(p) in ("probe", "fixes")], ids=lambda p: p.stem
)
def test_what_runs_in_the_users_process_needs_only_the_standard_library(path: Path) -> None:
    # The probe's files reach each other by relative imports; a fix is loaded alone, by its path.
    own = "torchdoctor.probe." if _room(path) == "probe" else None
    for name in _imports(path, at_import_only=True):
        standard = name.split(".")[0] in sys.stdlib_module_names
        assert standard or (own and name.startswith(own)), f"{path} imports {name}"
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"^(from|import) torchdoctor", source, re.MULTILINE)


def test_files_stay_readable() -> None:
    long = {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 340}
    assert not long
