"""What all edits look up in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

Ranges = Mapping[cst.CSTNode, CodeRange]


_Node = TypeVar("_Node", bound=cst.CSTNode)
WHOLE = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)  # bind tighter than any operator
_ASSIGNING = (cst.AssignTarget, cst.AnnAssign, cst.For, cst.AugAssign, cst.NamedExpr)


class Syntax(cst.CSTVisitor):
    """The nodes of a tree by kind, in the order of the source."""

    def __init__(self) -> None:
        self._nodes: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Keep the node."""
        self._nodes.append(node)
        return True

    def of(self, kind: type[_Node]) -> list[_Node]:
        """Return all nodes of a kind."""
        return [node for node in self._nodes if isinstance(node, kind)]

    @property
    def scopes(self) -> list[cst.FunctionDef | cst.ClassDef]:
        """Return functions and classes."""
        return [x for x in self._nodes if isinstance(x, (cst.FunctionDef, cst.ClassDef))]

    @property
    def blocks(self) -> list[cst.Module | cst.IndentedBlock]:
        """Return the blocks of statements, the module's own first."""
        return [x for x in self._nodes if isinstance(x, (cst.Module, cst.IndentedBlock))]

    @property
    def imports(self) -> list[cst.Import | cst.ImportFrom]:
        """Return the import statements."""
        return [x for x in self._nodes if isinstance(x, (cst.Import, cst.ImportFrom))]

    @property
    def targets(self) -> list[cst.BaseExpression]:
        """Return all that is assigned to, tuples taken apart."""
        waiting: list[cst.BaseExpression] = []
        for node in self._nodes:
            if isinstance(node, _ASSIGNING):
                waiting.append(node.target)
            elif isinstance(node, cst.AsName):
                waiting.append(node.name)
        targets = []
        while waiting:
            target = waiting.pop(0)
            if isinstance(target, (cst.Tuple, cst.List)):
                waiting[:0] = [element.value for element in target.elements]
            else:
                targets.append(target)
        return targets


def collect(node: cst.CSTNode) -> Syntax:
    """Collect the nodes of a tree."""
    syntax = Syntax()
    node.visit(syntax)
    return syntax


def parsed(source: str | bytes) -> tuple[cst.Module, Ranges]:
    """Return a module and where its nodes stand; raise cst.ParserSyntaxError."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    return wrapper.module, wrapper.resolve(PositionProvider)


def source_of(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module([]).code_for_node(node).strip()


def calls_of(node: cst.CSTNode, *names: str) -> list[cst.Call]:
    """Return the calls below a node of functions or methods with one of these names."""
    return [call for call in collect(node).of(cst.Call) if last_name(call.func) in names]


def last_name(node: cst.BaseExpression) -> str:
    """Return "step" of `self.optimizer.step`; empty for what has no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def covers(ranges: Ranges, node: cst.CSTNode, line: int) -> bool:
    """Return True if a node stands on this line (1-based)."""
    return ranges[node].start.line <= line <= ranges[node].end.line


def imports(body: Sequence[cst.CSTNode], name: str) -> bool:
    """Return True if `import name` stands among these lines, under its own name."""
    for line in body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            for alias in part.names if isinstance(part, cst.Import) else ():
                # `import torch.nn` binds torch as well.
                root = alias.evaluated_name.split(".")[0]
                if root == name and alias.asname is None:
                    return True
    return False


def imported(module: cst.Module) -> dict[str, str]:
    """Return all names that imports bind, wherever they stand, and what they stand for.

    {"cudnn": "torch.backends.cudnn"}; what a package imports of itself begins with a dot.
    """
    names = {}
    for node in collect(module).imports:
        owner = ""
        if isinstance(node, cst.ImportFrom):
            owner = "." * len(node.relative) + (source_of(node.module) if node.module else "") + "."
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            name = alias.evaluated_name
            if alias.evaluated_alias:
                names[alias.evaluated_alias] = owner + name
            else:
                root = name.split(".")[0]
                names[root] = owner + root
    return names


def resolved(names: Mapping[str, str], code: str) -> str:
    """Return "torch.backends.cudnn.benchmark" of `cudnn.benchmark`, by the imported names."""
    root, dot, rest = code.strip().partition(".")
    return names.get(root, root) + dot + rest


def same_statement(line: cst.CSTNode, added: cst.CSTNode) -> bool:
    """Return True if a line is this statement already, whatever its comments and layout."""
    return type(line) is type(added) and _parsed(line) == _parsed(added)


def _parsed(statement: cst.CSTNode) -> str:
    return ast.dump(ast.parse(source_of(statement)))


def innermost(nodes: Iterable[_Node], ranges: Ranges, line: int) -> _Node | None:
    """Return the node that covers a line and begins last; None if none does."""
    covering = [node for node in nodes if covers(ranges, node, line)]
    return max(covering, key=lambda node: ranges[node].start.line, default=None)


def only_call(calls: Iterable[cst.Call], ranges: Ranges, line: int) -> cst.Call | None:
    """Return the one call that begins on a line, or else covers it; None if it is not sure."""
    on_line = [call for call in calls if covers(ranges, call, line)]
    chosen = [call for call in on_line if ranges[call].start.line == line] or on_line
    return chosen[0] if len(chosen) == 1 else None


def call_at(module: cst.Module, ranges: Ranges, line: int, name: str) -> cst.Call | None:
    """Return the one call of an expression (`model`, `self.net`) on a line; None if not sure."""
    calls = [x for x in collect(module).of(cst.Call) if source_of(x.func) == name]
    return only_call(calls, ranges, line)


def argument_number(call: cst.Call, name: str, position: int | None = None) -> int | None:
    """Return the index of an argument, given by its keyword or by its position behind no star."""
    for number, argument in enumerate(call.args):
        if argument.keyword is not None:
            if argument.keyword.value == name:
                return number
        elif number == position and not any(x.star for x in call.args[: number + 1]):
            return number
    return None


def with_argument(call: cst.Call, number: int, value: cst.BaseExpression) -> cst.Call:
    """Return a call with another value of one argument."""
    argument = call.args[number].with_changes(value=value)
    return call.with_changes(args=[*call.args[:number], argument, *call.args[number + 1 :]])


def replaced(module: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module | None:
    """Return the module with one node replaced."""
    changed = module.deep_replace(old, new)
    return changed if isinstance(changed, cst.Module) else None
