"""A program's syntax tree: what all edits look up in it, and how they change its text."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    CodePosition,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    Scope,
    ScopeProvider,
)

from torchdoctor.schema.record_files import parsed_toml

NAMES = parsed_toml(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
_Node = TypeVar("_Node", bound=cst.CSTNode)
Block = cst.Module | cst.IndentedBlock
WHOLE = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)  # bind tighter than any operator
LED = (cst.SimpleStatementLine, cst.BaseCompoundStatement)  # may have comments above them
_ASSIGNING = (cst.AssignTarget, cst.AnnAssign, cst.For, cst.AugAssign, cst.NamedExpr)


class Syntax(cst.CSTVisitor):
    """The nodes of a tree by kind, in the order of the source."""

    def __init__(self, tree: cst.CSTNode) -> None:
        self._nodes: list[cst.CSTNode] = []
        tree.visit(self)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Keep the node."""
        self._nodes.append(node)
        return True

    def of(self, kind: type[_Node]) -> list[_Node]:
        """Return all nodes of a kind."""
        return [node for node in self._nodes if isinstance(node, kind)]

    def calls(self, *names: str) -> list[cst.Call]:
        """Return the calls of functions or methods with one of these names; without names all."""
        return [call for call in self.of(cst.Call) if not names or last_name(call.func) in names]

    def calls_by(self, expression: str) -> list[cst.Call]:
        """Return the calls of an expression: `model`, `self.net`."""
        return [call for call in self.of(cst.Call) if source_of(call.func) == expression]

    @cached_property
    def scopes(self) -> list[cst.FunctionDef | cst.ClassDef]:
        """Return functions and classes."""
        return [node for node in self._nodes if isinstance(node, (cst.FunctionDef, cst.ClassDef))]

    @cached_property
    def blocks(self) -> list[Block]:
        """Return the blocks of statements, the outer before the inner."""
        return [node for node in self._nodes if isinstance(node, (cst.Module, cst.IndentedBlock))]

    @cached_property
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

    @cached_property
    def imported(self) -> dict[str, str]:
        """Return all names that imports bind, and what they stand for.

        {"cudnn": "torch.backends.cudnn"}; what a package imports of itself begins with a dot.
        """
        names = {}
        for node in self._nodes:
            if not isinstance(node, (cst.Import, cst.ImportFrom)):
                continue
            owner = ""
            if isinstance(node, cst.ImportFrom):
                module = source_of(node.module) if node.module else ""
                owner = "." * len(node.relative) + module + "."
            for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
                name = alias.evaluated_name if alias.asname else alias.evaluated_name.split(".")[0]
                names[alias.evaluated_alias or name] = owner + name
        return names

    def full_name(self, node: cst.CSTNode | str) -> str:
        """Return "torch.backends.cudnn.benchmark" of `cudnn.benchmark`, by the imported names."""
        code = node if isinstance(node, str) else source_of(node)
        root, dot, rest = code.partition(".")
        return self.imported.get(root, root) + dot + rest


