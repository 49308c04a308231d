"""A place in the user's source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in the user's source: absolute path and 1-based line.

    through: of what is made there, the package that makes it, called from that line; None: the line
        itself does.
    """

    file: str
    line: int
    function: str | None = None
    through: str | None = None
