"""The state that a data set changes where it prepares a sample (`schema.DatasetWrite`).

By the source of its methods: a fetch that was looked at may not have come to the line.
"""

import ast
import inspect
import textwrap
import types

from .. import places

_MOST = 8
_MOST_DATASETS = 8
_MOST_METHODS = 32
_CHANGING = {
    "append",
    "appendleft",
    "extend",
    "insert",
    "add",
    "update",
    "subtract",
    "discard",
    "remove",
    "pop",
    "popleft",
    "popitem",
    "clear",
    "sort",
    "reverse",
    "rotate",
    "move_to_end",
    "add_",
    "sub_",
    "mul_",
    "div_",
    "fill_",
    "zero_",
    "copy_",
    "index_add_",
    "scatter_add_",
}
_ABSENCE = (ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.Not)


def of(dataset):
    """Return a row for each attribute that the user's data sets change; [] without a source."""
    rows = {}
    for cls in map(type, _wrapped(dataset)):
        try:
            for row in _of_class(cls):
                key = (row["location"]["file"], row["name"], cls)
                # What is changed in earnest is not excused by a cache of the same name.
                if key not in rows or (rows[key]["cache"] and not row["cache"]):
                    rows[key] = row
        except Exception:
            continue  # odd source: nothing is said of this class
    return list(rows.values())[:_MOST]


def _wrapped(dataset):
    """Return the data set, and those within it (`Subset`, `ConcatDataset`, own wrappers)."""
    datasets = [dataset]
    for outer in datasets:  # grows
        held = getattr(outer, "__dict__", {})  # no properties, which may load or raise
        several = held.get("datasets")
        several = several[:_MOST_DATASETS] if isinstance(several, (list, tuple)) else ()
        for inner in (held.get("dataset"), *several):
            readable = hasattr(type(inner), "__getitem__") or hasattr(type(inner), "__iter__")
            is_listed = any(inner is dataset for dataset in datasets)
            if readable and not is_listed and len(datasets) < _MOST_DATASETS:
                datasets.append(inner)
    return datasets


def _of_class(cls):
    mapped = hasattr(cls, "__getitem__")
    names = ["__getitem__", "__getitems__"] if mapped else ["__iter__", "__next__"]
    rows = []
    read = set()
    for name in names:  # grows: methods that these call
        for function in _functions(cls, name):
            if function.__code__ in read or len(read) >= _MOST_METHODS:
                continue
            read.add(function.__code__)
            method = _Method(function)
            rows += method.writes()
            names += [used for used in method.used if used not in names]
    return rows


def _functions(cls, name):
    """Yield the user's functions behind a method or property, those of base classes included."""
    for base in cls.__mro__:
        value = vars(base).get(name)
        value = value.fget if isinstance(value, property) else inspect.unwrap(value)
        if isinstance(value, types.FunctionType) and places.is_users(value.__code__.co_filename):
            yield value


class _Method:
    """The source of one method."""

    def __init__(self, function):
        code = function.__code__
        self._lines, self._first = inspect.getsourcelines(function)
        self._file = code.co_filename
        self._name = code.co_name
        self._function = ast.parse(textwrap.dedent("".join(self._lines))).body[0]
        self._nodes = list(ast.walk(self._function))
        self._self = code.co_varnames[0] if code.co_argcount else ""
        # Attributes of self that are used: methods among them are read as well, but for those
        # that open at the first use what is not there yet.
        used = [n for n in self._nodes if self._is_attribute(n) and not self._is_guarded(n, None)]
        self.used = sorted({node.attr for node in used})

    def writes(self):
        """Return a row for each statement that changes an attribute."""
        rows = []
        for node, target, keyed in self._changes():
            absent = keyed == "default" or self._only_where_absent(node, target, keyed)
            if absent and not keyed:
                continue  # opened or made at its first use: each worker has to have its own
            at = places.of_line(self._file, node.lineno + self._first - 1, self._name)
            text = self._lines[node.lineno - 1].strip()
            rows.append({"name": "self." + target, "location": at, "text": text, "cache": absent})
        return rows

    def _is_attribute(self, node):
        """Return True for `self.something`."""
        owner = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(owner, ast.Name) and owner.id == self._self

    def _root(self, node):
        """Return the attribute of self that an expression such as `self.a[i].b` begins with."""
        while not self._is_attribute(node):
            if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
                node = node.value
            elif isinstance(node, ast.Call):
                node = node.func
            else:
                return None
        return node.attr

    def _changes(self):
        """Yield (node, attribute, how: "" by name, "key" of a subscript, "default" or "call")."""
        for node in self._nodes:
            for target in _targets(node):
                root = self._root(target)
                if root is not None:
                    yield node, root, "key" if isinstance(target, ast.Subscript) else ""
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                root = self._root(node.func.value)
                if root is not None and node.func.attr == "setdefault":
                    yield node, root, "default"
                elif root is not None and node.func.attr in _CHANGING:
                    yield node, root, "call"

    def _mentions(self, node, target, names=()):
        """Return True if an attribute of self (None: any) or one of some names occurs."""
        if target is None:
            names = (self._self,)
        return any(
            (target is not None and self._is_attribute(n) and n.attr == target)
            or (target is not None and isinstance(n, ast.Constant) and n.value == target)
            or (isinstance(n, ast.Name) and n.id in names)
            for n in ast.walk(node)
        )

    def _only_where_absent(self, node, target, keyed):
        """Return True if an assignment is reached only where nothing is held there yet."""
        if not isinstance(node, ast.Assign) or self._mentions(node.value, target):
            return False
        if not keyed:
            return self._is_guarded(node, None)
        names = {
            name.id
            for given in self._nodes
            if isinstance(given, (ast.Assign, ast.NamedExpr))
            and self._mentions(given.value, target)
            for part in (given.targets if isinstance(given, ast.Assign) else [given.target])
            for name in ast.walk(part)
            if isinstance(name, ast.Name)
        }
        counts = [n for n in ast.walk(node.value) if isinstance(n, ast.BinOp)]
        counted = any(self._mentions(count, target, names) for count in counts)
        return not counted and self._is_guarded(node, target, names)

    def _is_guarded(self, node, target, names=()):
        """Return True if a node is reached only where an attribute (None: any) is not there yet.

        Below a test for it, in the handler of an attempt to get it, or after a return of it.
        """
        for other in self._nodes:
            if not isinstance(other, (ast.If, ast.Try)):
                continue
            returns = isinstance(other.body[-1], ast.Return) and other.end_lineno < node.lineno
            if isinstance(other, ast.If):
                inside = other.body[0].lineno <= node.lineno <= other.end_lineno
                if (inside or returns) and self._asks(other.test, target, names):
                    return True
            else:
                inside = any(h.lineno <= node.lineno <= h.end_lineno for h in other.handlers)
                tried = other.body if inside else other.body[-1:] if returns else ()
                if any(self._mentions(part, target, names) for part in tried):
                    return True
        return False

    def _asks(self, test, target, names):
        """Return True if a test asks for what is there: `in`, `is None`, `not`, hasattr."""
        absence = any(
            isinstance(n, _ABSENCE) or (isinstance(n, ast.Name) and n.id == "hasattr")
            for n in ast.walk(test)
        )
        return absence and self._mentions(test, target, names)


def _targets(node):
    if isinstance(node, (ast.Assign, ast.Delete)):
        return [part for target in node.targets for part in _parts(target)]
    return _parts(node.target) if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


def _parts(target):
    return [p for e in target.elts for p in _parts(e)] if hasattr(target, "elts") else [target]
