"""Plain text laid out for a terminal: at most 80 columns."""

from __future__ import annotations

import shutil
import textwrap

WIDTH = 80
_CODE = "    "


def width() -> int:
    """Return the columns of the terminal, 80 at most and where there is none."""
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)


def fill(line: str, hang: int, columns: int) -> str:
    """Return one line broken between words; what goes on is indented by `hang` columns.

    A word that is longer than the line (a path, an address) stays whole: it must be copied.
    """
    if len(line) <= columns:
        return line
    body = line.lstrip(" ")
    return textwrap.fill(
        body,
        columns,
        initial_indent=line[: len(line) - len(body)],
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def reflow(page: str, columns: int) -> str:
    """Return a page with its paragraphs and "- " lists broken anew; headings and code stay."""
    lines = page.split("\n")
    pieces: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            hang = 2 if paragraph[0].startswith("- ") else 0
            pieces.append(fill(" ".join(part.strip() for part in paragraph), hang, columns))
            paragraph.clear()

    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not line or line.startswith(_CODE) or _underlines(below) or _underlines(line):
            flush()
            pieces.append(line)
            continue
        if line.startswith("- "):
            flush()
        paragraph.append(line)
    flush()
    return "\n".join(pieces)


def _underlines(line: str) -> bool:
    return len(line) > 2 and set(line) == {"-"}
