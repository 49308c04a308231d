"""A document on a terminal: at most 100 columns, readable without colour and when piped."""

import io
import math
import os
import sys

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table as Grid
from rich.text import Text

from torchdoctor.reports import document as blocks
from torchdoctor.reports.document import Block, Document, Section
from torchdoctor.schema import Interval, Note
from torchdoctor.schema.figures import clean, visible

WIDTH = 100
_MARGIN = 2
_MARK, _MARKED_FROM = 11, 92  # columns of an interval's mark, and of a terminal with room for it
_SHORT = 20  # cells of at most so many columns are never broken
_WIDEST = 20.0  # the scale of the marks ends at this ratio from 1
_TONES = {"strong": "bold", "good": "bold green", "bad": "bold red", "soft": "dim"}
# Parts of a bar are told apart without colour too.
_PARTS = {
    "data_loader": ("█", "red"),
    "memcpy": ("=", "yellow"),
    "memset": ("_", "bright_yellow"),
    "communication": ("~", "magenta"),
    "gpu": ("▓", "green"),
    "runtime": ("+", "cyan"),
    "cpu": ("░", "blue"),
    "other": ("·", "bright_black"),
}
_PLAIN = str.maketrans("█▓░·├─●┤┊…", "#*:.|-o|:.")  # for an encoding that lacks the former


