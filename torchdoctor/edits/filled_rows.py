"""Where the source fills rows of tokens up to one length: followed back from the model's call.

Assignments, loops, comprehensions, functions, data sets and collate functions are followed, in the
call's own file and in the modules beside it. Two places that may be meant are none.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchdoctor.edits.unused_results import FUNCTIONS, SCOPES, nodes_of_scope, parsed_file
from torchdoctor.schema import Binding, FilledRows, FillingWay, Location

_SIZED = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
_VALUED = ("full", "new_full")  # what follows the size is no size
_NOT_WHOLE = ("float", "double", "half", "bfloat", "bool")  # no type of tokens
# What a value only goes through on its way from one of its arguments.
_HANDED_ON = (
    "enumerate",
    "zip",
    "list",
    "tuple",
    "iter",
    "next",
    "reversed",
    "sorted",
    "tqdm",
    "chain",
    "DataLoader",
    "TensorDataset",
    "Subset",
    "ConcatDataset",
    "random_split",
    "prepare",
    "cat",
    "stack",
    "tensor",
    "as_tensor",
    "asarray",
    "array",
    "from_numpy",
    "LongTensor",
)
_LENGTHS = ("len", "size", "numel")
_SAMPLES = ("__getitem__", "__getitems__", "__iter__", "__call__")
_COLLATING = ("collate_fn", "data_collator")  # keywords
_APPLYING = ("map", "with_transform", "set_transform")
_SUMMED = ("append", "extend", "insert")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEEPEST = 8  # assignments and calls that are followed


def filled_rows(call: Binding, lengths: Iterable[int] = ()) -> FilledRows | None:
    """Return the place that fills what a model's call is given; None: none, or more than one.

    `lengths`: those that rows were seen to have, where they are known.
    """
    module = _Module.read(call.location.file)
    if module is None:
        return None
    line = call.location.line
    calls = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and ast.unparse(node.func) == call.name
    ]
    if len(calls) != 1:
        return None
    given = [*calls[0].args, *(keyword.value for keyword in calls[0].keywords)]
    for argument in given:
        walk = _Walk(frozenset(lengths))
        walk.follow(module, argument)
        if walk.found:
            return walk.only()
    return None


class _Module:
    """A file as it was parsed, with the way up from each node."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.tree = tree
        nodes = list(ast.walk(tree))
        self.parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    @classmethod
    def read(cls, file: str) -> "_Module | None":
        tree = parsed_file(file)
        return None if tree is None else cls(file, tree)

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, the innermost first."""
        while (above := self.parents.get(node)) is not None:
            yield above
            node = above

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function, class or module that a node stands in."""
        return next((outer for outer in self.up(node) if isinstance(outer, SCOPES)), self.tree)

    def is_repeated(self, node: ast.AST, depth: int = 0) -> bool:
        """Return True for what may be computed for each batch: in a loop, or called from one.

        A function whose calls are not seen here may be called for each batch.
        """
        inner = node
        for outer in self.up(node):
            if isinstance(outer, _LOOPS) and inner is not getattr(outer, "iter", None):
                return True
            if isinstance(outer, FUNCTIONS):
                return self._is_called_often(outer, depth)
            if isinstance(outer, ast.Lambda):
                return True
            inner = outer
        return False

    def _is_called_often(self, function: ast.AST, depth: int) -> bool:
        name = getattr(function, "name", "")
        if name == "__init__":
            return False
        calls = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and _name(node.func) == name
        ]
        unclear = not calls or depth > _DEEPEST
        return unclear or any(self.is_repeated(call, depth + 1) for call in calls)

    def defined(self, name: str) -> tuple["_Module", ast.AST] | None:
        """Return the only function or class of a name, here or where it is imported from."""
        nodes = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name
        ]
        if nodes:
            return (self, nodes[0]) if len(nodes) == 1 else None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                original = next(
                    (alias.name for alias in node.names if name in (alias.asname, alias.name)), None
                )
                other = self._beside(node.module) if original else None
                if other is not None and original is not None:
                    return other.defined(original)
        return None

    def _beside(self, module: str) -> "_Module | None":
        """Return a module of the program's own: a file below one of the folders above this one."""
        path = Path(*module.split(".")).with_suffix(".py")
        for folder in list(Path(self.file).parents)[:3]:
            if (folder / path).is_file() and str(folder / path) != self.file:
                return _Module.read(str(folder / path))
        return None


