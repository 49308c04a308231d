"""Where an argument's value comes from: an option of the command line, or else a constant.

`num_workers=args.workers` is not overwritten, which would leave `--workers` without effect: the
option's default is changed, or, where the command gives the option, the command. If the option is
declared in another file than the call, nothing proves that they are the same: no source is changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

import libcst as cst
from libcst import matchers
from libcst.matchers import findall

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.origins import Names, constant_changed, set_elsewhere
from torchdoctor.edits.syntax import (
    argument_number,
    calls_of,
    collect,
    last_name,
    parsed,
    replaced,
    source_of,
    with_argument,
)

# Of a loader: they go with its number of workers.
_BESIDE = (
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "timeout",
    "pin_memory",
)
_SHOWS = ("print", "info", "debug", "write")


def serves_something_else(module: cst.Module, option: str, keyword: str) -> bool:
    """Return True if a new default of `args.threads` would change something else too.

    It may be shown, or be the same argument of another call, as of a second loader.
    """
    names = Names(module)
    reads: list[cst.CSTNode] = [
        x
        for x in matchers.findall(module, matchers.Attribute(attr=matchers.Name(option)))
        if not matchers.matches(x, matchers.Attribute(value=matchers.Name("self")))
    ]
    reads += matchers.findall(module, matchers.SubscriptElement(matchers.Index(_text(option))))
    reads += [
        x
        for x in collect(module).of(cst.Call)
        if last_name(x.func) == "getattr" and _asks(x, option)
    ]
    return any(not _is_for(names, read, keyword) for read in reads)


def _text(option: str) -> matchers.SimpleString:
    return matchers.SimpleString(
        value=matchers.MatchIfTrue(lambda text: text.strip("rbuRBU'\"") == option)
    )


def _asks(call: cst.Call, option: str) -> bool:
    return any(matchers.matches(x.value, _text(option)) for x in call.args[1:2])


def _is_for(names: Names, read: cst.CSTNode, keyword: str) -> bool:
    """Return True if a read is within such an argument, or in what is printed."""
    node = names.parents.get(read)
    while node is not None and not isinstance(node, cst.BaseStatement):
        if isinstance(node, cst.Arg):
            if node.keyword is not None and node.keyword.value in (keyword, *_BESIDE):
                return True
            call = names.parents.get(node)
            if isinstance(call, cst.Call) and last_name(call.func) in _SHOWS:
                return True
        node = names.parents.get(node)
    return False


_CONVERTS = ("int", "float")
_BATCH = "batch_size"  # what else reads it (a mean, a number of steps) has to follow it
_PARSE = ("parse_args", "parse_known_args")


def at_its_source(
    module: cst.Module, value: cst.BaseExpression, edit: KeywordEdit
) -> cst.Module | None:
    """Change the option's default or the constant; None if it is neither, for certain."""
    argument, value = value, _unwrapped(value)
    if isinstance(value, cst.Name):
        return constant_changed(module, value, edit)
    option = _option(module, value, edit.value)
    if option is None:
        return None
    given = _given(module, option, edit.command) is not None
    if given and _command(module, option, edit) == list(edit.command):
        return module
    if serves_something_else(module, _dest(option), edit.keyword):
        if edit.keyword == _BATCH:
            return None
        return replaced(module, argument, cst.parse_expression(edit.value))
    if given:
        return None
    return _default_changed(module, option, edit.value)


def command_instead(
    module: cst.Module, value: cst.BaseExpression, edit: KeywordEdit
) -> list[str] | None:
    """Return the command with the option's new value, if the command gives the option."""
    option = _option(module, _unwrapped(value), edit.value)
    if option is None:
        return None
    if edit.keyword != _BATCH and serves_something_else(module, _dest(option), edit.keyword):
        return None
    return _command(module, option, edit)


def _command(module: cst.Module, option: cst.Call, edit: KeywordEdit) -> list[str] | None:
    given = _given(module, option, edit.command)
    if given is None:
        return None
    number, name, attached = given
    words = list(edit.command)
    if not attached:
        words[number + 1] = edit.value
    else:
        words[number] = f"{name}={edit.value}" if len(name) > 2 else f"{name}{edit.value}"
    return words


