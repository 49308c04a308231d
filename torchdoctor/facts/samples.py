"""Samples of stacks, put together by function or by line."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from torchdoctor.words.program import StackSample


@dataclass(frozen=True)
class Place:
    """Samples that were taken in the same function or at the same line."""

    rows: list[StackSample]

    @property
    def count(self) -> int:
        """How often it was seen."""
        return sum(row.count for row in self.rows)

    @property
    def top(self) -> StackSample:
        """The sample that was seen most often."""
        return max(self.rows, key=lambda row: row.count)


def by_function(rows: Iterable[StackSample]) -> list[Place]:
    """The functions, the one most often seen first."""
    return _ranked(rows, lambda row: (row.location.file, row.location.function or ""))


def by_line(rows: Iterable[StackSample]) -> list[Place]:
    """The lines, the one most often seen first."""
    return _ranked(rows, lambda row: (row.location.file, row.location.line))


def _ranked(rows: Iterable[StackSample], key: Callable[[StackSample], Hashable]) -> list[Place]:
    found: dict[Hashable, list[StackSample]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return sorted((Place(rows) for rows in found.values()), key=lambda place: -place.count)
