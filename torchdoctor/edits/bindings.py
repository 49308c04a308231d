"""Which names are bound at a place of a program, where a statement is to be inserted.

A name is bound there if its own scope binds it above, on the way to the place; or an enclosing
function or the module does. What another function binds does not count. A name that the file does
not bind at all may come from `import *`, and the line that was seen to run has it: it counts.
"""

import builtins
from collections.abc import Iterator

import libcst as cst

from torchdoctor.edits.syntax import Block, Program, Syntax, source_of

Scope = cst.Module | cst.FunctionDef | cst.Lambda | cst.ClassDef
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


class Bindings:
    """The bindings of each scope of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[Scope, dict[str, list[cst.CSTNode]]] = {}

    def bound(self, name: str, block: Block, number: int) -> bool:
        """Return True if a name (`model`, `self.net`) has a value before a statement of a block."""
        root = name.split(".", 1)[0]
        scopes = self._scopes_around(block)
        owner = next((scope for scope in scopes if root in self.of(scope)), None)
        if owner is None:
            return hasattr(builtins, root) or not self._bound_anywhere(root)
        wanted = [root]
        if name in self.of(scopes[0]):
            wanted.append(name)  # `self.model = build()` in this function
        return all(self._one_is_above(wanted_name, scopes, block, number) for wanted_name in wanted)

    def _one_is_above(self, name: str, scopes: list[Scope], block: Block, number: int) -> bool:
        owner = next(scope for scope in scopes if name in self.of(scope))
        if owner is not scopes[0]:
            return True  # another function, or the module, has run up to the call of this one
        return any(self.precedes(node, block, number) for node in self.of(owner)[name])

    def is_local(self, name: str, block: Block) -> bool:
        """Return True if an assignment to a name here is one to what has that name so far."""
        scope = self._scopes_around(block)[0]
        if isinstance(scope, cst.Module) or name in self.of(scope):
            return True
        return name in _declared(scope)

    def last_in(self, name: str, block: Block, before: int) -> int | None:
        """Return the number of the block's last statement, up to `before`, that binds a name."""
        nodes = self.of(self._scopes_around(block)[0]).get(name, [])
        numbers = [self._places(node).get(block, before) for node in nodes]
        return max((number for number in numbers if number < before), default=None)

    def of(self, scope: Scope) -> dict[str, list[cst.CSTNode]]:
        """Return the nodes that bind each name in a scope, without the scopes within it."""
        if scope not in self._known:
            by_name: dict[str, list[cst.CSTNode]] = {}
            for name, node in _binding(scope):
                by_name.setdefault(name, []).append(node)
            if isinstance(scope, cst.Module):
                for function in self._program.of(cst.FunctionDef):
                    shared = _declared(function)
                    for name, node in _binding(function, with_declared=True):
                        if name in shared:
                            by_name.setdefault(name, []).append(node)
            self._known[scope] = by_name
        return self._known[scope]

    def precedes(self, node: cst.CSTNode, block: Block, number: int) -> bool:
        """Return True if a node of the same scope has run before a statement of a block."""
        of_node = self._places(node)
        for common, at in {block: number, **self._places(block)}.items():
            position = of_node.get(common)
            if position is None:
                if isinstance(self._program.parents.get(common), cst.FunctionDef):
                    return True  # a parameter: nothing else of the scope is outside of its body
                continue
            if position != at or common is block:
                return position < at
            return self._runs_first(node, block, common.body[at])
        return False

    def _runs_first(self, node: cst.CSTNode, block: Block, statement: cst.CSTNode) -> bool:
        """Return True if of one compound statement the part with a node runs before a block."""
        if node is statement:
            return True  # `for model in models:`
        of_node = self._part(node, statement)
        of_block = self._part(block, statement)
        if not any(isinstance(node, cst.IndentedBlock) for node in of_node):
            return True  # in its head: `with made() as model:`
        first = getattr(statement, "body", None)
        later = any(isinstance(node, (cst.Else, cst.Finally)) for node in of_block[-1:])
        return later and not isinstance(statement, cst.If) and of_node[-1] is first

    def _part(self, node: cst.CSTNode, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """Return a node and what is around it, up to a part of the statement."""
        part = [node]
        while (above := self._program.parents[part[-1]]) is not statement:
            part.append(above)
        return part

    def _places(self, node: cst.CSTNode) -> dict[Block, int]:
        """Return the blocks around a node, from the innermost, with its number in each."""
        places: dict[Block, int] = {}
        while (above := self._program.parents.get(node)) is not None:
            if isinstance(above, (cst.Module, cst.IndentedBlock)):
                places[above] = next(
                    n for n, statement in enumerate(above.body) if statement is node
                )
            node = above
        return places

    def _scopes_around(self, block: Block) -> list[Scope]:
        """Return the innermost scope around a block, then those whose names it sees."""
        scopes: list[Scope] = []
        node: cst.CSTNode | None = block
        while node is not None:
            # A class's names are seen in its body alone.
            if isinstance(node, (cst.FunctionDef, cst.Module)) or (
                isinstance(node, cst.ClassDef) and not scopes
            ):
                scopes.append(node)
            node = self._program.parents.get(node)
        return scopes

    def _bound_anywhere(self, name: str) -> bool:
        scopes: list[Scope] = [self._program.module, *self._program.scopes]
        if any(name in self.of(scope) for scope in scopes):
            return True
        # `model: Net`, or the name of a comprehension's own
        targets = [*self._program.targets, *(node.target for node in self._program.of(cst.CompFor))]
        return any(name in _targets(target) for target in targets)


def _declared(scope: Scope) -> set[str]:
    """Return the names that a function declares as global or nonlocal."""
    return {node.name.value for node in _inside(scope) if isinstance(node, cst.NameItem)}


def _inside(scope: Scope) -> Iterator[cst.CSTNode]:
    """Yield the nodes of a scope, scopes within it without their bodies."""
    waiting = list(scope.children)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES + _COMPREHENSIONS):
            waiting += node.children