def read_elsewhere(
    module: cst.Module, call: cst.Call, value: cst.BaseExpression, edit: KeywordEdit
) -> tuple[str, list[cst.Attribute]] | None:
    """Return the option whose default is changed for this argument, and what else reads it.

    The name is the command line's. None if no option's default is changed.
    """
    value = _unwrapped(value)
    option = _option(module, value, edit.value)
    if option is None or not isinstance(value, cst.Attribute):
        return None
    if _given(module, option, edit.command):
        return None
    names, inside = Names(module), findall(call, matchers.Attribute())
    reads = findall(module, matchers.Attribute(attr=matchers.Name(value.attr.value)))
    elsewhere = [
        read
        for read in reads
        if isinstance(read, cst.Attribute)
        and isinstance(read.value, cst.Name)
        and not any(read is node for node in inside)
        and names.is_parsed(read.value)
    ]
    return max(_names(option), key=len), elsewhere


def _unwrapped(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return `args.workers` of `int(args.workers)`."""
    if isinstance(value, cst.Call) and last_name(value.func) in _CONVERTS and len(value.args) == 1:
        return value.args[0].value
    return value


def _option(module: cst.Module, value: cst.BaseExpression, new: str) -> cst.Call | None:
    """Return the one `add_argument` that sets `args.workers`, if nothing else sets it.

    None where `args` may be anything else than what `parse_args()` returned, or where the option
    does not take the new value.
    """
    if not isinstance(value, cst.Attribute) or not isinstance(value.value, cst.Name):
        return None
    name = value.attr.value
    option = declared(module, name, new)
    if option is None or _of_another_parser(module, option):
        return None
    if set_elsewhere(module, name) or not Names(module).is_parsed(value.value):
        return None
    return option


def declared(module: cst.Module, name: str, new: str) -> cst.Call | None:
    """Return the one `add_argument` for `name` that takes a new value; None: none, or several."""
    made = calls_of(module, "add_argument")
    options = [x for x in made if _dest(x) == name]
    return options[0] if len(options) == 1 and _takes(options[0], new) else None


def command_with(module: cst.Module, option: cst.Call, edit: KeywordEdit) -> list[str] | None:
    """Return the command with an option's new value, at its end if it does not give it.

    None of what is no option with a value: a place in the command, `action="store_true"`.
    """
    name = max(_names(option), key=len, default="")
    if not name.startswith("-") or _keyword(option, "action") is not None:
        return None
    return _command(module, option, edit) or [*edit.command, name, edit.value]


def _takes(option: cst.Call, value: str) -> bool:
    """Return True if an option takes one value, and its `choices` (if literal) hold it."""
    choices = _keyword(option, "choices")
    if choices is None or _keyword(option, "nargs") is not None:
        return _keyword(option, "nargs") is None
    if not isinstance(choices, (cst.List, cst.Tuple, cst.Set)):
        return False
    return value in [source_of(x.value) for x in choices.elements]


def _keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    number = argument_number(call, name)
    return None if number is None else call.args[number].value


def _of_another_parser(module: cst.Module, option: cst.Call) -> bool:
    """Return True if the option's parser and the one that parses go by different names."""
    syntax = collect(module)
    parsers = set()
    for assign in syntax.of(cst.Assign):
        made = last_name(assign.value.func) if isinstance(assign.value, cst.Call) else ""
        if made.endswith("ArgumentParser"):
            parsers |= {last_name(target.target) for target in assign.targets}
    owner = _owner(option)
    parsing = {_owner(x) for x in syntax.of(cst.Call) if last_name(x.func) in _PARSE} & parsers
    return owner in parsers and bool(parsing) and parsing != {owner}


def _owner(call: cst.Call) -> str:
    """Return "parser" of `parser.parse_args()`."""
    return last_name(call.func.value) if isinstance(call.func, cst.Attribute) else ""


def _names(call: cst.Call) -> list[str]:
    """Return the ["-j", "--workers"] of an `add_argument`."""
    plain = [a.value for a in call.args if a.keyword is None and not a.star]
    return [str(x.evaluated_value) for x in plain if isinstance(x, cst.SimpleString)]


def _dest(call: cst.Call) -> str:
    dest = _keyword(call, "dest")
    if isinstance(dest, cst.SimpleString):
        return str(dest.evaluated_value)
    names = _names(call)
    long = next((name for name in names if name.startswith("--")), None)
    return (long or next(iter(names), "")).lstrip("-").replace("-", "_")


def _given(
    module: cst.Module, option: cst.Call, command: Sequence[str]
) -> tuple[int, str, bool] | None:
    """Return where the command gives the option: its index, name, and if its value is attached.

    By argparse's own rules; of several the last, which argparse takes.
    """
    own = set(_names(option))
    declared = {"-h", "--help"}
    for call in collect(module).of(cst.Call):
        if last_name(call.func) == "add_argument":
            declared |= {name for name in _names(call) if name.startswith("-")}
    given = None
    for number, word in enumerate(command):
        if word == "--":
            break
        name, attached = _meant(word, declared)
        if name in own and (attached or number + 1 < len(command)):
            given = number, word.partition("=")[0] if name.startswith("--") else name, attached
    return given


def _meant(word: str, declared: Collection[str]) -> tuple[str, bool]:
    """Return the option that a word of the command names, and if its value is attached."""
    written, equals, _ = word.partition("=")
    if written in declared:
        return written, bool(equals)
    if not word.startswith("--"):
        attached = word[:2] in declared and word[2:].isdigit()  # `-j2`
        return word[:2] if attached else word, attached
    # argparse takes a long option's beginning for the whole, where it is that of one only.
    begun = [name for name in declared if name.startswith(written)]
    return begun[0] if len(begun) == 1 else written, bool(equals)


def _default_changed(module: cst.Module, option: cst.Call, value: str) -> cst.Module | None:
    kind, at = _keyword(option, "type"), argument_number(option, "default")
    starred = any(a.star for a in option.args)
    if at is None or starred or _keyword(option, "action") is not None or not value.isdigit():
        return None
    old = option.args[at].value
    number = isinstance(old, cst.Name) and kind is not None and last_name(kind) in _CONVERTS
    if not number and not isinstance(old, cst.Integer):
        return None
    changed = with_argument(option, at, cst.parse_expression(value))
    told = argument_number(option, "help")
    if told is not None and isinstance(option.args[told].value, cst.SimpleString):
        text = source_of(option.args[told].value)
        shown = rf"(default\W{{0,3}}){re.escape(source_of(old))}(?![\w.])"
        text = re.sub(shown, rf"\g<1>{value}", text)
        changed = with_argument(changed, told, cst.parse_expression(text))
    return replaced(module, option, changed)


_LAST_OF = re.compile(r"[\w.]+\.(\w+)")  # args.num_workers, self.args.num_workers


def by_option_of_script(edit: KeywordEdit, origin: str) -> list[str]:
    """Return a comment that names the option, and the command with its new value; [] without."""
    match = _LAST_OF.fullmatch(origin)
    if match is None or edit.script is None or edit.script == edit.file:
        return []
    if not any(Path(word).name == Path(edit.script).name for word in edit.command):
        return []  # `bash -c`, `-m package`: what is added at its end may be no argument of it
    try:
        module, places = parsed(Path(edit.script).read_bytes())
    except (OSError, cst.ParserSyntaxError, UnicodeDecodeError):
        return []
    option = declared(module, match[1], edit.value)
    command = None if option is None else command_with(module, option, edit)
    if option is None or command is None:
        return []
    where = f"{Path(edit.script).name}:{places[option].start.line}"
    return [
        f"# {edit.keyword} may come from {origin}, for which {where} has an option: try",
        shlex.join(command),
    ]
