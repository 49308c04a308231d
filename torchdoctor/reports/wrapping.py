"""Text of any width laid out for a terminal: at most 80 columns."""

from __future__ import annotations

import re
import shutil
import textwrap

from torchdoctor.reports.code_lines import comment_lines
from torchdoctor.words.figures import clean, shell_lines

WIDTH = 80
_CODE = "    "
_COMMAND = re.compile(r"(?<=: )torchdoctor(?: \S+)+$")


def width() -> int:
    """Columns of the terminal, 80 at most and where there is none."""
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)


def fill(line: str, hang: int, columns: int) -> str:
    """One line, broken between words; what goes on is indented by `hang` columns.

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


def wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    """Lines of at most 80 columns; a figure stays with its unit, a name in one piece."""
    kept = re.sub(r"(?<=\d) (?=(us|ms|s|%|[kMG]B)\b|%)", "\N{NO-BREAK SPACE}", clean(text))
    lines = textwrap.wrap(
        kept, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def with_whole_command(text: str, columns: int) -> str:
    """The same, broken into lines where it ends in a command, which stays whole to be copied."""
    kept = _COMMAND.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    if kept == text:
        return text
    broken = textwrap.fill(kept, columns, break_long_words=False, break_on_hyphens=False)
    return broken.replace("\N{NO-BREAK SPACE}", " ")


def reflow(page: str, columns: int) -> str:
    """A page of paragraphs, underlined headings, "- " lists and indented code."""
    lines = page.split("\n")
    found: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            hang = 2 if paragraph[0].startswith("- ") else 0
            found.append(fill(" ".join(part.strip() for part in paragraph), hang, columns))
            paragraph.clear()

    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        heading = _underlines(below)
        if not line or line.startswith(_CODE) or heading or _underlines(line):
            flush()
            found.append(_code(line, columns) if line.startswith(_CODE) else line)
            continue
        if line.startswith("- "):
            flush()
        paragraph.append(line)
    flush()
    return "\n".join(found)


def _underlines(line: str) -> bool:
    return len(line) > 2 and set(line) == {"-"}


def _code(line: str, columns: int) -> str:
    """A line of code; where it is too long, its remark goes above it, and a \\ breaks it."""
    if len(line) <= columns:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    code, mark, remark = line.rpartition("  # ")
    lines = comment_lines(remark, indent, columns) if mark else []
    words = " ".join((code if mark else line).split())
    lines += [indent + part for part in shell_lines(words, columns - len(indent))]
    return "\n".join(lines)
