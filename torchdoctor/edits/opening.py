"""What a function opens anew in each call, opened once in each process instead."""

import re

import libcst as cst
from libcst import matchers

from torchdoctor.edits import OpenedOnceEdit, StatementEdit
from torchdoctor.edits.changes import Changes, Inserted, Replaced, Reshaped
from torchdoctor.edits.statements import last_import, with_statement
from torchdoctor.edits.syntax import Program, Syntax, argument, last_name, source_of

_NAME = "_open_once"
_MOST_OPEN = 64  # of which the one not used for the longest time is closed
_LOADS = ("torch.load", "numpy.load")
_PATHS = ("os.path.join", "join", "str", "Path")  # what makes a path of hashable parts
_IN_PLACE = re.compile(r"(?<!_)_$|^(append|extend|fill|pop|put|resize|setdefault|sort|update)$")
_READS = ("'r'", '"r"')


def opened_once(program: Program, edit: OpenedOnceEdit) -> Changes | None:
    """Replace the call that opens a file at the line; None if it may be written to or closed."""
    if f"{_NAME} = " in program.code:
        return []
    calls = [call for call in program.calls() if _opens(program, call)]
    call = program.only_call(calls, edit.line)
    function = program.innermost(program.of(cst.FunctionDef), edit.line)
    if call is None or function is None or _NAME in program.code:
        return None
    path = source_of(call.args[0].value)
    head = last_import(program.module.body)
    made = [program.full_name(inner.func) for inner in Syntax(call.args[0].value).calls()]
    if head is None or not all(name in _PATHS for name in made):
        return None
    taken = _in_place(program, call, function, f"{_NAME}(os.getpid(), {path})")
    if taken is None:
        return None
    options = [arg for arg in call.args[1:] if arg.keyword is not None]
    given = ", ".join(["path", *(source_of(option).rstrip(", ") for option in options)])
    opener = f"lambda process, path: {source_of(call.func)}({given})"
    code = f"{_NAME} = functools.lru_cache(maxsize={_MOST_OPEN})({opener})"
    statement = cst.parse_statement(code)
    changes: Changes = [
        Inserted(program.module, head, code, after=True, blank_above=True, statement=statement)
    ]
    for module in ("functools", "os"):
        if not program.imports(module):
            imported = with_statement(program, StatementEdit(file="", statement=f"import {module}"))
            if imported is None:
                return None
            changes += imported
    return [*changes, *taken]


def _opens(program: Program, call: cst.Call) -> bool:
    """Return True if a call opens a file to read it, given by its path and constants."""
    name = program.full_name(call.func)
    rest = call.args[1:]
    if not call.args or call.args[0].star or call.args[0].keyword is not None:
        return False
    if name == "lmdb.open":
        constant = (cst.Name, cst.Integer, cst.SimpleString)
        plain = all(arg.keyword is not None and isinstance(arg.value, constant) for arg in rest)
        names = [arg.value.value for arg in rest if isinstance(arg.value, cst.Name)]
        only_read = argument(call, "readonly")
        is_constant = plain and set(names) <= {"True", "False", "None"}
        return is_constant and only_read is not None and source_of(only_read) == "True"
    if name in _LOADS:
        options = [arg.keyword.value for arg in rest if arg.keyword is not None]
        return set(options) <= {"weights_only"} and len(options) == len(rest)
    mode = argument(call, "mode", 1)
    given = len(rest) == (mode is not None)
    return name == "zipfile.ZipFile" and given and (mode is None or source_of(mode) in _READS)


def _in_place(
    program: Program, call: cst.Call, function: cst.FunctionDef, code: str
) -> Changes | None:
    """Return what puts other code in place of the call, without what closes its result."""
    above = program.parents[call]
    if isinstance(above, cst.WithItem):
        statement = program.parents[above]
        name = above.asname.name if above.asname is not None else None
        if not isinstance(statement, cst.With) or len(statement.items) != 1:
            return None
        if not isinstance(name, cst.Name) or statement.asynchronous is not None:
            return None
        if not isinstance(statement.body, cst.IndentedBlock) or _closes(function, name.value):
            return None
        line = f"{name.value} = {code}"
        return [Reshaped(*program.place_of(statement), line, lambda made: _without(made, line))]
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return None
    target = above.targets[0].target
    if not isinstance(target, cst.Name) or _closes(function, target.value):
        return None
    return [Replaced(*program.span_with_brackets(call), code)]


def _closes(function: cst.FunctionDef, name: str) -> bool:
    syntax = Syntax(function)
    managed = matchers.findall(function, matchers.WithItem(item=matchers.Name(name)))
    closes = [
        call for call in syntax.calls("close", "__exit__") if source_of(call.func).startswith(name)
    ]
    yields = syntax.of(cst.Yield)
    writes = [
        call for call in syntax.calls() if last_name(call.func) in ("write", "writestr", "put")
    ]
    return bool(managed or closes or yields or writes) or _changes(syntax, name)


def _changes(syntax: Syntax, name: str) -> bool:
    """Return True if what was loaded is changed in place: the next call would get it changed."""
    changed: list[cst.CSTNode] = [assignment.target for assignment in syntax.of(cst.AugAssign)]
    changed += [target for target in syntax.targets if not isinstance(target, cst.Name)]
    changed += [call.func for call in syntax.calls() if _IN_PLACE.search(last_name(call.func))]
    return any(re.match(rf"{name}\b", source_of(node)) for node in changed)


def _without(made: cst.CSTNode, line: str) -> list[cst.CSTNode]:
    """Return what was inside of a `with`, below the assignment that stands in its place."""
    statement = cst.ensure_type(made, cst.With)
    first = cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine)
    body = cst.ensure_type(statement.body, cst.IndentedBlock)
    return [first.with_changes(leading_lines=statement.leading_lines), *body.body]
