"""Shapes that make code hard to read, and that no file of the product has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from packed import late_constants, packed

PACKAGE = Path(__file__).parent.parent / "torchdoctor"


def is_truth(node: ast.expr) -> bool:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare)


def unpacks_literal(node: ast.expr) -> bool:
    literal = isinstance(node, ast.Starred) and isinstance(node.value, (ast.Tuple, ast.List))
    return literal and bool(node.value.elts)


def shapes(code: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each shape."""
    for node in ast.walk(ast.parse(code)):
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if product and (is_truth(node.left) or is_truth(node.right)):
            yield node.lineno, "a boolean used as a number"
        elements: list[ast.expr] = []
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            elements = node.elts
        elif isinstance(node, ast.Call):
            elements = node.args
        if any(unpacks_literal(element) for element in elements):
            yield node.lineno, "a literal that is packed and unpacked"


def test_no_file_has_a_shape_that_hides_what_it_does() -> None:
    lines = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {shape}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, shape in shapes(path.read_text(encoding="utf-8"))
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "code", ["words += ['--no-fork'] * (not warm)", "(x > 0) * y", "{*('a', 'b')}", "f(*['a'], b)"]
)
def test_a_shape_is_seen(code: str) -> None:
    assert list(shapes(code))


@pytest.mark.parametrize("code", ["3 * x", "['a'] * count", "f(*names)", "{*names, 'b'}"])
def test_other_code_is_left_alone(code: str) -> None:
    assert not list(shapes(code))


_WITH_EXAMPLES = ("fixes/", "checks/")  # the data of their examples stand beside them


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def is_late_for_a_reason(path: Path) -> bool:
    return path.relative_to(PACKAGE).as_posix().startswith(_WITH_EXAMPLES)


def test_constants_stand_above_the_code() -> None:
    late = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"
        for path in files()
        if not is_late_for_a_reason(path)
        for node in late_constants(path.read_text(encoding="utf-8"))
    ]
    assert not late, "\n".join(late)


def test_a_constant_that_needs_the_code_above_it_is_not_late() -> None:
    code = "def f():\n    return 1\n\n\nTABLE = [f]\nMOST = 3\nLEAST = MOST - 1\n"
    assert [node.lineno for node in late_constants(code)] == [6, 7]


# Variables called so name nothing of what they hold. `x` of a curve or a function of x is its name.
VAGUE = {"one", "found", "seen", "those", "others", "what", "said", "known", "own", "told", "x"}
OF_X = {"schema/students_t.py", "watch/end_report.py"}


def vague_names(code: str) -> list[tuple[int, str]]:
    """Return line and name of variables and parameters that name nothing; fields may."""
    tree = ast.parse(code)
    fields = {
        id(statement.target)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for statement in cls.body
        if isinstance(statement, ast.AnnAssign)
    }
    names = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and id(node) not in fields
        ):
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
    return [(line, name) for line, name in names if name in VAGUE]


def test_variables_name_what_they_hold() -> None:
    lines = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in files()
        for line, name in vague_names(path.read_text(encoding="utf-8"))
        if name != "x" or path.relative_to(PACKAGE).as_posix() not in OF_X
    ]
    assert not lines, "\n".join(lines)


def test_a_vague_variable_is_seen_and_a_field_is_not() -> None:
    code = "class A:\n    known: bool\n\ndef f(own):\n    return [x for x in own]\n"
    assert vague_names(code) == [(4, "own"), (5, "x")]


def test_unrelated_things_are_assigned_one_by_one() -> None:
    lines = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"
        for path in files()
        for node in packed(path.read_text(encoding="utf-8"))
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("code", "is_packed"),
    [
        ("first, last = 1, 2", True),
        ("low, high = high, low", False),
        ("low, high = pair", False),
        ("self.low, self.high = 1, read()", False),
    ],
)
def test_a_swap_and_a_pair_stay_as_they_are(code: str, is_packed: bool) -> None:
    assert bool(list(packed(code))) == is_packed


CUTS = {
    *("partition", "rpartition", "split", "rsplit", "splitlines"),
    *("removeprefix", "removesuffix"),
}
# What these rooms are given are the fields of a recording, which hold one thing each.
OF_FIELDS = (
    *("bench/", "checks/", "clusters/", "compare/", "fixes/", "launch/"),
    *("observe/", "queries/", "runs/", "trials/", "watch/"),
)


def cut_words(code: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each cut of what we wrote: at a space, or of a fix's own page.

    Paths, qualified names and what other programs wrote have other separators, or none is given.
    """
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in CUTS:
            continue
        separators = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        if any(isinstance(text, str) and " " in text for text in separators):
            yield node.lineno, "a field of two things that is cut in two"
        if any(
            isinstance(part, ast.Attribute) and part.attr == "permanent_form"
            for part in ast.walk(node.func.value)
        ):
            yield node.lineno, "a page that is cut to get code of it"


def test_fields_are_not_cut_to_get_what_stands_in_them() -> None:
    lines = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {cut}"
        for path in files()
        if path.relative_to(PACKAGE).as_posix().startswith(OF_FIELDS)
        for line, cut in cut_words(path.read_text(encoding="utf-8"))
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("code", "is_cut"),
    [
        ("method, _, model = grown.name.partition(' of ')", True),
        ("[part for part in shapes.split(', ')]", True),
        ("FIX.permanent_form.partition('\\n\\n')[2]", True),
        ("FIX.permanent_form.splitlines()[0]", True),
        ("optimizer.cls.rpartition('.')[2]", False),
        ("device.partition(':')[0]", False),
        ("file.read().split()", False),
    ],
)
def test_a_cut_field_is_told_from_a_name_and_a_path(code: str, is_cut: bool) -> None:
    assert bool(list(cut_words(code))) == is_cut
