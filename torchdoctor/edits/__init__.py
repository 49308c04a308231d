"""Source edits that make a fix permanent: asked for by fixes, made with LibCST, shown as a diff.

A fix names what to change (`edits(settings, recording)`); `torchdoctor.edits.diff` makes the
unified diff. An edit that cannot be made with certainty is not made: the instruction stands then.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KeywordEdit:
    """Set one argument of a call.

    `line` is any line that the call covers; `callee` the last part of the called name; `value`
    Python source. `position`: where the argument stands when it is given by position.
    """

    file: str
    line: int
    callee: str
    keyword: str
    value: str
    position: int | None = None


@dataclass(frozen=True, kw_only=True)
class StatementEdit:
    """Insert one statement after the imports at the head of a module."""

    file: str
    statement: str


@dataclass(frozen=True, kw_only=True)
class DecoratorEdit:
    """Decorate the innermost function that covers `line`, unless it trains."""

    file: str
    line: int
    decorator: str


Edit = KeywordEdit | StatementEdit | DecoratorEdit
