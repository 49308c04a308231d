"""What a name of the program stands for, by LibCST's scopes: a parser's result, or a constant.

A constant is changed where the argument is all that it is for. If it also seeds a generator or
sizes a layer, the argument itself gets the number.
"""

import builtins
import keyword
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

import libcst as cst
from libcst.metadata import ClassScope, ComprehensionScope, GlobalScope
from libcst.metadata.scope_provider import BaseAssignment

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.changes import Changes, Replaced
from torchdoctor.edits.syntax import Program, Syntax, last_name, source_of

_UPDATES = frozenset({"update", "setdefault", "pop", "__setitem__"})
_DICTIONARY = re.compile(r"vars\([^()]+\)|(?!self\.__dict__)[\w.]+\.__dict__")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
_STRING = re.compile(r"""(['"]).*?\1""")
# What these hold and return is the machine's or the library's, not somebody's choice.
_LIBRARIES = frozenset({"datetime", "math", "multiprocessing", "numpy", "psutil", "torch"})
_MACHINE = frozenset({"os.cpu_count", "os.process_cpu_count", "os.sched_getaffinity"})
_OUTSIDE = frozenset({"__import__", "eval", "exec", "getattr", "globals", "input", "open", "vars"})
_READS = re.compile(r"\.(load|read|from)")
_EVERY_NAME = ("exec", "globals", "locals")


def _bindings(program: Program, name: cst.CSTNode) -> list[BaseAssignment]:
    """Return all that give a name its value where it is read; [] if that is not known."""
    scope = program.names.get(name)
    return list(scope[name.value]) if scope is not None and isinstance(name, cst.Name) else []


def _node(bound: Sequence[BaseAssignment]) -> cst.CSTNode | None:
    """Return the node of the one binding of a name; None where there are several."""
    return getattr(bound[0], "node", None) if len(bound) == 1 else None


def is_parsed(
    program: Program, value: cst.BaseExpression, visited: frozenset[int] = frozenset()
) -> bool:
    """Return True if a value is for certain what `parser.parse_args()` returned."""
    if id(value) in visited:
        return False
    visited |= {id(value)}
    if isinstance(value, cst.Call):
        return _parses(value, "parse_args") or _returns_parsed(program, value.func, visited)
    bound = [
        binding
        for binding in _bindings(program, value)
        # `args = None` has no option to read.
        if getattr(_assigned(program, getattr(binding, "node", None)), "value", "") != "None"
    ]
    return bool(bound) and all(_binds_parsed(program, binding, visited) for binding in bound)


