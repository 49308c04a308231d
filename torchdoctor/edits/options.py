"""Where an argument's value comes from: an option of the command line, or else a constant.

The default of `--workers` is changed, or the command where it gives the option; nothing where the
option is declared in another file than the call.
"""

import re
import shlex
from pathlib import Path

import libcst as cst
from libcst import matchers

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.changes import Changes, Replaced
from torchdoctor.edits.origins import constant_changed, is_parsed, set_elsewhere
from torchdoctor.edits.syntax import Program, argument, last_name, source_of

# Of a loader: they go with its number of workers.
_BESIDE = (
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "timeout",
    "pin_memory",
)
_SHOWS = ("print", "info", "debug", "write")
_CONVERTS = ("int", "float")
_BATCH = "batch_size"  # what else reads it (a mean, a number of steps) has to follow it
_LAST_OF = re.compile(r"[\w.]+\.(\w+)")  # args.num_workers, self.args.num_workers


def at_its_source(program: Program, value: cst.BaseExpression, edit: KeywordEdit) -> Changes | None:
    """Change the option's default or the constant; None if it is neither, for certain."""
    inner = _unwrapped(value)
    if isinstance(inner, cst.Name):
        return constant_changed(program, inner, edit)
    option = _option(program, inner, edit.value)
    if option is None:
        return None
    command = _command(option, edit)
    if command == list(edit.command):
        return []
    if _serves_something_else(program, _dest(option), edit.keyword):
        return None if edit.keyword == _BATCH else [Replaced(*program.span(value), edit.value)]
    return None if command is not None else _default_changed(program, option, edit.value)


def by_command(
    program: Program, value: cst.BaseExpression | None, edit: KeywordEdit
) -> list[str] | None:
    """Return the command with the option's new value, if the command gives the option."""
    option = None if value is None else _option(program, _unwrapped(value), edit.value)
    if option is None:
        return None
    if edit.keyword != _BATCH and _serves_something_else(program, _dest(option), edit.keyword):
        return None
    return _command(option, edit)


def read_elsewhere(program: Program, call: cst.Call, edit: KeywordEdit) -> list[tuple[str, int]]:
    """Return the option whose default is changed, with each line that also reads it; or []."""
    value = argument(call, edit.keyword, edit.position)
    option = None if value is None else _option(program, _unwrapped(value), edit.value)
    if value is None or option is None or _command(option, edit) is not None:
        return []
    read = matchers.Attribute(
        value=matchers.Name(), attr=matchers.Name(last_name(_unwrapped(value)))
    )
    inside = matchers.findall(call, matchers.Attribute())
    lines = {
        program.line(attribute)
        for attribute in matchers.findall(program.module, read)
        if isinstance(attribute, cst.Attribute) and not any(attribute is node for node in inside)
        if is_parsed(program, attribute.value)
    }
    return [(max(_names(option), key=len), line) for line in sorted(lines)]


def _serves_something_else(program: Program, option: str, keyword: str) -> bool:
    """Return True if a new default of `args.threads` would change something that is not shown."""
    text = matchers.SimpleString(
        value=matchers.MatchIfTrue(lambda code: code.strip("rbuRBU'\"") == option)
    )
    reads: list[cst.CSTNode] = [
        attribute
        for attribute in matchers.findall(
            program.module, matchers.Attribute(attr=matchers.Name(option))
        )
        if not matchers.matches(attribute, matchers.Attribute(value=matchers.Name("self")))
    ]
    reads += matchers.findall(program.module, matchers.SubscriptElement(matchers.Index(text)))
    reads += [
        call
        for call in program.calls("getattr")
        if any(matchers.matches(given.value, text) for given in call.args[1:2])
    ]
    return any(not _is_for(program, read, keyword) for read in reads)


def _is_for(program: Program, read: cst.CSTNode, keyword: str) -> bool:
    """Return True if a read is within such an argument, or in what is printed."""
    node = program.parents.get(read)
    while node is not None and not isinstance(node, cst.BaseStatement):
        above = program.parents.get(node)
        if isinstance(node, cst.Arg):
            if node.keyword is not None and node.keyword.value in (keyword, *_BESIDE):
                return True
            if isinstance(above, cst.Call) and last_name(above.func) in _SHOWS:
                return True
        node = above
    return False


