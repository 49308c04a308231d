"""Code laid out in few columns so that it still works when pasted."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Sequence

from torchdoctor.words.figures import shell_lines

_APART = "  "  # between code and its comment
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_REMARK = re.compile(r"(?:^|  +)# ")
_SHELL = re.compile(r"^\s*([A-Z_]+=\S+ |(python|torchrun|srun|numactl|torchdoctor|cp|export) )")


def code_lines(code: str, columns: int) -> list[str]:
    """Code of at most so many columns; only a word that is longer, as a string, stays whole.

    Comments that do not fit go above their line. Lines of Python are broken between words, with a
    backslash outside brackets; what is no Python is a shell command, or left for the terminal.
    """
    lines = code.split("\n")
    if all(len(line) <= columns for line in lines):
        return lines
    parsed = _parsed(code)
    if parsed is None:
        return [part for line in lines for part in _of_no_python(line, columns)]
    found = _of_python(code, columns)
    return found if _parsed("\n".join(found)) == parsed else lines


def comment_lines(text: str, indent: str, columns: int) -> list[str]:
    """A comment, each of whose lines is one."""
    mark = f"{indent}# "
    return textwrap.wrap(
        text,
        columns,
        initial_indent=mark,
        subsequent_indent=mark,
        break_long_words=False,
        break_on_hyphens=False,
    )


def is_python(code: str) -> bool:
    """Whether all of it is: no command for a shell, no remark in plain words."""
    return _parsed(code) is not None


def _parsed(code: str) -> str | None:
    """What Python reads; None where the code is no Python."""
    try:
        return ast.dump(ast.parse(code))
    except (SyntaxError, ValueError):
        return None


def _of_python(code: str, columns: int) -> list[str]:
    lines = code.split("\n")
    rows: dict[int, list[tokenize.TokenInfo]] = {}
    depths: dict[tuple[int, int], int] = {}  # open brackets before a token
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(code + "\n").readline):
        depth -= token.type == tokenize.OP and token.string in ")]}"
        depths[token.start] = depth
        depth += token.type == tokenize.OP and token.string in "([{"
        if token.type not in _LAYOUT:
            rows.setdefault(token.start[0], []).append(token)
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        tokens = rows.get(number, [])
        if len(line) <= columns or not tokens:
            found.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        if tokens[-1].type == tokenize.COMMENT:
            comment = tokens.pop()
            line, remark = line[: comment.start[1]].rstrip(), comment.string.lstrip("# ")
            beside = f"{line}{_APART}{comment.string}"
            if line and len(beside) <= columns:
                found.append(beside)
                continue
            found += comment_lines(remark, indent, columns)
        if line:
            found += _broken(line, [(t.start[1], depths[t.start]) for t in tokens], columns)
    return found


def _broken(line: str, places: Sequence[tuple[int, int]], columns: int) -> list[str]:
    """A line of Python on several, each after the first indented.

    Args:
        line: without its comment.
        places: column and open brackets of each token.
        columns: that it should fit.
    """
    later = " " * (len(line) - len(line.lstrip()) + 4)
    found, begin, prefix = [], 0, ""
    while len(prefix) + len(line) - begin > columns:
        room = begin + columns - len(prefix)
        at = [
            (column, depth)
            for column, depth in places
            if column > begin and line[column - 1] == " " and column - 1 <= room - 2 * (not depth)
        ]
        # A first word alone, as `x =`, makes no line of its own where another place comes later.
        at = at or [(c, d) for c, d in places if c > begin and line[c - 1] == " "][:1]
        if not at:
            break
        column, depth = at[-1]
        found.append(prefix + line[begin:column].rstrip() + ("" if depth else " \\"))
        begin, prefix = column, later
    return [*found, prefix + line[begin:]]


def _of_no_python(line: str, columns: int) -> list[str]:
    """A shell command, a remark, or prose, which the terminal breaks."""
    if len(line) <= columns:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    marks = list(_REMARK.finditer(line))
    if marks:
        code, remark = line[: marks[-1].start()], line[marks[-1].end() :]
        above = comment_lines(remark, indent, columns)
        return [*above, *(_of_no_python(code, columns) if code.strip() else [])]
    if _SHELL.match(line):
        words = " ".join(line.split())
        return [indent + part for part in shell_lines(words, columns - len(indent))]
    return [line]
