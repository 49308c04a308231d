"""Data flows one way: what each room may import, and what may stand where."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "torchdoctor"
FILES = sorted(PACKAGE.rglob("*.py"))
# Rooms, or files, that may import a heavy package.
ONLY_IN = {
    "torch": {"fixes"},  # there inside functions, which the user's process calls
    "rich": {"reports/terminal.py", "reports/progress.py"},
    "typer": {"cli"},
    "psutil": {"machine", "launch", "bench", "watch/machine_log.py"},
    "pynvml": {"machine"},
    "tensorboard": {"reports/tensorboard"},
}


def _place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(_tree(path)))


def _may_import() -> dict[str, set[str]]:
    """What each room's `__init__.py` says that it may import."""
    rooms = {}
    for init in PACKAGE.glob("*/__init__.py"):
        page = ast.get_docstring(_tree(init)) or ""
        said = re.findall(r"^May import: ([^.]+)\.", page, re.MULTILINE)
        assert len(said) == 1, f"{_place(init)} does not say which rooms it may import"
        names = " ".join(said[0].split())
        rooms[init.parent.name] = set() if names == "no other room" else set(names.split(", "))
    return rooms


def _imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Dotted names that a file imports, at any place in it, in full."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = list(package[: len(package) - node.level + 1]) if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def _rooms_imported(path: Path) -> set[str]:
    parts = [name.split(".") for name, _ in _imports(path)]
    return {p[1] for p in parts if p[0] == "torchdoctor"} - {"__version__", _room(path)}


def test_a_room_imports_only_the_rooms_that_it_names() -> None:
    may = _may_import()
    wrong = [
        f"{_place(path)} imports {room}"
        for path in FILES
        if path.parent != PACKAGE
        for room in sorted(_rooms_imported(path) - may[_room(path)])
    ]
    assert not wrong


def test_a_room_names_no_room_that_it_does_not_import() -> None:
    unused = {}
    for room, named in _may_import().items():
        imported = set().union(*(_rooms_imported(p) for p in (PACKAGE / room).rglob("*.py")))
        if named - imported:
            unused[room] = named - imported
    assert not unused