def _unwrapped(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return `args.workers` of `int(args.workers)`."""
    if isinstance(value, cst.Call) and last_name(value.func) in _CONVERTS and len(value.args) == 1:
        return value.args[0].value
    return value


def _option(program: Program, value: cst.BaseExpression, new: str) -> cst.Call | None:
    """Return the one `add_argument` that for certain sets `args.workers` and takes a new value."""
    if not isinstance(value, cst.Attribute) or not isinstance(value.value, cst.Name):
        return None
    name = value.attr.value
    if set_elsewhere(program, name) or not is_parsed(program, value.value):
        return None
    return _declared(program, name, new)


def _declared(program: Program, name: str, new: str) -> cst.Call | None:
    """Return the one `add_argument` for `name` that takes a new value; None: none, or several."""
    options = [call for call in program.calls("add_argument") if _dest(call) == name]
    return options[0] if len(options) == 1 and _takes(options[0], new) else None


def _takes(option: cst.Call, value: str) -> bool:
    """Return True if an option takes one value, and its `choices` (if literal) hold it."""
    choices = argument(option, "choices")
    if choices is None or argument(option, "nargs") is not None:
        return argument(option, "nargs") is None
    if not isinstance(choices, (cst.List, cst.Tuple, cst.Set)):
        return False
    return value in [source_of(element.value) for element in choices.elements]


def _names(call: cst.Call) -> list[str]:
    """Return the ["-j", "--workers"] of an `add_argument`."""
    plain = [a.value for a in call.args if a.keyword is None and not a.star]
    return [str(value.evaluated_value) for value in plain if isinstance(value, cst.SimpleString)]


def _dest(call: cst.Call) -> str:
    dest = argument(call, "dest")
    if isinstance(dest, cst.SimpleString):
        return str(dest.evaluated_value)
    names = _names(call)
    long = next((name for name in names if name.startswith("--")), None)
    return (long or next(iter(names), "")).lstrip("-").replace("-", "_")


def _command(option: cst.Call, edit: KeywordEdit) -> list[str] | None:
    """Return the command with an option's (last) value changed; None if it does not give it."""
    names = _names(option)
    words = list(edit.command)
    changed = None
    for number, word in enumerate(words[: words.index("--")] if "--" in words else words):
        name, equals, _ = word.partition("=")
        if name in names and equals:
            changed = number, f"{name}={edit.value}"
        elif name in names and number + 1 < len(words):
            changed = number + 1, edit.value
        elif word[:2] in names and word[2:].isdigit():  # `-j2`
            changed = number, word[:2] + edit.value
    if changed is None:
        return None
    words[changed[0]] = changed[1]
    return words


def _default_changed(program: Program, option: cst.Call, value: str) -> Changes | None:
    kind = argument(option, "type")
    old = argument(option, "default")
    if old is None or argument(option, "action") is not None or not value.isdigit():
        return None
    number = isinstance(old, cst.Name) and kind is not None and last_name(kind) in _CONVERTS
    if any(a.star for a in option.args) or not (number or isinstance(old, cst.Integer)):
        return None
    changes: Changes = [Replaced(*program.span(old), value)]
    help_text = argument(option, "help")
    if isinstance(help_text, cst.SimpleString):
        shown = rf"(default\W{{0,3}}){re.escape(source_of(old))}(?![\w.])"
        text = re.sub(shown, rf"\g<1>{value}", source_of(help_text))
        if text != source_of(help_text):
            changes.append(Replaced(*program.span(help_text), text))
    return changes


def by_option_of_script(edit: KeywordEdit, origin: str) -> list[str]:
    """Return a comment that names the script's option, and the command with its value; or []."""
    match = _LAST_OF.fullmatch(origin)
    if match is None or edit.script is None or edit.script == edit.file:
        return []
    script = Path(edit.script)
    if not any(Path(word).name == script.name for word in edit.command):
        return []  # `bash -c`, `-m package`: what is added at its end may be no argument of it
    program = Program(script.read_bytes())
    option = _declared(program, match[1], edit.value)
    name = "" if option is None else max(_names(option), key=len, default="")
    if option is None or not name.startswith("-") or argument(option, "action") is not None:
        return []
    command = _command(option, edit) or [*edit.command, name, edit.value]
    where = f"{script.name}:{program.line(option)}"
    return [
        f"# {edit.keyword} may come from {origin}, for which {where} has an option: try",
        shlex.join(command),
    ]
