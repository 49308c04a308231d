"""An argument that comes from a constant of the program: `WORKERS = 0`.

The constant is changed where the argument is all that it is for; what also seeds a generator or
sizes a layer stays, and the argument itself gets the number.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

import libcst as cst
from libcst import matchers
from libcst.metadata import ClassScope, ComprehensionScope, GlobalScope

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.origins import Names
from torchdoctor.edits.syntax import collect, imported, last_name, replaced, resolved

_NAME = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
_STRING = re.compile(r"""(['"]).*?\1""")
_ALL_NAMES = frozenset({"exec", "globals", "locals", "vars"})

# What these hold and return is the machine's or the library's, not somebody's choice.
_LIBRARIES = frozenset({"datetime", "math", "multiprocessing", "numpy", "psutil", "torch"})
_MACHINE = frozenset({"os.cpu_count", "os.process_cpu_count", "os.sched_getaffinity"})
_OUTSIDE = frozenset({"__import__", "eval", "exec", "getattr", "globals", "input", "open", "vars"})
_READS = re.compile(r"\.(load|read|from)")


def is_computed(module: cst.Module, value: cst.BaseExpression) -> bool:
    """Whether a value depends on a variable of the program, or on what comes from outside of it.

    Not of literals and what libraries say of the machine: `min(2, os.cpu_count())`.
    """
    names = imported(module)
    seen = collect(module)
    under = matchers.findall(module, matchers.ImportAlias(asname=matchers.AsName()))
    aliases = {cst.ensure_type(x, cst.ImportAlias).asname for x in under}
    renamed = {x.name for x in aliases if x is not None}
    bound = {x.value for x in seen.targets if isinstance(x, cst.Name) and x not in renamed}
    bound |= {x.name.value for x in (*seen.parameters, *seen.scopes)}
    known = ({*dir(builtins)} - _OUTSIDE | {*keyword.kwlist}) - bound
    for name in _NAME.findall(_STRING.sub("", module.code_for_node(value))):
        full, root = resolved(names, name), name.split(".")[0]
        library = full in _MACHINE or (
            full.split(".")[0] in _LIBRARIES and not _READS.search(full) and root not in bound
        )
        if root not in known and not (root in names and library):
            return True
    return False


def constant_changed(module: cst.Module, value: cst.Name, edit: KeywordEdit) -> cst.Module | None:
    """`WORKERS = 0` changed, or the argument where the constant serves something else as well.

    None where anything but one line with a literal may give the name a value.
    """
    if _all_names(module) or _bound_otherwise(module, value.value):
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
    if isinstance(scope, (ClassScope, ComprehensionScope)) or _starred_after(module, assign):
        return None
    new = cst.parse_expression(edit.value)
    if assign.value.deep_equals(new):
        return module
    reads = [one.node for one in bound[0].references]
    shared = isinstance(scope, GlobalScope) and not _is_started(edit.file, edit.command)
    if shared or any(read is not value for read in reads):
        return replaced(module, value, new)
    return replaced(module, assign, assign.with_changes(value=new))


def _all_names(module: cst.Module) -> bool:
    """Whether a file of settings may overrule every name, or something read them all."""
    for call in collect(module).calls:
        if last_name(call.func) in _ALL_NAMES and not (
            last_name(call.func) == "vars" and call.args
        ):
            return True
    return False


def _bound_otherwise(module: cst.Module, name: str) -> bool:
    """Bindings that LibCST's scopes do not hold: of patterns, `del`, `:=` in a comprehension."""
    one = matchers.Name(value=name)
    patterns = (
        matchers.MatchAs(name=one),
        matchers.MatchStar(name=one),
        matchers.MatchMapping(rest=one),
        matchers.NamedExpr(target=one),
    )
    if any(matchers.findall(module, pattern) for pattern in patterns):
        return True
    deleted = matchers.findall(module, matchers.Del())
    return any(matchers.findall(x, one) for x in deleted)


def _starred_after(module: cst.Module, assign: cst.Assign) -> bool:
    """Whether `from settings import *` below the constant may overrule it."""
    below = False
    for line in module.body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            below = below or part is assign
            starred = matchers.findall(part, matchers.ImportFrom(names=matchers.ImportStar()))
            if starred and (below or not isinstance(line, cst.SimpleStatementLine)):
                return True
    return False


def _is_started(file: str, command: Sequence[str]) -> bool:
    """Whether a file is the program's script: no other module imports its constants."""
    path = Path(file)
    for word in command:
        # `python -m package.train`
        written = word if word.endswith(".py") else f"{word.replace('.', '/')}.py"
        parts = tuple(x for x in PurePath(written).parts if x != "..")
        if parts and path.parts[-len(parts) :] == parts:
            return True
    return False
