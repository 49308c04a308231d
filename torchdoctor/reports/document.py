"""What a report says before a format lays it out: sections of typed blocks.

A document is built once from a report, a comparison or a gate's result. The writers (terminal,
HTML, Markdown) know these blocks and nothing else: no fix, no check, no statistic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words import Interval, Note

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
    """One row of a table."""

    cells: list[str]
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Cells under column titles; the writer breaks long cells."""

    columns: list[str]
    rows: list[Row]


@dataclass(frozen=True)
class Bar:
    """One part of a whole. `key` chooses its colour, `share` is 0 to 1."""

    key: str
    label: str
    share: float
    text: str
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """The parts of one whole, drawn as one stacked bar with a legend."""

    bars: list[Bar]


@dataclass(frozen=True)
class IntervalRow:
    """One row of `Intervals`; without an interval nothing is drawn."""

    cells: list[str]
    interval: Interval | None = None
    tone: str = ""


@dataclass(frozen=True)
class Intervals:
    """A table whose intervals may also be drawn, all on one scale, behind the second column."""

    columns: list[str]
    rows: list[IntervalRow]


@dataclass(frozen=True)
class Code:
    """Lines to be copied: never broken. language: "diff" | "python" | "shell"."""

    text: str
    language: str = "python"


Block = Sentence | Note | KeyFigures | Table | Bars | Intervals | Code


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
    hint: str = ""  # how to see the details; shown where they are not


def sections(*parts: tuple[str, list[Block]]) -> list[Section]:
    """Return the sections of these titles and blocks; those without a block are left out."""
    return [Section(title, blocks) for title, blocks in parts if blocks]


def notes(lines: list[str]) -> list[Block]:
    """Return each line as a point of a list."""
    return [Note(severity="detail", sentence=line) for line in lines]


def sentences(*texts: str, tone: str = "") -> list[Block]:
    """Return each text that is not empty as a paragraph."""
    return [Sentence(text, tone) for text in texts if text]


def table(columns: list[str], rows: list[list[str]]) -> list[Block]:
    """Return a table of plain rows; nothing where there is no row."""
    return [Table(columns, [Row(cells) for cells in rows])] if rows else []
