"""Plain text laid out for a terminal: at most 80 columns."""

import shutil
import textwrap

WIDTH = 80
_CODE = "    "


def width() -> int:
    """Return the columns of the terminal, 80 at most and where there is none."""
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)


def fill(line: str, hang: int, columns: int) -> str:
    """Return a line broken between words, but for long ones; what goes on is indented by `hang`."""
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
    grows = False  # the last piece is a paragraph that the next line may continue
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        kept = not line or line.startswith(_CODE) or _underlines(below) or _underlines(line)
        if grows and not kept and not line.startswith("- "):
            pieces[-1] += f" {line.strip()}"
        else:
            pieces.append(line)
        grows = not kept
    return "\n".join(
        piece if piece.startswith(_CODE) else fill(piece, 2 * piece.startswith("- "), columns)
        for piece in pieces
    )


def _underlines(line: str) -> bool:
    return len(line) > 2 and set(line) == {"-"}
