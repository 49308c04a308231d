"""Where an argument's value comes from: an option of the command line, or a constant.

`num_workers=args.workers` is not overwritten, which would leave `--workers` without effect: the
option's default is changed, or, where the command gives the option, the command.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence

import libcst as cst

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.syntax import Ranges, collect, covers, imported, last_name, replaced

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_STRING = re.compile(r"""(['"]).*?\1""")
_CONVERTS = ("int", "float")


def is_computed(module: cst.Module, value: cst.BaseExpression) -> bool:
    """Whether a value depends on a variable of the program, not only on literals and libraries."""
    names = set(_NAME.findall(_STRING.sub("", module.code_for_node(value))))
    known = {*dir(builtins), *keyword.kwlist, *imported(module)}
    return not names <= known


def at_its_source(
    module: cst.Module, ranges: Ranges, value: cst.BaseExpression, edit: KeywordEdit
) -> cst.Module | None:
    """The option's default or the constant changed; None where it is neither, for certain."""
    value = _unwrapped(value)
    if isinstance(value, cst.Name):
        return _constant_changed(module, ranges, value, edit)
    option = _option(module, value)
    if option is None:
        return None
    if _given(option, edit.command) is not None:
        same = command_instead(module, value, edit) == list(edit.command)
        return module if same else None
    return _default_changed(module, option, edit.value)


def command_instead(
    module: cst.Module, value: cst.BaseExpression, edit: KeywordEdit
) -> list[str] | None:
    """The command with the option's new value, where the command gives the option."""
    option = _option(module, _unwrapped(value))
    given = _given(option, edit.command) if option is not None else None
    if given is None:
        return None
    number, name, attached = given
    words = list(edit.command)
    if not attached:
        words[number + 1] = edit.value
    else:
        words[number] = f"{name}={edit.value}" if name.startswith("--") else f"{name}{edit.value}"
    return words


def _unwrapped(value: cst.BaseExpression) -> cst.BaseExpression:
    """`int(args.workers)` -> `args.workers`."""
    if isinstance(value, cst.Call) and last_name(value.func) in _CONVERTS and len(value.args) == 1:
        return value.args[0].value
    return value


def _option(module: cst.Module, value: cst.BaseExpression) -> cst.Call | None:
    """The one `add_argument` that sets `args.workers`, where nothing else sets it anew."""
    if not isinstance(value, cst.Attribute):
        return None
    name = value.attr.value
    seen = collect(module)
    found = [x for x in seen.calls if last_name(x.func) == "add_argument" and _dest(x) == name]
    for assign in seen.assigns:
        targets = [last_name(one.target) for one in assign.targets if _is_attribute(one.target)]
        # `args.batch = args.batch // ranks` goes on from the option.
        if name in targets and f".{name}" not in module.code_for_node(assign.value):
            return None
    return found[0] if len(found) == 1 else None


def _is_attribute(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute)


def _names(call: cst.Call) -> list[str]:
    """["-j", "--workers"] of an `add_argument`."""
    plain = [a.value for a in call.args if a.keyword is None and not a.star]
    return [str(x.evaluated_value) for x in plain if isinstance(x, cst.SimpleString)]


def _dest(call: cst.Call) -> str:
    for argument in call.args:
        named = argument.keyword is not None and argument.keyword.value == "dest"
        if named and isinstance(argument.value, cst.SimpleString):
            return str(argument.value.evaluated_value)
    names = _names(call)
    long = next((name for name in names if name.startswith("--")), None)
    return (long or next(iter(names), "")).lstrip("-").replace("-", "_")


def _given(option: cst.Call, command: Sequence[str]) -> tuple[int, str, bool] | None:
    """Where the command gives the option: its index, its name, whether its value is attached."""
    for number, word in enumerate(command):
        for name in _names(option):
            written, equals, _ = word.partition("=")
            # argparse takes a long option's beginning for the whole.
            long = name.startswith("--") and len(written) > 2 and name.startswith(written)
            if long and (equals or number + 1 < len(command)):
                return number, written, bool(equals)
            if not name.startswith("--") and word.startswith(name):
                return number, name, word != name
    return None


def _default_changed(module: cst.Module, option: cst.Call, value: str) -> cst.Module | None:
    arguments = {a.keyword.value: n for n, a in enumerate(option.args) if a.keyword is not None}
    kind = arguments.get("type")
    number = kind is not None and last_name(option.args[kind].value) in _CONVERTS
    at = arguments.get("default")
    if at is None or "action" in arguments or any(a.star for a in option.args):
        return None
    old = option.args[at].value
    if not value.isdigit() or not (number or isinstance(old, cst.Integer)):
        return None
    if not isinstance(old, (cst.Integer, cst.Name)):
        return None
    changed = list(option.args)
    changed[at] = changed[at].with_changes(value=cst.parse_expression(value))
    told = arguments.get("help")
    if told is not None and isinstance(changed[told].value, cst.SimpleString):
        text = module.code_for_node(changed[told].value)
        said = module.code_for_node(old)
        text = re.sub(rf"(default\W{{0,3}}){re.escape(said)}(?![\w.])", rf"\g<1>{value}", text)
        changed[told] = changed[told].with_changes(value=cst.parse_expression(text))
    return replaced(module, option, option.with_changes(args=changed))


def _constant_changed(
    module: cst.Module, ranges: Ranges, value: cst.Name, edit: KeywordEdit
) -> cst.Module | None:
    """`WORKERS = 0` above, where nothing but that line gives the name a value."""
    seen = collect(module)
    if any(last_name(call.func) in ("exec", "globals") for call in seen.calls):
        return None  # a file of settings may overrule every name
    around = [x for x in seen.functions if covers(ranges, x, edit.line)]
    for function in around:
        parameters = collect(function.params).parameters
        if any(one.name.value == value.value for one in parameters):
            return None
    if sum(last_name(target) == value.value for target in seen.targets) != 1:
        return None
    bodies = [module.body, *(function.body.body for function in around)]
    for body in bodies:
        for line in body:
            assign = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
                continue
            literal = isinstance(assign.value, (cst.Integer, cst.Name, cst.Float))
            if last_name(assign.targets[0].target) != value.value or not literal:
                continue
            if is_computed(module, assign.value):
                return None
            new = assign.with_changes(value=cst.parse_expression(edit.value))
            return replaced(module, assign, new)
    return None
