"""Where a program makes the model that it calls, and what decides which model that is."""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchdoctor.edits.unused_results import FUNCTIONS, SCOPES, nodes_of_scope

# What prepares a model and may as well be done once.
_PREPARING = (
    "eval",
    "to",
    "cpu",
    "cuda",
    "half",
    "float",
    "bfloat16",
    "double",
    "load_state_dict",
    "requires_grad_",
    "compile",
    "fuse",
    "share_memory",
)
_CHANGING = ("load_state_dict", "train", "apply", "requires_grad_")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SUSPENDS = (ast.Await, ast.Yield, ast.YieldFrom)
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class MadeModel:
    """Statements that make a model: lines `first` to `last` of one block."""

    name: str
    function: str  # that they stand in; empty: in none
    first: int
    last: int
    given: tuple[str, ...]  # names whose values decide which model is made
    in_loop: bool  # of the same function: it goes on while that runs
    maker: str | None  # a function of this file whose call is all that makes it


def made_model(source: str, line: int, name: str) -> MadeModel | None:
    """Return what makes the model that a line calls by this name; None: it is not sure."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    scopes = _scopes_around(tree, line)
    search = _Search(tree, scopes, line, name)
    return search.found() if name.isidentifier() else None


def _scopes_around(tree: ast.Module, line: int) -> list[_Scope]:
    """Return the functions around a line, the innermost first, and the module."""
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    around = [node for node in functions if node.lineno <= line <= (node.end_lineno or 0)]
    return [*sorted(around, key=lambda node: -node.lineno), tree]


def _blocks(node: ast.AST, in_loop: bool = False) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Yield the blocks of one scope, and whether a loop of it is around each."""
    for field in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(node, field, None)
        if not isinstance(block, list) or not block:
            continue
        if isinstance(block[0], ast.stmt):
            yield block, in_loop
        for child in block:
            if not isinstance(child, SCOPES):
                yield from _blocks(child, in_loop or isinstance(child, _LOOPS))


def _names(nodes: Sequence[ast.AST], context: type[ast.expr_context]) -> set[str]:
    every = (part for node in nodes for part in ast.walk(node))
    return {
        part.id for part in every if isinstance(part, ast.Name) and isinstance(part.ctx, context)
    }


