"""A place in the user's source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in the user's source: absolute path and 1-based line."""

    file: str
    line: int
    function: str | None = None
