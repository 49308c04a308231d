"""A numeric setting of which more values may be tried than its fix names. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_FURTHER = (2.0, 4.0, 0.5)  # times the largest and the smallest value that the fix names


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A setting that may be any whole number between two.

    `today`: the untouched program's value, which gains nothing.
    """

    setting: str
    least: int
    most: int
    today: int | None = None

    def further(self, named: Collection[int]) -> list[int]:
        """Return values beyond those that the fix names, within the bounds."""
        ends = [max(named), max(named), min(named)]
        values = [
            min(max(round(factor * end), self.least), self.most)
            for factor, end in zip(_FURTHER, ends, strict=True)
        ]
        return [value for value in dict.fromkeys(values) if value not in {*named, self.today}]