def _target(statement: ast.stmt) -> str | None:
    """Return the one name that a statement assigns; None: it does something else."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else None


class _Search:
    """Looks for the statements in the innermost scope around the call."""

    def __init__(self, tree: ast.Module, scopes: list[_Scope], line: int, name: str) -> None:
        self._tree = tree
        self._scope = scopes[0]
        self._enclosing = scopes[1:-1]
        self._line = line
        self._name = name

    def found(self) -> MadeModel | None:
        """Return the statements that make the model, where nothing else makes or changes it."""
        begins = [
            (block, number, in_loop)
            for block, in_loop in _blocks(self._scope)
            for number, statement in enumerate(block)
            if self._begins(statement)
        ]
        if len(begins) != 1:
            return None
        block, number, in_loop = begins[0]
        first, last = self._extent(block, number)
        statements = block[first : last + 1]
        outside = self._outside(statements)
        given = self._given(statements)
        if given is None or any(map(self._changes, outside)):
            return None
        if any(isinstance(part, _SUSPENDS) for node in statements for part in ast.walk(node)):
            return None
        is_module = isinstance(self._scope, ast.Module)
        return MadeModel(
            name=self._name,
            function="" if isinstance(self._scope, ast.Module) else self._scope.name,
            first=statements[0].lineno,
            last=statements[-1].end_lineno or statements[-1].lineno,
            given=given,
            in_loop=in_loop or is_module,
            maker=self._maker(statements),
        )

    def _begins(self, statement: ast.stmt) -> bool:
        """Return whether a statement above the call makes the model of something else."""
        if _target(statement) != self._name or statement.lineno > self._line:
            return False
        made = isinstance(statement, ast.Assign) and self._calls(statement)
        return made and self._name not in _names([statement], ast.Load)

    @staticmethod
    def _calls(statement: ast.stmt) -> bool:
        return any(isinstance(node, ast.Call) for node in ast.walk(statement))

    def _extent(self, block: list[ast.stmt], number: int) -> tuple[int, int]:
        """Return the numbers of the first and the last statement that make the model."""
        last = number
        for later in range(number + 1, len(block)):
            statement = block[later]
            if statement.lineno <= self._line <= (statement.end_lineno or 0):
                break
            if self._prepares(statement):
                last = later
            elif _target(statement) is None or self._name in _names([statement], ast.Load):
                break
        first = number
        while not self._is_whole(block[first : last + 1]) and last > number:
            last -= 1
        while first > 0 and self._is_helper(block[first - 1], block[first : last + 1]):
            first -= 1
        return first, last

    def _prepares(self, statement: ast.stmt) -> bool:
        """Return whether a statement sets up the model: `model.eval()`, `model = compile(model)`.

        A name that a line in between assigns belongs to the model, if nothing else reads it.
        """
        if _target(statement) == self._name:
            return True
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        if not isinstance(method, ast.Attribute) or method.attr not in _PREPARING:
            return False
        return isinstance(method.value, ast.Name) and method.value.id == self._name

    def _is_whole(self, statements: list[ast.stmt]) -> bool:
        """Return whether nothing outside reads what they assign, but for the model."""
        assigned = _names(statements, ast.Store) - {self._name}
        inner = [node for node in ast.walk(self._scope) if isinstance(node, FUNCTIONS)]
        read = _names(self._outside(statements), ast.Load)
        for function in inner:
            if function is not self._scope:
                read |= _names([function], ast.Load) - _bound(function)
        return not assigned & read

    def _is_helper(self, statement: ast.stmt, behind: list[ast.stmt]) -> bool:
        """Return whether a statement assigns what these alone read: `state = torch.load(path)`."""
        name = _target(statement)
        if name is None or not self._calls(statement):
            return False
        return name in _names(behind, ast.Load) and self._is_whole([statement, *behind])

    def _outside(self, statements: list[ast.stmt]) -> list[ast.AST]:
        """Return the smallest nodes of the scope beside these statements."""
        inside = {id(part) for node in statements for part in ast.walk(node)}
        nodes = (node for node in nodes_of_scope(self._scope) if id(node) not in inside)
        return [node for node in nodes if isinstance(node, (ast.Name, ast.Attribute, ast.Call))]

    def _changes(self, node: ast.AST) -> bool:
        """Return whether a node sets the model, or something of it, to something else."""
        if isinstance(node, ast.Name):
            return node.id == self._name and isinstance(node.ctx, ast.Store)
        method = node.func if isinstance(node, ast.Call) else node
        if not isinstance(method, ast.Attribute):
            return False
        root: ast.AST = method
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if not isinstance(root, ast.Name) or root.id != self._name:
            return False
        is_set = isinstance(method.ctx, ast.Store)
        return is_set or (isinstance(node, ast.Call) and method.attr in _CHANGING)

    def _given(self, statements: list[ast.stmt]) -> tuple[str, ...] | None:
        """Return the names whose values the statements depend on; None: it is not sure."""
        read = _names(statements, ast.Load) - _names(statements, ast.Store)
        given = []
        for name in sorted(read):
            if not isinstance(self._scope, ast.Module) and name in _bound(self._scope):
                given.append(name)
            elif any(name in _bound(scope) for scope in self._enclosing):
                return None
            elif not self._is_constant(name):
                if not isinstance(self._scope, ast.Module):
                    return None
                given.append(name)
        return tuple(given)

    def _is_constant(self, name: str) -> bool:
        """Return whether a name of the module has one value, or none here that is assigned."""
        declared = (node for node in ast.walk(self._tree) if isinstance(node, ast.Global))
        if any(name in node.names for node in declared):
            return False
        nodes = list(nodes_of_scope(self._tree))
        stored = [
            node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        stores = [node for node in stored if node.id == name]
        if not stores:
            return name in _bound(self._tree) or hasattr(builtins, name)
        loops = [node for node in nodes if isinstance(node, _LOOPS)]
        return len(stores) == 1 and not any(stores[0] in ast.walk(loop) for loop in loops)

    def _maker(self, statements: list[ast.stmt]) -> str | None:
        """Return the function of this file that makes all that takes time; None: there is none."""
        made = statements[0]
        call = made.value if isinstance(made, ast.Assign) else None
        name = (
            call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        )
        functions = {
            function.name for function in self._tree.body if isinstance(function, ast.FunctionDef)
        }
        plain = [statement for statement in statements[1:] if "load" in ast.dump(statement)]
        return name if name in functions and not plain else None


def _bound(scope: _Scope) -> set[str]:
    """Return the names that a scope binds itself."""
    bound: set[str] = set()
    if not isinstance(scope, ast.Module):
        given = scope.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        bound |= {parameter.arg for parameter in every if parameter is not None}
    for node in nodes_of_scope(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {name.asname or name.name.split(".")[0] for name in node.names}
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            bound.add(node.name)
    return bound
