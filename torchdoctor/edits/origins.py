"""What a name of the program stands for, by LibCST's scopes: a parser's result, or a constant.

A constant is changed where the argument is all that it is for. If it also seeds a generator or
sizes a layer, the argument itself gets the number.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import libcst as cst
from libcst import matchers
from libcst.metadata import (
    ClassScope,
    ComprehensionScope,
    GlobalScope,
    MetadataWrapper,
    ParentNodeProvider,
    Scope,
    ScopeProvider,
)
from libcst.metadata.scope_provider import BaseAssignment

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.syntax import collect, imported, last_name, replaced, resolved, source_of

_UPDATES = frozenset({"update", "setdefault", "pop", "__setitem__"})


class Names:
    """The bindings of a module's names."""

    def __init__(self, module: cst.Module) -> None:
        # A tree that was resolved once has no node twice, so that it need not be copied.
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = module
        self.scopes: Mapping[cst.CSTNode, Scope | None] = wrapper.resolve(ScopeProvider)
        self.parents: Mapping[cst.CSTNode, cst.CSTNode] = wrapper.resolve(ParentNodeProvider)

    def bindings(self, name: cst.Name) -> list[BaseAssignment]:
        """Return all that give a name its value where it is read; [] if that is not known."""
        scope = self.scopes.get(name)
        return [] if scope is None else list(scope[name.value])

    def is_parsed(self, value: cst.BaseExpression, visited: frozenset[int] = frozenset()) -> bool:
        """Return True if a value is for certain what `parser.parse_args()` returned."""
        if id(value) in visited:
            return False
        visited |= {id(value)}
        if isinstance(value, cst.Call):
            return _parses(value, "parse_args") or self._returns_parsed(value.func, visited)
        if not isinstance(value, cst.Name):
            return False
        bound = [x for x in self.bindings(value) if not self._is_none(x)]
        return bool(bound) and all(self._binds_parsed(x, visited) for x in bound)

    def _is_none(self, binding: BaseAssignment) -> bool:
        """Return True for `args = None`, which has no option to read."""
        assigned = self._assigned(getattr(binding, "node", None))
        return isinstance(assigned, cst.Name) and assigned.value == "None"

    def _assigned(self, node: cst.CSTNode | None) -> cst.BaseExpression | None:
        """Return the value that a plain assignment gives this name."""
        target = self.parents.get(node) if isinstance(node, cst.Name) else None
        statement = self.parents.get(target) if isinstance(target, cst.AssignTarget) else target
        if isinstance(statement, cst.AnnAssign) and statement.target is not node:
            return None
        return statement.value if isinstance(statement, cst.Assign | cst.AnnAssign) else None

    def _binds_parsed(self, binding: BaseAssignment, visited: frozenset[int]) -> bool:
        node = getattr(binding, "node", None)
        if isinstance(node, cst.Param):
            return self._given_parsed(node, visited)
        assigned = self._assigned(node)
        if assigned is not None:
            return self.is_parsed(assigned, visited)
        # `args, rest = parser.parse_known_args()`
        element = self.parents.get(node) if isinstance(node, cst.Name) else None
        several = self.parents.get(element) if isinstance(element, cst.Element) else None
        if not isinstance(several, cst.Tuple) or several.elements[0] is not element:
            return False
        statement = self.parents.get(self.parents[several])
        called = statement.value if isinstance(statement, cst.Assign) else None
        return isinstance(called, cst.Call) and _parses(called, "parse_known_args")

    def _returns_parsed(self, called: cst.BaseExpression, visited: frozenset[int]) -> bool:
        """Return True if all that a function returns is what a parser returned."""
        bound = self.bindings(called) if isinstance(called, cst.Name) else []
        function = getattr(bound[0], "node", None) if len(bound) == 1 else None
        if not isinstance(function, cst.FunctionDef) or function.decorators:
            return False
        returned = [x.value for x in collect(function).of(cst.Return) if x.value is not None]
        return bool(returned) and all(self.is_parsed(x, visited) for x in returned)

    def _given_parsed(self, parameter: cst.Param, visited: frozenset[int]) -> bool:
        """Return True if every use of a parameter's function is a call with what was parsed."""
        function = self.parents.get(self.parents[parameter])
        if not isinstance(function, cst.FunctionDef) or parameter.default is not None:
            return False
        plain = [*function.params.posonly_params, *function.params.params]
        scope = self.scopes.get(function)
        bound = list(scope[function.name.value]) if scope is not None else []
        if parameter not in plain or len(bound) != 1 or getattr(bound[0], "node", None) != function:
            return False
        calls = [self.parents.get(reference.node) for reference in bound[0].references]
        number, calls_seen = plain.index(parameter), 0
        for reference, call in zip(bound[0].references, calls, strict=True):
            if not isinstance(call, cst.Call) or call.func is not reference.node:
                return False
            given = _argument(call, number, parameter.name.value)
            if given is None or not self.is_parsed(given, visited):
                return False
            calls_seen += 1
        return calls_seen > 0


def _argument(call: cst.Call, number: int, name: str) -> cst.BaseExpression | None:
    if any(argument.star for argument in call.args):
        return None
    for at, argument in enumerate(call.args):
        if (argument.keyword is None and at == number) or (
            argument.keyword and argument.keyword.value == name
        ):
            return argument.value
    return None


