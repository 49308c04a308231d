"""A document as GitHub-flavoured Markdown, for a pull request, an issue or a job summary."""

import re
from collections.abc import Sequence

from torchdoctor.reports import document as blocks
from torchdoctor.reports.document import Block, Document, Section
from torchdoctor.schema import Note
from torchdoctor.schema.figures import clean, visible

# Entities where the Markdown of TensorBoard's TEXT tab knows no backslash.
_ENTITIES = {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "~": "&#126;"}
_ESCAPES = str.maketrans(_ENTITIES | {character: f"\\{character}" for character in "\\*_`#[]"})
_BEGINS_LIST = re.compile(r"^(\d*)([-+=.)])")


def render(document: Document, details: bool = True) -> str:
    """Return the document as Markdown."""
    subject = f"\n\n{_escape(document.subject)}" if document.subject else ""
    shown = [*document.screen, *(document.details if details else [])]
    parts = [f"### {_escape(document.title)}{subject}", *map(_section, shown)]
    return "\n\n".join(parts) + "\n"


def titled(document: Document) -> list[tuple[str, str]]:
    """Return the same in pieces of one heading each: its title, and Markdown with the heading."""
    screen = "\n\n".join(map(_section, document.screen))
    return [
        ("First screen", screen),
        *((section.title, _section(section)) for section in document.details),
    ]


def _section(section: Section) -> str:
    text = f"#### {_escape(section.title)}\n\n" if section.title else ""
    before: Block | None = None
    for block in section.blocks:
        if before is not None:  # points of one list stand close to each other
            text += "\n" if isinstance(block, Note) and isinstance(before, Note) else "\n\n"
        text += _written(block)
        before = block
    return text


def _written(block: Block) -> str:
    match block:
        case blocks.Sentence():
            words, _, command = block.text.partition("   ")
            mark = "**" * (block.tone in ("strong", "good", "bad") and bool(words.strip()))
            words = _escape(words.strip()) if mark else _paragraph(words)
            shown = f" {_code_span(command)}" if command.strip() else ""
            return f"{mark}{words}{mark}{shown}"
        case Note():
            beware = "**Beware:** " if block.severity == "beware" else ""
            return f"- {beware}{_escape(block.sentence)}"
        case blocks.KeyFigures():
            title = _escape(f"{block.title} {block.figure}".strip())
            points = [": ".join(_escape(cell) for cell in row if cell) for row in block.rows]
            points = [f"- {point}" for point in points]
            return "\n\n".join([f"**{title}**", "\n".join(points)]).strip()
        case blocks.Table():
            return _table(block.columns, [row.cells for row in block.rows])
        case blocks.Bars():
            return _table(("part", "share"), [(bar.label, bar.text) for bar in block.bars])
        case blocks.Code():
            language = "" if block.language == "shell" else block.language
            text = visible(block.text)
            fence = "`" * max(4, _longest_run(text) + 1)
            return f"{fence}{language}\n{text}\n{fence}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(_escape, columns))} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Return text of one line that makes no heading, link, image, HTML or style of its own."""
    return clean(text).replace("\n", " ").translate(_ESCAPES)


def _paragraph(text: str) -> str:
    """Return a line that begins no list, code or rule either."""
    return _BEGINS_LIST.sub(r"\1\\\2", _escape(text.strip()))


def _code_span(text: str) -> str:
    text = " ".join(clean(text).split())
    fence = "`" * (_longest_run(text) + 1)
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def _longest_run(text: str) -> int:
    """Return how many backticks stand in a row: a longer row is the end of the code."""
    return max(map(len, re.findall("`+", text)), default=0)