def _assigned(program: Program, node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """Return the value that a plain assignment gives this name."""
    target = program.parents.get(node) if isinstance(node, cst.Name) else None
    statement = program.parents.get(target) if isinstance(target, cst.AssignTarget) else target
    if isinstance(statement, cst.AnnAssign) and statement.target is not node:
        return None
    return statement.value if isinstance(statement, cst.Assign | cst.AnnAssign) else None


def _binds_parsed(program: Program, binding: BaseAssignment, visited: frozenset[int]) -> bool:
    node = getattr(binding, "node", None)
    if isinstance(node, cst.Param):
        return _given_parsed(program, node, visited)
    assigned = _assigned(program, node)
    if assigned is not None:
        return is_parsed(program, assigned, visited)
    # `args, rest = parser.parse_known_args()`
    element = program.parents.get(node) if isinstance(node, cst.Name) else None
    several = program.parents.get(element) if isinstance(element, cst.Element) else None
    if not isinstance(several, cst.Tuple) or several.elements[0] is not element:
        return False
    statement = program.parents.get(program.parents[several])
    call = statement.value if isinstance(statement, cst.Assign) else None
    return isinstance(call, cst.Call) and _parses(call, "parse_known_args")


def _returns_parsed(program: Program, func: cst.BaseExpression, visited: frozenset[int]) -> bool:
    """Return True if all that a function returns is what a parser returned."""
    function = _node(_bindings(program, func))
    if not isinstance(function, cst.FunctionDef) or function.decorators:
        return False
    returned = [
        returned.value for returned in Syntax(function).of(cst.Return) if returned.value is not None
    ]
    return bool(returned) and all(is_parsed(program, value, visited) for value in returned)


def _given_parsed(program: Program, parameter: cst.Param, visited: frozenset[int]) -> bool:
    """Return True if every use of a parameter's function is a call with what was parsed."""
    function = program.parents.get(program.parents[parameter])
    if not isinstance(function, cst.FunctionDef) or parameter.default is not None:
        return False
    plain = [*function.params.posonly_params, *function.params.params]
    scope = program.names.get(function)
    bound = list(scope[function.name.value]) if scope is not None else []
    if parameter not in plain or _node(bound) != function:
        return False
    number = plain.index(parameter)
    for reference in bound[0].references:
        call = program.parents.get(reference.node)
        if not isinstance(call, cst.Call) or call.func is not reference.node:
            return False
        given = _argument(call, number, parameter.name.value)
        if given is None or not is_parsed(program, given, visited):
            return False
    return bool(bound[0].references)


def _argument(call: cst.Call, number: int, name: str) -> cst.BaseExpression | None:
    for at, given in enumerate(call.args):
        if given.star:
            return None
        if given.keyword.value == name if given.keyword else at == number:
            return given.value
    return None


def _parses(call: cst.Call, method: str) -> bool:
    """Return True for `parser.parse_args()`; a namespace that is given overrules the defaults."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != method:
        return False
    words = [arg for arg in call.args if arg.keyword is None or arg.keyword.value == "args"]
    return words == list(call.args) and len(words) <= 1 and not any(word.star for word in words)


def set_elsewhere(program: Program, name: str) -> bool:
    """Return True if something besides its `add_argument` may set the option `name`."""
    for target in program.targets:
        owner = source_of(target.value) if isinstance(target, cst.Attribute) else "self"
        if owner not in ("self", "cls") and last_name(target) == name:
            return True
    for call in program.calls("set_defaults"):
        if any(arg.star or (arg.keyword and arg.keyword.value == name) for arg in call.args):
            return True
    return _updated(program) or any(_sets(call, name) for call in program.calls("setattr"))


def _sets(call: cst.Call, name: str) -> bool:
    """Return True if `setattr(args, ...)` may set the option."""
    if len(call.args) < 2 or source_of(call.args[0].value) in ("self", "cls"):
        return len(call.args) < 2
    given = call.args[1].value
    return not isinstance(given, cst.SimpleString) or given.evaluated_value == name


def _updated(program: Program) -> bool:
    """Return True for `vars(args).update(...)`, `args.__dict__[name] = ...`, by any name."""
    dictionaries: set[str] = set()

    def is_dictionary(node: cst.BaseExpression) -> bool:
        code = source_of(node)
        return code in dictionaries or _DICTIONARY.fullmatch(code) is not None

    for assign in program.of(cst.Assign):
        if is_dictionary(assign.value):
            dictionaries |= {source_of(target.target) for target in assign.targets}
    owners = [
        call.func.value for call in program.calls(*_UPDATES) if isinstance(call.func, cst.Attribute)
    ]
    owners += [target.value for target in program.targets if isinstance(target, cst.Subscript)]
    owners += [assignment.target for assignment in program.of(cst.AugAssign)]
    return any(is_dictionary(owner) for owner in owners)


def is_computed(program: Program, value: cst.BaseExpression) -> bool:
    """Return True if a value depends on the program's variables, or on what is outside of it."""
    imported = program.imported
    bound = {
        target.value for target in program.targets if isinstance(target, cst.Name)
    } - imported.keys()
    bound |= {node.name.value for node in (*program.of(cst.Param), *program.scopes)}
    fixed_names = ({*dir(builtins)} - _OUTSIDE | {*keyword.kwlist}) - bound
    for name in _NAME.findall(_STRING.sub("", source_of(value))):
        full = program.full_name(name)
        root = name.split(".")[0]
        library = full in _MACHINE or (
            full.split(".")[0] in _LIBRARIES and not _READS.search(full) and root not in bound
        )
        if root not in fixed_names and not (root in imported and library):
            return True
    return False


def constant_changed(program: Program, value: cst.Name, edit: KeywordEdit) -> Changes | None:
    """Change `WORKERS = 0`, or the argument if it serves more; None: its value is not sure."""
    # A file of settings may overrule every name, or something may read them all.
    if any(
        last_name(call.func) != "vars" or not call.args
        for call in program.calls("vars", *_EVERY_NAME)
    ):
        return None
    bound = _bindings(program, value)
    node = _node(bound)
    target = program.parents.get(node) if isinstance(node, cst.Name) else None
    assign = program.parents.get(target) if isinstance(target, cst.AssignTarget) else None
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    if not isinstance(assign.value, (cst.Integer, cst.Name, cst.Float)):
        return None
    scope = bound[0].scope
    if is_computed(program, assign.value) or isinstance(scope, (ClassScope, ComprehensionScope)):
        return None
    if source_of(assign.value) == edit.value:
        return []
    shared = isinstance(scope, GlobalScope) and not _is_started(edit.file, edit.command)
    if shared or any(reference.node is not value for reference in bound[0].references):
        return [Replaced(*program.span(value), edit.value)]
    return [Replaced(*program.span(assign.value), edit.value)]


def _is_started(file: str, command: Sequence[str]) -> bool:
    """Return True if a file is the program's script: no other module imports its constants."""
    path = Path(file)
    for word in command:
        # `python -m package.train`
        written = word if word.endswith(".py") else f"{word.replace('.', '/')}.py"
        parts = tuple(part for part in PurePath(written).parts if part != "..")
        if parts and path.parts[-len(parts) :] == parts:
            return True
    return False