def _parses(call: cst.Call, method: str) -> bool:
    """Return True for `parser.parse_args()`; a namespace that is given overrules the defaults."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != method:
        return False
    words = [x for x in call.args if x.keyword is None or x.keyword.value == "args"]
    return words == list(call.args) and len(words) <= 1 and not any(x.star for x in words)


def set_elsewhere(module: cst.Module, name: str) -> bool:
    """Return True if something besides its `add_argument` may set the option `name`."""
    syntax = collect(module)
    for target in syntax.targets:
        owner = target.value if isinstance(target, cst.Attribute) else None
        if owner is not None and last_name(target) == name and not _is_self(owner):
            return True
    for call in syntax.of(cst.Call):
        called, keywords = last_name(call.func), [x.keyword.value for x in call.args if x.keyword]
        if called == "set_defaults" and (name in keywords or any(x.star for x in call.args)):
            return True
        if called == "setattr" and not _sets_other(call, name):
            return True
    return _updated(module)


def _is_self(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value in ("self", "cls")


def _sets_other(call: cst.Call, name: str) -> bool:
    if len(call.args) < 2 or _is_self(call.args[0].value):
        return len(call.args) > 1
    given = call.args[1].value
    return isinstance(given, cst.SimpleString) and given.evaluated_value != name


_DICTIONARY = re.compile(r"vars\([^()]+\)|(?!self\.__dict__)[\w.]+\.__dict__")


def _updated(module: cst.Module) -> bool:
    """Return True for `vars(args).update(...)`, `args.__dict__[name] = ...`, by any name."""
    syntax = collect(module)

    def is_dictionary(node: cst.BaseExpression, known: set[str]) -> bool:
        code = source_of(node)
        return code in known or _DICTIONARY.fullmatch(code) is not None

    known: set[str] = set()
    for assign in syntax.of(cst.Assign):
        if is_dictionary(assign.value, known):
            known |= {source_of(x.target) for x in assign.targets}
    methods = [call.func for call in syntax.of(cst.Call) if isinstance(call.func, cst.Attribute)]
    owners = [x.value for x in methods if x.attr.value in _UPDATES]
    owners += [x.value for x in syntax.targets if isinstance(x, cst.Subscript)]
    owners += [x.target for x in syntax.of(cst.AugAssign)]
    return any(is_dictionary(owner, known) for owner in owners)


_NAME = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
_STRING = re.compile(r"""(['"]).*?\1""")
_ALL_NAMES = frozenset({"exec", "globals", "locals", "vars"})
# What these hold and return is the machine's or the library's, not somebody's choice.
_LIBRARIES = frozenset({"datetime", "math", "multiprocessing", "numpy", "psutil", "torch"})
_MACHINE = frozenset({"os.cpu_count", "os.process_cpu_count", "os.sched_getaffinity"})
_OUTSIDE = frozenset({"__import__", "eval", "exec", "getattr", "globals", "input", "open", "vars"})
_READS = re.compile(r"\.(load|read|from)")


def is_computed(module: cst.Module, value: cst.BaseExpression) -> bool:
    """Return True if a value depends on a variable of the program, or on what is outside of it.

    Not of literals and what libraries say of the machine: `min(2, os.cpu_count())`.
    """
    names = imported(module)
    syntax = collect(module)
    under = matchers.findall(module, matchers.ImportAlias(asname=matchers.AsName()))
    aliases = {cst.ensure_type(x, cst.ImportAlias).asname for x in under}
    renamed = {x.name for x in aliases if x is not None}
    bound = {x.value for x in syntax.targets if isinstance(x, cst.Name) and x not in renamed}
    bound |= {x.name.value for x in (*syntax.of(cst.Param), *syntax.scopes)}
    known = ({*dir(builtins)} - _OUTSIDE | {*keyword.kwlist}) - bound
    for name in _NAME.findall(_STRING.sub("", source_of(value))):
        full, root = resolved(names, name), name.split(".")[0]
        library = full in _MACHINE or (
            full.split(".")[0] in _LIBRARIES and not _READS.search(full) and root not in bound
        )
        if root not in known and not (root in names and library):
            return True
    return False


def constant_changed(module: cst.Module, value: cst.Name, edit: KeywordEdit) -> cst.Module | None:
    """Change `WORKERS = 0`, or the argument if the constant serves something else as well.

    None where anything but one line with a literal may give the name a value.
    """
    if _all_names(module):
        return None
    names = Names(module)
    bound = names.bindings(value)
    node = getattr(bound[0], "node", None) if len(bound) == 1 else None
    target = names.parents.get(node) if isinstance(node, cst.Name) else None
    assign = names.parents.get(target) if isinstance(target, cst.AssignTarget) else None
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    literal = isinstance(assign.value, (cst.Integer, cst.Name, cst.Float))
    scope = bound[0].scope
    if not literal or is_computed(module, assign.value):
        return None
    if isinstance(scope, (ClassScope, ComprehensionScope)):
        return None
    new = cst.parse_expression(edit.value)
    if assign.value.deep_equals(new):
        return module
    reads = [reference.node for reference in bound[0].references]
    shared = isinstance(scope, GlobalScope) and not _is_started(edit.file, edit.command)
    if shared or any(read is not value for read in reads):
        return replaced(module, value, new)
    return replaced(module, assign, assign.with_changes(value=new))


def _all_names(module: cst.Module) -> bool:
    """Return True if a file of settings may overrule every name, or something read them all."""
    for call in collect(module).of(cst.Call):
        if last_name(call.func) in _ALL_NAMES and not (
            last_name(call.func) == "vars" and call.args
        ):
            return True
    return False


def _is_started(file: str, command: Sequence[str]) -> bool:
    """Return True if a file is the program's script: no other module imports its constants."""
    path = Path(file)
    for word in command:
        # `python -m package.train`
        written = word if word.endswith(".py") else f"{word.replace('.', '/')}.py"
        parts = tuple(x for x in PurePath(written).parts if x != "..")
        if parts and path.parts[-len(parts) :] == parts:
            return True
    return False
