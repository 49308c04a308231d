"""What edits change in one module, each change anchored to nodes of the module as it was parsed.

Changes of expressions are text between two offsets of the original; changes of statements name an
original block and a number in it. So none of them depends on what another one does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import libcst as cst

from torchdoctor.edits.syntax import Block


class ConflictError(Exception):
    """Two changes want different things of one node."""


@dataclass(frozen=True)
class Replaced:
    """Other text in place of what stands between two offsets, within one statement."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Around:
    """Text before and behind an expression, which may itself change."""

    start: int
    end: int
    before: str
    behind: str


@dataclass(frozen=True)
class ArgumentAdded:
    """One more keyword argument of a call."""

    call: cst.Call
    keyword: str
    value: str


@dataclass(frozen=True)
class ArgumentDropped:
    """One argument less in a call."""

    call: cst.Call
    number: int


@dataclass(frozen=True)
class Inserted:
    """A statement before the one with this number in a block, or right after it.

    `subject`: what it sets; two statements that set one thing differently are a conflict.
    """

    block: Block
    number: int
    code: str
    after: bool = False
    blank_above: bool = False
    subject: str = ""
    statement: cst.CSTNode = field(compare=False, default_factory=cst.Pass)


@dataclass(frozen=True)
class Wrapped:
    """The statements of a block from `first` up to (without) `end` under a `with`."""

    block: Block
    first: int
    end: int
    context: str


@dataclass(frozen=True)
class Removed:
    """A statement that goes; the comments above it stay."""

    block: Block
    number: int


@dataclass(frozen=True)
class Reshaped:
    """Other statements in place of one, made from it with all that else changes in it."""

    block: Block
    number: int
    name: str  # tells one way of reshaping from another
    reshape: Callable[[cst.CSTNode], list[cst.CSTNode]] = field(compare=False)


Change = (
    Replaced | Around | ArgumentAdded | ArgumentDropped | Inserted | Wrapped | Removed | Reshaped
)
TextChange = Replaced | Around
Changes = list[Change]
