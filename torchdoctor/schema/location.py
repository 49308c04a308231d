"""A place in the user's source."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in the user's source."""

    file: str  #: Absolute path.
    line: int  #: Line, from 1.
    function: str | None = None  #: Name of the function around it.
    through: str | None = None  #: Package that makes what is made there; null: the line itself.
