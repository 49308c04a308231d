"""What a name of the program stands for: an argument parser's result, by LibCST's scopes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, Scope, ScopeProvider
from libcst.metadata.scope_provider import BaseAssignment

from torchdoctor.edits.syntax import collect, last_name

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
        """All that give a name, where it is read, its value; [] where that is not known."""
        scope = self.scopes.get(name)
        return [] if scope is None else list(scope[name.value])

    def is_parsed(self, value: cst.BaseExpression, seen: frozenset[int] = frozenset()) -> bool:
        """Whether a value is for certain what `parser.parse_args()` returned."""
        if id(value) in seen:
            return False
        seen |= {id(value)}
        if isinstance(value, cst.Call):
            return _parses(value, "parse_args") or self._returns_parsed(value.func, seen)
        if not isinstance(value, cst.Name):
            return False
        bound = [x for x in self.bindings(value) if not self._is_none(x)]
        return bool(bound) and all(self._binds_parsed(x, seen) for x in bound)

    def _is_none(self, binding: BaseAssignment) -> bool:
        """`args = None`, which has no option to read."""
        assigned = self._assigned(getattr(binding, "node", None))
        return isinstance(assigned, cst.Name) and assigned.value == "None"

    def _assigned(self, node: cst.CSTNode | None) -> cst.BaseExpression | None:
        """The value that a plain assignment gives this name."""
        target = self.parents.get(node) if isinstance(node, cst.Name) else None
        statement = self.parents.get(target) if isinstance(target, cst.AssignTarget) else target
        plain = isinstance(statement, cst.Assign) or (
            isinstance(statement, cst.AnnAssign) and statement.target is node
        )
        return statement.value if plain else None  # type: ignore[union-attr]

    def _binds_parsed(self, binding: BaseAssignment, seen: frozenset[int]) -> bool:
        node = getattr(binding, "node", None)
        if isinstance(node, cst.Param):
            return self._given_parsed(node, seen)
        assigned = self._assigned(node)
        if assigned is not None:
            return self.is_parsed(assigned, seen)
        # `args, rest = parser.parse_known_args()`
        element = self.parents.get(node) if isinstance(node, cst.Name) else None
        several = self.parents.get(element) if isinstance(element, cst.Element) else None
        if not isinstance(several, cst.Tuple) or several.elements[0] is not element:
            return False
        statement = self.parents.get(self.parents[several])
        called = statement.value if isinstance(statement, cst.Assign) else None
        return isinstance(called, cst.Call) and _parses(called, "parse_known_args")

    def _returns_parsed(self, called: cst.BaseExpression, seen: frozenset[int]) -> bool:
        """Whether all that a function of the module returns is what a parser returned."""
        bound = self.bindings(called) if isinstance(called, cst.Name) else []
        function = getattr(bound[0], "node", None) if len(bound) == 1 else None
        if not isinstance(function, cst.FunctionDef) or function.decorators:
            return False
        returned = [x.value for x in collect(function).returns if x.value is not None]
        return bool(returned) and all(self.is_parsed(x, seen) for x in returned)

    def _given_parsed(self, parameter: cst.Param, seen: frozenset[int]) -> bool:
        """Whether each use of a parameter's function is a call that gives it what was parsed."""
        function = self.parents.get(self.parents[parameter])
        if not isinstance(function, cst.FunctionDef) or parameter.default is not None:
            return False
        plain = [*function.params.posonly_params, *function.params.params]
        scope = self.scopes.get(function)
        bound = list(scope[function.name.value]) if scope is not None else []
        if parameter not in plain or len(bound) != 1 or getattr(bound[0], "node", None) != function:
            return False
        calls = [self.parents.get(one.node) for one in bound[0].references]
        number, found = plain.index(parameter), 0
        for reference, call in zip(bound[0].references, calls, strict=True):
            if not isinstance(call, cst.Call) or call.func is not reference.node:
                return False
            given = _argument(call, number, parameter.name.value)
            if given is None or not self.is_parsed(given, seen):
                return False
            found += 1
        return found > 0


def _argument(call: cst.Call, number: int, name: str) -> cst.BaseExpression | None:
    if any(one.star for one in call.args):
        return None
    for at, one in enumerate(call.args):
        if (one.keyword is None and at == number) or (one.keyword and one.keyword.value == name):
            return one.value
    return None


def _parses(call: cst.Call, method: str) -> bool:
    """`parser.parse_args()`: a namespace that is given overrules the defaults."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != method:
        return False
    words = [x for x in call.args if x.keyword is None or x.keyword.value == "args"]
    return words == list(call.args) and len(words) <= 1 and not any(x.star for x in words)


def set_elsewhere(module: cst.Module, name: str) -> bool:
    """Whether something besides its `add_argument` may set the option `name` of a namespace."""
    seen = collect(module)
    for target in seen.targets:
        owner = target.value if isinstance(target, cst.Attribute) else None
        if owner is not None and last_name(target) == name and not _is_self(owner):
            return True
    for call in seen.calls:
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
    """`vars(args).update(...)`, `args.__dict__[name] = ...`, also under a name of their own."""
    seen = collect(module)

    def is_dictionary(node: cst.BaseExpression, known: set[str]) -> bool:
        code = module.code_for_node(node).strip()
        return code in known or _DICTIONARY.fullmatch(code) is not None

    known: set[str] = set()
    for assign in seen.assigns:
        if is_dictionary(assign.value, known):
            known |= {module.code_for_node(x.target).strip() for x in assign.targets}
    methods = [call.func for call in seen.calls if isinstance(call.func, cst.Attribute)]
    owners = [x.value for x in methods if x.attr.value in _UPDATES]
    owners += [x.value for x in seen.targets if isinstance(x, cst.Subscript)]
    owners += [x.target for x in seen.augmented]
    return any(is_dictionary(one, known) for one in owners)
