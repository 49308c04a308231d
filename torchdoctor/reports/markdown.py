"""A document as GitHub-flavoured Markdown, for a pull request, an issue or a job summary."""

from collections.abc import Sequence

from torchdoctor.reports import document as blocks
from torchdoctor.reports.document import Block, Document, Section
from torchdoctor.words import Note
from torchdoctor.words.figures import clean


def render(document: Document, details: bool = True) -> str:
    """Return the document as Markdown."""
    subject = f"\n\n{_escape(document.subject)}" if document.subject else ""
    shown = [*document.screen, *(document.details if details else [])]
    parts = [f"### {document.title}{subject}", *map(_section, shown)]
    return "\n\n".join(parts) + "\n"


def titled(document: Document) -> list[tuple[str, str]]:
    """Return the same in pieces of one heading each: its title, and Markdown with the heading."""
    screen = "\n\n".join(map(_section, document.screen))
    return [("First screen", screen), *((x.title, _section(x)) for x in document.details)]


def _section(section: Section) -> str:
    text = f"#### {section.title}\n\n" if section.title else ""
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
            mark = "**" * (block.tone in ("strong", "good", "bad"))
            shown = f" `{clean(command.strip())}`" if command else ""
            return f"{mark}{_escape(words)}{mark}{shown}"
        case Note():
            beware = "**Beware:** " if block.severity == "beware" else ""
            return f"- {beware}{_escape(block.sentence)}"
        case blocks.KeyFigures():
            title = _escape(f"{block.title} {block.figure}".strip())
            points = [": ".join(_escape(x) for x in row if x) for row in block.rows]
            points = [f"- {point}" for point in points]
            return "\n\n".join([f"**{title}**", "\n".join(points)]).strip()
        case blocks.Table():
            return _table(block.columns, [row.cells for row in block.rows])
        case blocks.Bars():
            return _table(("part", "share"), [(bar.label, bar.text) for bar in block.bars])
        case blocks.Code():
            language = "" if block.language == "shell" else block.language
            return f"````{language}\n{clean(block.text)}\n````"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    return "\n".join(lines)


def _escape(text: str) -> str:
    # Entities where the Markdown of TensorBoard's TEXT tab knows no backslash.
    for character, entity in (("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    for character in "\\*_`":
        text = text.replace(character, f"\\{character}")
    return clean(text).replace("\n", " ")
