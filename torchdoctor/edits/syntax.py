"""What all edits look up in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import libcst as cst
from libcst.metadata import CodeRange

Ranges = Mapping[cst.CSTNode, CodeRange]


class _Collect(cst.CSTVisitor):
    """Calls, functions, blocks and compound statements of a tree, in the order of the source."""

    def __init__(self) -> None:
        self.calls: list[cst.Call] = []
        self.functions: list[cst.FunctionDef] = []
        self.scopes: list[cst.FunctionDef | cst.ClassDef] = []
        self.blocks: list[cst.Module | cst.IndentedBlock] = []
        self.withs: list[cst.With] = []
        self.targets: list[cst.BaseExpression] = []  # of assignments, tuples taken apart
        self.loops: list[cst.For] = []
        self.comprehensions: list[cst.CompFor] = []
        self.lists: list[cst.List] = []
        self.imports: list[cst.Import | cst.ImportFrom] = []
        self.assigns: list[cst.Assign] = []
        self.parameters: list[cst.Param] = []
        self.expressions: list[cst.BaseExpression] = []  # that are statements
        self.returns: list[cst.Return] = []
        self.augmented: list[cst.AugAssign] = []

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        self.calls.append(node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        self.functions.append(node)
        self.scopes.append(node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        self.scopes.append(node)

    def visit_Module(self, node: cst.Module) -> None:  # noqa: N802
        self.blocks.append(node)

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:  # noqa: N802
        self.blocks.append(node)

    def visit_Import(self, node: cst.Import) -> None:  # noqa: N802
        self.imports.append(node)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
        self.imports.append(node)

    def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        self.assigns.append(node)

    def visit_Param(self, node: cst.Param) -> None:  # noqa: N802
        self.parameters.append(node)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        self._target(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
        self._target(node.target)

    def visit_CompFor(self, node: cst.CompFor) -> None:  # noqa: N802
        self.comprehensions.append(node)

    def visit_List(self, node: cst.List) -> None:  # noqa: N802
        self.lists.append(node)

    def visit_For(self, node: cst.For) -> None:  # noqa: N802
        self.loops.append(node)
        self._target(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:  # noqa: N802
        self._target(node.name)

    def visit_Expr(self, node: cst.Expr) -> None:  # noqa: N802
        self.expressions.append(node.value)

    def visit_Return(self, node: cst.Return) -> None:  # noqa: N802
        self.returns.append(node)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
        self.augmented.append(node)
        self._target(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:  # noqa: N802
        self._target(node.target)

    def _target(self, node: cst.BaseExpression) -> None:
        if isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value)
        else:
            self.targets.append(node)

    def visit_With(self, node: cst.With) -> None:  # noqa: N802
        self.withs.append(node)


def collect(node: cst.CSTNode) -> _Collect:
    """All that edits look for below a node."""
    found = _Collect()
    node.visit(found)
    return found


def last_name(node: cst.BaseExpression) -> str:
    """ "step" of `self.optimizer.step`; empty for what has no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def covers(ranges: Ranges, node: cst.CSTNode, line: int) -> bool:
    """Whether a node stands on this line (1-based)."""
    return ranges[node].start.line <= line <= ranges[node].end.line


def imports(body: Sequence[cst.CSTNode], name: str) -> bool:
    """Whether `import name` stands among these lines, under its own name."""
    for line in body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            for alias in part.names if isinstance(part, cst.Import) else ():
                # `import torch.nn` binds torch as well.
                root = alias.evaluated_name.split(".")[0]
                if root == name and alias.asname is None:
                    return True
    return False


def imported(module: cst.Module) -> dict[str, str]:
    """All names that imports bind, wherever they stand, and what they stand for.

    {"cudnn": "torch.backends.cudnn"}; what a package imports of itself begins with a dot.
    """
    found = {}
    for node in collect(module).imports:
        owner = ""
        if isinstance(node, cst.ImportFrom):
            owner = "." * len(node.relative) + (_code(node.module) if node.module else "") + "."
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            name = alias.evaluated_name
            if alias.evaluated_alias:
                found[alias.evaluated_alias] = owner + name
            else:
                root = name.split(".")[0]
                found[root] = owner + root
    return found


def resolved(names: Mapping[str, str], code: str) -> str:
    """ "torch.backends.cudnn.benchmark" of `cudnn.benchmark`, by the names that are `imported`."""
    root, dot, rest = code.strip().partition(".")
    return names.get(root, root) + dot + rest


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def same_statement(line: cst.CSTNode, added: cst.CSTNode) -> bool:
    """Whether a line is this statement already, whatever its comments and layout."""
    return type(line) is type(added) and _parsed(line) == _parsed(added)


def _parsed(statement: cst.CSTNode) -> str:
    return ast.dump(ast.parse(cst.Module([]).code_for_node(statement)))


def call_at(module: cst.Module, ranges: Ranges, line: int, name: str) -> cst.Call | None:
    """The one call of an expression (`model`, `self.net`) on a line; None where it is not sure."""
    calls = [x for x in collect(module).calls if module.code_for_node(x.func).strip() == name]
    on_line = [call for call in calls if covers(ranges, call, line)]
    starting = [call for call in on_line if ranges[call].start.line == line]
    chosen = starting or on_line
    return chosen[0] if len(chosen) == 1 else None


def replaced(module: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module | None:
    """The module with one node replaced."""
    changed = module.deep_replace(old, new)
    return changed if isinstance(changed, cst.Module) else None