class _Walk:
    """Follows an expression back to what fills it."""

    def __init__(self, lengths: frozenset[int]) -> None:
        self.found: dict[tuple[str, int], FilledRows] = {}
        self._lengths = lengths
        self._visited: set[ast.AST] = set()

    def only(self) -> FilledRows | None:
        """Return the place, if there is one only."""
        return next(iter(self.found.values())) if len(self.found) == 1 else None

    def follow(self, module: _Module, node: ast.expr) -> None:
        """Take in the places that an expression may be filled at."""
        if node in self._visited:
            return
        self._visited.add(node)
        if (way := self._way(module, node)) is not None:
            function = getattr(module.scope(node), "name", None)
            at = Location(file=module.file, line=node.lineno, function=function)
            self.found[at.file, at.line] = FilledRows(location=at, way=way)
            return
        if isinstance(node, ast.Call):
            self._follow_call(module, node)
            return
        for part in _origins(module, node):
            self.follow(module, part)

    def _way(self, module: _Module, node: ast.expr) -> FillingWay | None:
        """Return how an expression fills rows; None: not at all."""
        if isinstance(node, ast.BinOp):
            count = _fill_count(node)
            return "fixed" if count is not None and _is_fixed(module, count) else None
        if not isinstance(node, ast.Call):
            return None
        name = _name(node.func)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        padding = getattr(keywords.get("padding"), "value", None)  # of a constant
        if padding == "max_length":
            return "asked"
        if name == "pad_sequence" or padding is True or padding == "longest":
            return None if module.is_repeated(node) else "whole-set"
        if name == "pad" and len(node.args) > 1:
            return "fixed" if _is_fixed(module, node.args[1]) else None
        if name not in _SIZED or _is_not_whole(keywords.get("dtype")):
            return None
        sizes = _sizes(name, node.args, keywords.get("size"))
        fits = 1 <= len(sizes) <= 2 and _is_fixed(module, sizes[-1])
        return "fixed" if fits and self._may_be_length(module, sizes[-1]) else None

    def _may_be_length(self, module: _Module, size: ast.expr) -> bool:
        """Return False for a number that no row was as long as: it is the size of another thing."""
        number = _number(module, size)
        return not self._lengths or number is None or number in self._lengths

    def _follow_call(self, module: _Module, node: ast.Call) -> None:
        name = _name(node.func)
        functions = [keyword.value for keyword in node.keywords if keyword.arg in _COLLATING]
        functions += node.args[:1] if name in _APPLYING else []
        for function in functions:
            self._follow_function(module, function)
        if self._follow_function(module, node.func):
            return
        if name in _HANDED_ON:
            for argument in node.args:
                self.follow(module, argument)
        elif isinstance(node.func, ast.Attribute):
            self.follow(module, node.func.value)  # `.to(device)`, `.split(16)`

    def _follow_function(self, module: _Module, function: ast.expr) -> bool:
        """Follow what a function or a data set of the program's own gives; False: it is none."""
        if isinstance(function, ast.Call):  # functools.partial(f, ...), Collate(tokenizer)
            self.follow(module, function)
            function = function.args[0] if _name(function.func) == "partial" else function.func
        if isinstance(function, ast.Lambda):
            self.follow(module, function.body)
            return True
        defined = module.defined(_name(function))
        if defined is None:
            return False
        home, node = defined
        bodies: list[ast.AST] = [node]
        if isinstance(node, ast.ClassDef):
            bodies = [
                method
                for method in node.body
                if isinstance(method, FUNCTIONS) and method.name in _SAMPLES
            ]
        for body in bodies:
            for inner in nodes_of_scope(body):
                if isinstance(inner, (ast.Return, ast.Yield)) and inner.value is not None:
                    self.follow(home, inner.value)
        return True


def _origins(module: _Module, node: ast.expr) -> list[ast.expr]:
    """Return the expressions that the elements of one come from."""
    match node:
        case ast.Name():
            return list(_values(module, node))
        case ast.Attribute(value=value):
            return _assigned_to(module, node) or [value]  # `batch.input_ids`
    return _parts(node)


def _values(module: _Module, node: ast.Name) -> Iterator[ast.expr]:
    """Yield what a name may stand for: of the innermost scope that binds it."""
    for outer in module.up(node):
        if isinstance(outer, _COMPREHENSIONS):
            iterables = [
                generator.iter
                for generator in outer.generators
                if _binds(generator.target, node.id)
            ]
            if iterables and node not in iterables:
                yield from iterables
                return
        if not isinstance(outer, SCOPES) or isinstance(outer, ast.ClassDef):
            continue
        values = list(_bound(module, outer, node.id))
        is_parameter = isinstance(outer, FUNCTIONS) and node.id in _parameters(outer)
        if is_parameter:
            values += _given(module, outer, node.id)
        if values or is_parameter:
            yield from values
            return


def _assigned_to(module: _Module, node: ast.Attribute) -> list[ast.expr]:
    """Return what the class around `self.name` assigns to it."""
    if not isinstance(node.value, ast.Name) or node.value.id != "self":
        return []
    cls = next((outer for outer in module.up(node) if isinstance(outer, ast.ClassDef)), None)
    assigns = (node for node in ast.walk(cls) if isinstance(node, ast.Assign)) if cls else ()
    wanted = ast.unparse(node)
    return [
        assign.value
        for assign in assigns
        if any(ast.unparse(t) == wanted for t in _targets(assign.targets))
    ]


def _fill_count(node: ast.BinOp) -> ast.expr | None:
    """Return the number of fillings in `row + [0] * (LONGEST - len(row))`; None: it is another."""
    fill = node.right
    is_product = isinstance(fill, ast.BinOp) and isinstance(fill.op, ast.Mult)
    if not isinstance(node.op, ast.Add) or not is_product:
        return None
    assert isinstance(fill, ast.BinOp)
    counts = [side for side in (fill.left, fill.right) if not isinstance(side, ast.List)]
    return counts[0] if len(counts) == 1 else None