def _reached(rooms: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return all rooms that each room leads to, in any number of steps."""

    def below(room: str) -> set[str]:
        return rooms.get(room, set()).union(*(below(other) for other in rooms.get(room, ())))

    return {room: below(room) for room in rooms}


def test_the_drawing_of_the_rooms_is_that_of_the_imports() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    arrows = re.findall(r"^  (\w+) --> (\w+)$", page, re.MULTILINE)
    drawn: dict[str, set[str]] = {room: set() for room in _may_import()}
    for room, imported in arrows:
        drawn[room].add(imported)
    assert all(drawn[room] <= imported for room, imported in _may_import().items())
    assert _reached(drawn) == _reached(_may_import()), "an arrow is missing or too many"


def test_the_rooms_stand_on_each_other_without_a_cycle() -> None:
    left = _may_import()
    while left:
        ground = {room for room, named in left.items() if not named & left.keys()}
        assert ground, f"these import each other in a cycle: {sorted(left)}"
        left = {room: named for room, named in left.items() if room not in ground}


def test_no_file_imports_one_that_imports_it() -> None:
    """Type-only imports count too: they are read together all the same."""
    modules = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in FILES}
    left = {}
    for module, path in modules.items():
        if path.name == "__init__.py":
            continue
        names = {name for name, _ in _imports(path)}
        names |= {name.rpartition(".")[0] for name in names}
        left[module] = (names & modules.keys()) - {module}
    while left:
        free = {module for module, names in left.items() if not names & left.keys()}
        assert free, f"these import each other in a cycle: {_cycle(left)}"
        left = {module: names for module, names in left.items() if module not in free}


def _cycle(left: dict[str, set[str]]) -> list[str]:
    path = [next(iter(left))]
    while True:
        following = next(name for name in sorted(left[path[-1]]) if name in left)
        if following in path:
            return path[path.index(following) :]
        path.append(following)


def test_heavy_packages_stay_in_their_rooms() -> None:
    wrong = []
    for path in FILES:
        place = _place(path)
        for name, _ in _imports(path):
            top = name.split(".")[0]
            if top in ONLY_IN and not any(
                place == home or place.startswith(home + "/") for home in ONLY_IN[top]
            ):
                wrong.append(f"{place} imports {top}")
    assert not wrong


def test_what_runs_in_the_users_process_needs_only_the_standard_library() -> None:
    wrong = []
    for path in FILES:
        if _room(path) not in ("probe", "steps", "fixes"):
            continue
        at_import = {id(node) for node in _at_import(_tree(path))}
        for name, node in _imports(path):
            # Files of these rooms reach each other by relative imports.
            own = _room(path) != "fixes" and name.startswith(f"torchdoctor.{_room(path)}.")
            # The user's process answers those of the fixes with names that do nothing.
            own = own or (_room(path) == "fixes" and name.startswith("torchdoctor."))
            standard = name.split(".")[0] in sys.stdlib_module_names
            if id(node) in at_import and not own and not standard:
                wrong.append(f"{_place(path)} imports {name}")
    assert not wrong


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements below that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from _at_import(child)


# Objects of other packages, which take what they need no other way.
_COMPLETED_FROM_OUTSIDE = {
    "fixes/cpu_bfloat16_products.py:conv",
    "machine/load_beside.py:held",  # what a context manager gives, whole at its end
    "watch/inside/hooks.py:iterator",
}


def test_no_object_is_completed_where_it_was_made() -> None:
    """A value that is whole once it is made needs nobody to remember its second half."""
    completed = {
        f"{_place(path)}:{name}"
        for path in FILES
        if _room(path) != "probe"
        for function in _nodes(path)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for name in _completed(function)
    }
    assert completed == _COMPLETED_FROM_OUTSIDE


def _completed(function: ast.AST) -> set[str]:
    """Return the names to which a function binds what a call gave, and then sets its attributes."""
    made, completed = set(), set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, ast.Call):
                made |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            completed |= {node.value.id} if isinstance(node.value, ast.Name) else set()
    return made & completed


@pytest.mark.parametrize(
    ("lines", "completed"),
    [
        ("arm = Arm()\narm.further = True", {"arm"}),
        ("trace = read()\ntrace.doubts, rest = rest, trace", {"trace"}),
        ("if arm := arms.get(0):\n    arm.cost_s += 1", {"arm"}),
        ("arm.refused = reason", set()),
        ("self.arm = Arm()\nself.further = True", set()),
    ],
)
def test_an_object_that_is_completed_is_seen(lines: str, completed: set[str]) -> None:
    assert _completed(ast.parse(lines)) == completed


def test_the_declarations_of_checks_and_fixes_are_typed() -> None:
    """Nobody asks by name whether a check or a fix declares something: its spec's type says so."""
    asked = [
        f"{_place(path)}:{node.lineno}"
        for path in FILES
        if _room(path) != "probe"
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr", "setattr")
        and _root(node.args[0]) in {"check", "fix", "ceiling", "spec", *_specs(path)}
    ]
    assert not asked


@functools.cache
def _specs(path: Path) -> set[str]:
    """Return the names of arguments whose annotation speaks of a spec."""
    return {
        node.arg
        for node in _nodes(path)
        if isinstance(node, ast.arg)
        and node.annotation is not None
        and re.search(r"\b(Check|Fix|Ceiling|Launch)Spec\b", ast.unparse(node.annotation))
    }


def _root(argument: ast.expr) -> str:
    """Return the name that an expression such as `fix`, `fixes[name]` or `fix.training` is of."""
    while isinstance(argument, (ast.Attribute, ast.Subscript)):
        argument = argument.value
    return argument.id if isinstance(argument, ast.Name) else ""


def test_nothing_lies_loose() -> None:
    loose = {p.name for p in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert not loose


@pytest.mark.parametrize(
    "line",
    [
        "from torchdoctor.cli import front",
        "import torchdoctor.cli",
        "from ..cli import front",
        "from .. import cli",
        "def f():\n    from torchdoctor.cli import front",
        "if TYPE_CHECKING:\n    from torchdoctor.cli import front",
    ],
)
def test_an_import_of_another_room_is_seen(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torchdoctor"
    (package / "reports").mkdir(parents=True)
    monkeypatch.setitem(globals(), "PACKAGE", package)
    path = package / "reports" / "html.py"
    path.write_text(line + "\n", encoding="utf-8")
    assert _rooms_imported(path) == {"cli"}