def _binding(scope: Scope, with_declared: bool = False) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield each name (also `self.model`) that a scope binds, and the node that does."""
    declared = set() if with_declared else _declared(scope)
    for node in _inside(scope):
        for name in _names(node):
            if name not in declared:
                yield name, node


def _names(node: cst.CSTNode) -> list[str]:
    """Return the names that this node itself binds."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return [node.name.value]
    if isinstance(node, cst.Param):
        return [node.name.value]
    if isinstance(node, (cst.Import, cst.ImportFrom)):
        return list(Syntax(node).imported)
    if isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.For, cst.NamedExpr)):
        if isinstance(node, cst.AnnAssign) and node.value is None:
            return []
        return _targets(node.target)
    if isinstance(node, cst.AsName):
        return _targets(node.name)
    if isinstance(node, cst.MatchAs) and node.name is not None:
        return [node.name.value]
    return []


def _targets(target: cst.BaseExpression) -> list[str]:
    """Return `x`, `y` of `x, (y, *z)` and attributes as they are written."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in _targets(element.value)]
    if isinstance(target, (cst.Name, cst.Attribute)):
        return [source_of(target)]
    return []


def names_read(statement: cst.CSTNode) -> list[str]:
    """Return what a statement reads: `model` and `torch` of `model = torch.compile(model)`."""
    syntax = Syntax(statement)
    no_reads: set[cst.CSTNode] = {attribute.attr for attribute in syntax.of(cst.Attribute)}
    no_reads |= {
        argument.keyword for argument in syntax.of(cst.Arg) if argument.keyword is not None
    }
    bound = {source_of(loop.target) for loop in syntax.of(cst.For)}
    names = [
        name.value
        for name in syntax.of(cst.Name)
        if name not in no_reads and name.value not in bound
    ]
    return list(dict.fromkeys(names))


def names_set(statement: cst.CSTNode) -> list[str]:
    """Return the names that a statement assigns: `model` of `model = torch.compile(model)`."""
    targets = [node.target for node in Syntax(statement).of(cst.AssignTarget)]
    return [name for target in targets for name in _targets(target) if name.isidentifier()]
