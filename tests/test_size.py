"""The product is within its budget of lines, files, names and words."""

from pathlib import Path

import pytest
import size

BOUNDS = {
    "files": 1,
    "file_lines": 5,
    "function_lines": 3,
    "parameters": 2,
    "long_functions": {"pairs/exempt.py:f": "for a reason"},
    "many_parameters": {},
    "room_lines": {"pairs": 10},
}


def test_no_file_or_function_is_too_large_to_read() -> None:
    # The budgets of whole rooms are the business of `make lint`.
    assert not list(size._unreadable(size.ROOT, size.budget()))
    assert not list(size._crowded(size.ROOT, size.budget()))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\n" * 6, "pairs/exchange.py: 6 lines, budget 5"),
        ("def f(a, b, c): ...\n", "pairs/exchange.py:f: 3 parameters, budget 2"),
        ("def f(self, a, b): ...\n", None),
        ("def f():\n    a\n    b\n    c\n", "pairs/exchange.py:f: 4 lines, budget 3"),
        ("def f():\n    a\n    b\n", None),
    ],
)
def test_a_bound_that_is_exceeded_is_named(text: str, sentence: str | None, tmp_path: Path) -> None:
    room = tmp_path / "torchdoctor" / "pairs"
    room.mkdir(parents=True)
    (room / "exchange.py").write_text(text, encoding="utf-8")
    assert list(size._unreadable(tmp_path, BOUNDS)) == ([sentence] if sentence else [])


def test_an_exemption_that_nothing_needs_goes() -> None:
    bounds = size.budget()
    named = [*bounds["long_functions"], *bounds["many_parameters"]]
    without = {**bounds, "long_functions": {}, "many_parameters": {}}
    needed = {text.rsplit(":", 1)[0] for text in size._unreadable(size.ROOT, without)}
    assert set(named) <= needed


def test_a_room_above_its_lines_and_one_without_a_budget_are_named() -> None:
    sizes = {"pairs": (11, 2), "attic": (1, 1)}
    assert list(size._too_large(sizes, BOUNDS)) == [
        "pairs: 11 lines, budget 10",
        "attic: pyproject.toml names no budget of lines for this room",
    ]