class Program(Syntax):
    """One module: its nodes, where they stand, and its text with changes."""

    def __init__(self, source: str | bytes) -> None:
        """Parse a source; raise cst.ParserSyntaxError."""
        self._wrapper = MetadataWrapper(cst.parse_module(source))
        self.module = self._wrapper.module
        self.ranges = self._wrapper.resolve(PositionProvider)
        self.code = self.module.code
        self._line_starts = [0]
        for line in self.code.split("\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        super().__init__(self.module)

    @cached_property
    def names(self) -> Mapping[cst.CSTNode, Scope | None]:
        """Return the scope of each node."""
        return self._wrapper.resolve(ScopeProvider)

    @cached_property
    def parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        """Return the parent of each node."""
        return self._wrapper.resolve(ParentNodeProvider)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line (1-based) on which a node begins."""
        return self.ranges[node].start.line

    def covers(self, node: cst.CSTNode, line: int) -> bool:
        """Return True if a node stands on this line (1-based)."""
        return self.line(node) <= line <= self.ranges[node].end.line

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node stands in, from its parent up to the module."""
        while (above := self.parents.get(node)) is not None:
            yield above
            node = above

    def innermost(self, nodes: Iterable[_Node], line: int) -> _Node | None:
        """Return the node that covers a line and begins last; None if none does."""
        covering = [node for node in nodes if self.covers(node, line)]
        return max(covering, key=self.line, default=None)

    def statement_at(self, line: int) -> tuple[Block, int] | None:
        """Return the plain statement on a line: its block, and its number there."""
        for block in self.blocks:
            for number, statement in enumerate(block.body):
                if isinstance(statement, cst.SimpleStatementLine) and self.covers(statement, line):
                    return block, number
        return None

    def only_call(self, calls: Iterable[cst.Call], line: int) -> cst.Call | None:
        """Return the one call that begins on a line, or else covers it; None if it is not sure."""
        on_line = [call for call in calls if self.covers(call, line)]
        chosen = [call for call in on_line if self.line(call) == line] or on_line
        return chosen[0] if len(chosen) == 1 else None

    def imports(self, name: str) -> bool:
        """Return True if `import name` stands at the module's top level, under its own name."""
        return imports(self.module.body, name)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return where a node begins and ends in the code."""
        return self._offset(self.ranges[node].start), self._offset(self.ranges[node].end)

    def _offset(self, position: CodePosition) -> int:
        return self._line_starts[position.line - 1] + position.column

    def span_with_brackets(self, node: cst.BaseExpression) -> tuple[int, int]:
        """Return where an expression begins and ends, with the brackets around it."""
        start, end = self.span(node)
        for _ in node.lpar:
            start = self.code.rfind("(", 0, start)
            end = self.code.find(")", end) + 1
        return start, end

    def place_of(self, statement: cst.CSTNode) -> tuple[Block, int]:
        """Return the block that a statement stands in, and its number there."""
        block = self.parents[statement]
        if not isinstance(block, (cst.Module, cst.IndentedBlock)):
            raise LookupError("the statement stands on the line of another one")
        return block, next(n for n, line in enumerate(block.body) if line is statement)


def source_of(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module([]).code_for_node(node).strip()


def last_name(node: cst.BaseExpression) -> str:
    """Return "step" of `self.optimizer.step`; empty for what has no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def called(statement: cst.CSTNode) -> cst.Call | None:
    """Return the call of a line that is nothing but a call; None for any other statement."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    value = statement.body[0].value if isinstance(statement.body[0], cst.Expr) else None
    return value if isinstance(value, cst.Call) else None


def imports(body: Sequence[cst.CSTNode], name: str) -> bool:
    """Return True if `import name` stands among these lines, under its own name."""
    return any(
        # `import torch.nn` binds torch as well.
        alias.asname is None and alias.evaluated_name.split(".")[0] == name
        for line in body
        for part in (line.body if isinstance(line, cst.SimpleStatementLine) else ())
        for alias in (part.names if isinstance(part, cst.Import) else ())
    )


def same_statement(line: cst.CSTNode, added: cst.CSTNode) -> bool:
    """Return True if a line is this statement already, whatever its comments and layout."""
    return type(line) is type(added) and _parsed(line) == _parsed(added)


def _parsed(statement: cst.CSTNode) -> str:
    return ast.dump(ast.parse(source_of(statement)))


def argument_number(call: cst.Call, name: str, position: int | None = None) -> int | None:
    """Return the index of an argument, given by its keyword or by its position behind no star."""
    for number, argument in enumerate(call.args):
        if argument.keyword is not None:
            if argument.keyword.value == name:
                return number
        elif number == position and not any(arg.star for arg in call.args[: number + 1]):
            return number
    return None


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.BaseExpression | None:
    """Return the value of an argument; None where it is not given."""
    number = argument_number(call, name, position)
    return None if number is None else call.args[number].value
