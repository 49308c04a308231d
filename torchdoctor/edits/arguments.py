"""Arguments that are added to a call and taken from it, with the white space and comments there."""

import re
from collections.abc import Sequence
from itertools import pairwise

import libcst as cst

from torchdoctor.edits.changes import Replaced
from torchdoctor.edits.syntax import Program

_REST_OF_LINE = re.compile(r"[ \t]*,?[ \t]*(#[^\n]*)?\r?(\n|$)")
_LONG, _MANY = 100, 4  # columns of a line, arguments of a call
_COMMA = re.compile(r"(\s*,)[ \t]*")


def arguments_changed(
    program: Program, call: cst.Call, added: Sequence[str], dropped: Sequence[int]
) -> list[Replaced]:
    """Return the changes of the text that give a call these arguments, and take those away.

    What is added stands in place of what is dropped, as far as that goes.
    """
    numbers = sorted(set(dropped))
    taken = numbers[: len(added)]
    changes = [
        Replaced(*program.span(call.args[number]), text)
        for number, text in zip(taken, added, strict=False)
    ]
    for first, last in _runs(numbers[len(taken) :]):
        changes.append(_dropped(program, call, first, last))
    if rest := added[len(taken) :]:
        if not numbers and _gets_too_long(program, call, rest):
            return _on_lines_of_their_own(program, call, rest)
        changes.append(_added(program, call, rest))
    return changes


def _gets_too_long(program: Program, call: cst.Call, added: Sequence[str]) -> bool:
    """Return True if a call on one line leaves no room there for some more arguments."""
    places = program.ranges[call]
    several = len(call.args) + len(added) >= _MANY and len(call.args) > 0
    if places.start.line != places.end.line or not several:
        return False
    if any(isinstance(node, cst.FormattedString) for node in program.around(call)):
        return False  # before Python 3.12 it must stay on one line
    longest = max(_LONG, *(len(line) for line in program.code.splitlines()))
    return places.end.column + sum(len(text) + 2 for text in added) > longest


def _on_lines_of_their_own(
    program: Program, call: cst.Call, added: Sequence[str]
) -> list[Replaced]:
    """Return the changes that give each argument a line, those that are added included."""
    code = program.code
    spans = [program.span(given) for given in call.args]
    line = code[code.rfind("\n", 0, spans[0][0]) + 1 : spans[0][0]]
    newline = program.module.default_newline
    outer = newline + line[: len(line) - len(line.lstrip())]
    inner = outer + program.module.default_indent
    begin = code.rindex("(", 0, spans[0][0]) + 1
    end = program.span(call)[1] - 1
    between = [(left[1], right[0]) for left, right in pairwise(spans)]
    changes = [Replaced(begin, spans[0][0], inner)]
    changes += [Replaced(start, stop, f",{inner}") for start, stop in between]
    last = "".join(f",{inner}{text}" for text in added)
    return [*changes, Replaced(spans[-1][1], end, f"{last},{outer}")]


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return neighbours together: [1, 2, 4] -> [(1, 2), (4, 4)]."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _added(program: Program, call: cst.Call, texts: Sequence[str]) -> Replaced:
    """Return the change that puts arguments behind the others, laid out like the last."""
    end = program.span(call)[1] - 1  # the closing bracket
    if not call.args:
        return Replaced(end, end, ", ".join(texts))
    code, (start, last_end) = program.code, program.span(call.args[-1])
    tail = code[last_end:end]
    comma = "," if tail.lstrip().startswith(",") else ""
    rest = tail.lstrip()[1:] if comma else tail
    before = code[code.rfind("\n", 0, start) + 1 : start]
    own_line = not before.strip()  # the last argument begins its line
    if "\n" not in rest:
        between = program.module.default_newline + before if own_line else " "
        together = "".join(f",{between}{text}" for text in texts)
        return Replaced(last_end, end, f"{together}{rest}")
    # The closing bracket stands on a line of its own, and so shall the new arguments. A comment
    # before the bracket belongs to the argument that was the last.
    above, _, closing = rest.rpartition("\n")
    indent = before[: len(before) - len(before.lstrip())]
    if program.line(call) == program.line(call.args[-1]):
        indent += program.module.default_indent
    line_end = "\r\n" if above.endswith("\r") else "\n"
    together = f",{line_end}{indent}".join(texts)
    return Replaced(last_end, end, f",{above}\n{indent}{together}{comma}{line_end}{closing}")


def _dropped(program: Program, call: cst.Call, first: int, last: int) -> Replaced:
    """Return the change that takes arguments away; a line of its own goes with its comment."""
    code = program.code
    start = program.span(call.args[first])[0]
    end = program.span(call.args[last])[1]
    begin = code.rfind("\n", 0, start) + 1
    rest = _REST_OF_LINE.match(code, end)
    if rest and not code[begin:start].strip():
        return Replaced(begin, rest.end(), "")
    comma = _COMMA.match(code, end)
    if comma:
        end = comma.end()
        if code[end] in "#\r\n":  # white space before a comment, or at a line's end, is its own
            start, end = begin + len(code[begin:start].rstrip()), comma.end(1)
    if last == len(call.args) - 1 and first:
        last_end = program.span(call.args[first - 1])[1]
        if "#" not in code[last_end:start]:
            start = last_end
    return Replaced(start, end, "")