def show(document: Document, details: bool = False) -> None:
    """Print to standard output, as wide as the terminal up to 100 columns; 100 on a pipe."""
    if sys.stdout is None:  # closed (>&-)
        return
    console = Console()
    colours = console.color_system if console.is_terminal and not console.no_color else None
    wide = not console.is_terminal and "COLUMNS" not in os.environ
    # Some containers set COLUMNS=0.
    text = render(document, WIDTH if wide else min(console.width or WIDTH, WIDTH), details, colours)
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeError:
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def render(
    document: Document, width: int = WIDTH, details: bool = True, colours: str | None = None
) -> str:
    """Return the document as text of so many columns; `colours` is a colour system of rich."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colours is not None,
        color_system=colours,  # type: ignore[arg-type]  # rich takes the name that it gave
        highlight=False,
        emoji=False,
        legacy_windows=False,
        force_jupyter=False,  # or a notebook shows each line by itself
    )
    heading = _text(document.title, "bold")
    heading.append(clean(f" · {document.subject}") if document.subject else "", style="not bold")
    console.print(heading)
    for section in [*document.screen, *(document.details if details else [])]:
        _print(console, section)
    if document.hint and not details:
        console.print()
        fits = len(document.hint) + _MARGIN <= width
        hint = document.hint if fits else document.hint.replace(" · ", "\n  ")
        console.print(_text(f"  {hint}", "dim"), soft_wrap=True)
    # rich fills lines up with spaces, which a file or pipe should not get
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _text(text: str, style: str = "") -> Text:
    """Return what rich lays out: no text reaches it in another way, but for code."""
    return Text(clean(text), style=style)


def _print(console: Console, section: Section) -> None:
    console.print()
    if section.title:
        console.print(_text(section.title, "bold underline"))
    for block in section.blocks:
        for part in _drawn(block, console.width - 2 * _MARGIN):
            # What is not laid out is to be copied: it is neither broken nor cut.
            console.print(part, soft_wrap=isinstance(part, Text), crop=False)


def _indented(part: RenderableType, columns: int = _MARGIN) -> Padding:
    return Padding(part, (0, 0, 0, columns))


def _drawn(block: Block, width: int) -> list[RenderableType]:
    """Return what rich lays out, or a Text that is neither broken nor indented."""
    match block:
        case blocks.Sentence():
            return [_indented(_text(block.text, _TONES.get(block.tone, "")))]
        case Note():
            beware = block.severity == "beware"
            grid = Grid.grid(padding=(0, 1, 0, 0))
            bullet = Text("Beware:", style="bold") if beware else Text("-")
            grid.add_row(bullet, _text(block.sentence))
            return [_indented(grid)]
        case blocks.KeyFigures():
            return [_indented(_key_figures(block, width))]
        case blocks.Table():
            return [_indented(_table(block, width))]
        case blocks.Bars():
            return _bars(block, width)
        case blocks.Code():
            return [_code(block)]


def _key_figures(block: blocks.KeyFigures, width: int) -> RenderableType:
    style = _TONES.get(block.tone, "")
    if not block.rows:
        return _text(f"{block.title} {block.figure}".strip(), style)
    names = max(len(name) + _MARGIN for name, _ in block.rows)
    first = min(max(names, len(block.title)), width // 2)
    grid = Grid.grid(padding=(0, 3, 0, 0))
    grid.add_column(width=first, overflow="fold")
    grid.add_column(width=width - first - 3, overflow="fold")
    grid.add_row(_text(block.title, style), _text(block.figure, style))
    for name, remark in block.rows:
        grid.add_row(_indented(_text(name)), _text(remark))
    return grid


def _table(block: blocks.Table, width: int) -> Grid:
    columns = list(block.columns)
    rows = [list(map(clean, row.cells)) for row in block.rows]
    drawn = [row.interval for row in block.rows if row.interval is not None]
    if drawn and width >= _MARKED_FROM - 2 * _MARGIN:
        ends = [_within(end) for interval in drawn for end in (interval.low, interval.high)]
        scale = min(*ends, 1 / 1.05), max(*ends, 1.05)
        columns.insert(2, "")
        for row, cells in zip(block.rows, rows, strict=True):
            cells.insert(2, _mark(row.interval, *scale) if row.interval else " ")
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(columns):
        cells = [row[number] for row in rows]
        short = all(len(cell) <= _SHORT for cell in cells)
        figures = all(cell[:1] in set("+-0123456789") for cell in cells)
        grid.add_column(
            _text(name),
            no_wrap=short and number > 0,  # the first gives way where all are too wide
            overflow="fold",
            justify="right" if figures and number > 0 and short else "left",
        )
    for row, cells in zip(block.rows, rows, strict=True):
        grid.add_row(*map(Text, cells), style=_TONES.get(row.tone, ""))
    return grid


def _within(ratio: float) -> float:
    return min(max(ratio, 1 / _WIDEST), _WIDEST)


def _mark(interval: Interval, lowest: float, highest: float) -> str:
    """Return an interval drawn on a logarithmic scale, with a dotted line at 1."""

    def column(ratio: float) -> int:
        part = math.log(_within(ratio) / lowest) / math.log(highest / lowest)
        return round(part * (_MARK - 1))

    cells = [" "] * _MARK
    cells[column(1.0)] = "┊"
    low = column(interval.low)
    high = column(interval.high)
    for number in range(low, high + 1):
        cells[number] = "─"
    cells[low], cells[high] = "├", "┤"
    cells[column(interval.estimate)] = "●"
    return "".join(cells)


def _bars(block: blocks.Bars, width: int) -> list[RenderableType]:
    bar = Text()
    lines = [Text()]
    drawn = 0
    exact = 0.0
    for part in block.bars:
        exact += min(max(part.share, 0.0), 1.0) * width  # a file may say anything
        cells = max(round(exact) - drawn, 0)
        drawn += cells
        fill, colour = _PARTS.get(part.key, _PARTS["other"])
        bar.append(fill * cells, style=colour)
        label = clean(f"{part.text} {part.label}")
        if lines[-1] and len(lines[-1]) + len(label) + 5 > width:
            lines.append(Text())
        lines[-1].append("   " if lines[-1] else "")
        lines[-1].append(f"{fill} ", style=colour)
        lines[-1].append(label)
    return [_indented(part) for part in (bar, *lines)]


def _code(block: blocks.Code) -> Text:
    if block.language == "diff":
        # Neither indented nor broken: a line in two would be another diff.
        text = Syntax("", "diff", background_color="default").highlight(visible(block.text))
        text.rstrip()
        return text
    mark = "$ " if block.language == "shell" else ""
    lines = clean(block.text).split("\n")
    return Text("\n".join(f"    {mark}{line}" if line else "" for line in lines))
