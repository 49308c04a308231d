"""Shapes of calls whose cure is known, and which of them stands at the line of a finding."""

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.schema import Location, Recording, StackSample
from torchdoctor.schema.record_files import parsed_toml

_LOOP_HEAD = re.compile(r"\s*(for|while)\b.*:\s*(#.*)?$")
_PART = 0.2  # of the samples in a function, from where on a line stands for its cost


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape as known_shapes.toml explains it."""

    id: str
    line: str
    write: str
    source: str
    positive: str
    negative: str
    not_line: str = ""
    within: str = ""
    leaf: str = ""
    spares_more: bool = False  # than the line takes: its share bounds no gain

    def fits(self, text: str, function: str, leaf: str = "") -> bool:
        """Return True if a source line of this function has the shape."""
        if self.within and not re.search(self.within, function):
            return False
        if self.not_line and re.search(self.not_line, text):
            return False
        by_leaf = bool(self.leaf) and re.search(self.leaf, leaf) is not None
        return by_leaf or re.search(self.line, text) is not None


@functools.cache
def known_shapes() -> dict[str, Shape]:
    """Return the shapes by their ids, in the order in which they are tried."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {row["id"]: Shape(**row) for row in parsed_toml(text)["shape"]}


def shape_of(text: str, function: str, leaf: str = "") -> Shape | None:
    """Return the first shape that a source line has."""
    return next(
        (
            known_shape
            for known_shape in known_shapes().values()
            if known_shape.fits(text, function, leaf)
        ),
        None,
    )


def rows_of_shapes(recording: Recording, *idents: str) -> list[StackSample]:
    """Return the samples whose line has one of these shapes."""
    rows = []
    for row in recording.main.stacks:
        shape = shape_of(row.text, row.location.function or "", row.leaf)
        if shape is not None and shape.id in idents:
            rows.append(row)
    return rows


def shape_at(recording: Recording, location: Location | None) -> Shape | None:
    """Return the shape of the line, or else of one that a good part of its function's time is at.

    The function counts because a sample falls on any line of what a slow call is followed by.
    """
    if location is None:
        return None
    rows = [row for row in recording.main.stacks if row.location.file == location.file]
    line_rows = [row for row in rows if row.location.line == location.line]
    function = [row for row in rows if row.location.function == location.function]
    total = sum(row.count for row in function)
    large = [row for row in function if row.count >= _PART * total]
    inside = [text for row in line_rows for text in _repeated(row)]
    within = (shape_of(text, location.function or "") for text in inside)
    # A loop's line may have a sample of anything.
    least = _PART * sum(row.count for row in line_rows)
    there = _first(line_rows, least) or next((shape for shape in within if shape is not None), None)
    return there or _first(sorted(large, key=lambda row: -row.count), least)


def _first(rows: Iterable[StackSample], least: float) -> Shape | None:
    named = ((row, row.leaf if row.count >= least else "") for row in rows)
    shapes = (shape_of(row.text, row.location.function or "", leaf) for row, leaf in named)
    return next((shape for shape in shapes if shape is not None), None)


def _repeated(row: StackSample) -> list[str]:
    """Return the lines of a loop whose head is sampled: Python looks for a sample's turn there."""
    if not _LOOP_HEAD.match(row.text):
        return []
    try:
        source = Path(row.location.file).read_text(encoding="utf-8")
        return _loops(source).get(row.location.line, [])
    except (OSError, ValueError, SyntaxError):
        return []


@functools.lru_cache(maxsize=8)
def _loops(source: str) -> dict[int, list[str]]:
    """Return the lines inside of each loop of a source, by the line of its head."""
    lines = source.splitlines()
    return {
        node.lineno: lines[node.body[0].lineno - 1 : node.end_lineno]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.For, ast.While))
    }