def _is_fixed(module: _Module, size: ast.expr) -> bool:
    """Return True if nothing but rows' own lengths in a size differs between batches."""
    leaves = list(_leaves(size))
    return bool(leaves) and not any(_varies(module, leaf) for leaf in leaves)


def _varies(module: _Module, leaf: ast.expr, depth: int = 0) -> bool:
    """Return True if a number may be another one for each batch."""
    if isinstance(leaf, ast.Constant) or depth > _DEEPEST:
        return depth > _DEEPEST
    if isinstance(leaf, ast.Attribute):
        values = _assigned_to(module, leaf)
        return leaf.attr == "shape" or any(module.is_repeated(value) for value in values)
    if not isinstance(leaf, ast.Name):
        return module.is_repeated(leaf)
    values = list(_values(module, leaf))
    if not values:
        return not leaf.id.isupper()  # a constant of another module
    return any(_varies(module, value, depth + 1) for value in values)


def _number(module: _Module, size: ast.expr) -> int | None:
    """Return the whole number that a size is; None: that is not plain."""
    for _ in range(_DEEPEST):
        if isinstance(size, ast.Constant):
            return size.value if type(size.value) is int else None
        values = list(_values(module, size)) if isinstance(size, ast.Name) else []
        if len(values) != 1:
            return None
        [size] = values
    return None


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the parts of an expression that its elements come from."""
    match node:
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Await(value=value):
            return [value]
        case ast.NamedExpr(value=value) | ast.Compare(left=value):
            return [value]
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return elements
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
            return [element]
        case ast.Dict(values=values):
            return values
        case ast.DictComp(value=value):
            return [value]
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.BinOp(left=left, right=right):
            return [left, right]
    return []


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the names, numbers and calls of a size, without the lengths of rows."""
    match node:
        case ast.Call(func=func) if _name(func) in _LENGTHS:
            return
        case ast.Call(func=ast.Name(id="int"), args=[only]):
            yield from _leaves(only)
        case ast.Subscript(value=ast.Attribute(attr="shape")) | ast.Attribute(attr="shape"):
            return
        case ast.BinOp(left=left, right=right):
            yield from _leaves(left)
            yield from _leaves(right)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                if not (isinstance(element, ast.Constant) and element.value == 0):
                    yield from _leaves(element)
        case _:
            yield node


def _sizes(name: str, args: list[ast.expr], keyword: ast.expr | None) -> list[ast.expr]:
    """Return the sizes of a tensor that is made."""
    first = keyword if keyword is not None else next(iter(args), None)
    if isinstance(first, (ast.Tuple, ast.List)):
        return first.elts
    if first is None:
        return []
    return [first] if name in _VALUED or keyword is not None else args


def _is_not_whole(dtype: ast.expr | None) -> bool:
    return dtype is not None and any(kind in ast.unparse(dtype) for kind in _NOT_WHOLE)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _targets(targets: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from _targets(target.elts)
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def _binds(target: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in _targets([target]))


def _bound(module: _Module, scope: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield the expressions that a scope binds to a name, or puts into what it names."""
    for node in nodes_of_scope(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _bound_by(target, node.value, name)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None and _binds(node.target, name):
                yield node.value
        elif isinstance(node, (ast.For, ast.AsyncFor)) and _binds(node.target, name):
            yield node.iter
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if _name(node.func) in _SUMMED and isinstance(owner, ast.Name) and owner.id == name:
                yield from node.args[-1:]


def _bound_by(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    """Yield what an assignment gives a name: its own element of a tuple, where that is seen."""
    match target, value:
        case ast.Tuple(elts=inner) | ast.List(elts=inner), ast.Tuple(elts=own) | ast.List(elts=own):
            if len(inner) == len(own):
                for element, given in zip(inner, own, strict=True):
                    yield from _bound_by(element, given, name)
                return
    if _binds(target, name):
        yield value


def _parameters(function: ast.AST) -> list[str]:
    assert isinstance(function, FUNCTIONS)
    arguments = function.args
    return [
        parameter.arg
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    ]


def _defaults(function: ast.AST) -> dict[str, ast.expr]:
    assert isinstance(function, FUNCTIONS)
    arguments = function.args
    plain = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    last = plain[len(plain) - len(arguments.defaults) :]
    only = {
        parameter.arg: value
        for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value
    }
    return {**dict(zip(last, arguments.defaults, strict=True)), **only}


def _given(module: _Module, function: ast.AST, name: str) -> list[ast.expr]:
    """Return what the calls of a function in its own file give a parameter, or its default."""
    assert isinstance(function, FUNCTIONS)
    number = _parameters(function).index(name)
    is_method = isinstance(module.scope(function), ast.ClassDef)
    default = _defaults(function).get(name)
    given = []
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and _name(call.func) == function.name:
            at = number - (is_method and isinstance(call.func, ast.Attribute))
            value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
            if value is None and 0 <= at < len(call.args):
                value = call.args[at]
            given += [value if value is not None else default]
    return [node for node in given or [default] if node is not None]
