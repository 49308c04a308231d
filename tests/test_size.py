"""No part of the product is too large to read."""

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
}


def test_no_file_or_function_is_too_large_to_read() -> None:
    assert not list(size._unreadable(size.ROOT, size.read_bounds()))
    assert not list(size._crowded(size.ROOT, size.read_bounds()))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\n" * 6, "bench/exchange.py: 6 lines, at most 5"),
        ("def f(a, b, c): ...\n", "bench/exchange.py:f: 3 parameters, at most 2"),
        ("def f(self, a, b): ...\n", None),
        ("def f():\n    a\n    b\n    c\n", "bench/exchange.py:f: 4 lines, at most 3"),
        ("def f():\n    a\n    b\n", None),
    ],
)
def test_a_bound_that_is_exceeded_is_named(text: str, sentence: str | None, tmp_path: Path) -> None:
    room = tmp_path / "torchdoctor" / "bench"
    room.mkdir(parents=True)
    (room / "exchange.py").write_text(text, encoding="utf-8")
    assert list(size._unreadable(tmp_path, BOUNDS)) == ([sentence] if sentence else [])


def test_an_exemption_that_nothing_needs_goes() -> None:
    bounds = size.read_bounds()
    named = [*bounds["long_functions"], *bounds["many_parameters"]]
    without = {**bounds, "long_functions": {}, "many_parameters": {}}
    needed = {text.rsplit(":", 1)[0] for text in size._unreadable(size.ROOT, without)}
    assert set(named) <= needed
