"""What a report says before a format lays it out: sections of typed blocks.

A document is built once from a report, a comparison or a gate's result. The writers (terminal,
HTML, Markdown) know these blocks and nothing else: no fix, no check, no statistic.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchdoctor.schema import Interval, Note

PAGE_NAME = "report.html"  # in the run folder
HINT = "details: the same command with --details"
# Tones of a block or a row: "" | "strong" | "good" | "bad" | "soft".


@dataclass(frozen=True)
class Sentence:
    """One paragraph."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class KeyFigures:
    """The answer: a title with its figure, and the things that it is about, each with a remark."""

    title: str
    figure: str = ""
    rows: list[tuple[str, str]] = field(default_factory=list)
    tone: str = "strong"


@dataclass(frozen=True)
class Row:
    """One row of a table, with an interval where a writer may draw it behind the second cell."""

    cells: Sequence[str]
    tone: str = ""
    interval: Interval | None = None


@dataclass(frozen=True)
class Table:
    """Cells under column titles; the writer breaks long cells, and draws intervals on one scale."""

    columns: Sequence[str]
    rows: list[Row]


@dataclass(frozen=True)
class Bar:
    """One part of a whole. `key` chooses its colour, `share` is 0 to 1."""

    key: str
    label: str
    share: float
    text: str


@dataclass(frozen=True)
class Bars:
    """The parts of one whole, drawn as one stacked bar with a legend."""

    bars: list[Bar]


@dataclass(frozen=True)
class Code:
    """Lines to be copied: never broken. language: "diff" | "python" | "shell"."""

    text: str
    language: str = "python"


Block = Sentence | Note | KeyFigures | Table | Bars | Code


@dataclass(frozen=True)
class Section:
    """Blocks below a title, which may be empty."""

    title: str
    blocks: list[Block]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A first screen, and the details that follow it where they are asked for."""

    title: str
    subject: str  # what was measured, and where
    summary: str  # the cause or the verdict in one sentence
    screen: list[Section]
    details: list[Section]
    hint: str = HINT  # shown where the details are not


def sections(*parts: tuple[str, list[Block]]) -> list[Section]:
    """Return the sections of these titles and blocks; those without a block are left out."""
    return [Section(title, blocks) for title, blocks in parts if blocks]


def notes(lines: Sequence[str]) -> list[Block]:
    """Return each line as a point of a list."""
    return [Note(severity="detail", sentence=prose(line)) for line in lines]


def sentences(*texts: str, tone: str = "") -> list[Block]:
    """Return each text that is not empty as a paragraph."""
    return [Sentence(prose(text), tone) for text in texts if text]


def prose(text: str) -> str:
    """Return a sentence with its shares as `percent` writes them: "84 %"."""
    return re.sub(r"(?<=\d)%(?!\w)", " %", text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str] | Row]) -> list[Block]:
    """Return a table; nothing where there is no row."""
    made = [row if isinstance(row, Row) else Row(row) for row in rows]
    return [Table(columns, made)] if made else []
