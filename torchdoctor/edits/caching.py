"""Samples and results that are made once, where an index or the arguments alone decide them."""

import re

import libcst as cst

from torchdoctor.edits import KeptResultEdit, KeptSamplesEdit, StatementEdit
from torchdoctor.edits.bindings import names_read
from torchdoctor.edits.changes import Changes, Reshaped
from torchdoctor.edits.statements import with_statement
from torchdoctor.edits.syntax import Program, Syntax, last_name, source_of

_OWN = re.compile(r"\b(_samples|_make_sample|_copy_of|__slots__)\b")
_NEEDED = {"copy", "torch"}
_KEPT = """
def {0}({1}, {2}):
    samples, key = vars({1}).setdefault("_samples", {{}}), int({2})
    if key not in samples:
        samples[key] = {1}._copy_of({1}._make_sample({2}))
    return {1}._copy_of(samples[key])
"""
# A deep copy of a tensor takes five times as long as a clone, and copies all that it is a view of.
_COPY = """
def _copy_of(self, sample):
    if isinstance(sample, torch.Tensor):
        return sample.clone()
    if type(sample) in (list, tuple):
        return type(sample)(map(self._copy_of, sample))
    if type(sample) is dict:
        return {name: self._copy_of(value) for name, value in sample.items()}
    return copy.deepcopy(sample)
"""
_UNLIKE = re.compile(r"rand|seed|shuffle|dropout|perm|uniform|normal_|time|open|read|grad|numpy")


def with_kept_samples(program: Program, edit: KeptSamplesEdit) -> Changes | None:
    """Let the method answer later calls with a copy; None if it takes more than an index."""
    method = program.innermost(program.of(cst.FunctionDef), edit.line)
    classes = program.of(cst.ClassDef)
    owner = next((class_ for class_ in classes if method in class_.body.body), None)
    if method is None or owner is None:
        return None
    if "._make_sample(" in source_of(owner):
        return []
    given = method.params.params
    plain = method.params.deep_equals(cst.Parameters(params=given)) and len(given) == 2
    special = method.decorators or method.asynchronous or given[-1].default
    named = _OWN.search(source_of(owner)) or {*map(program.full_name, _NEEDED)} != _NEEDED
    extended = any(
        last_name(b.value) == owner.name.value for class_ in classes for b in class_.bases
    )
    if special or named or extended or not plain or _changes_later(program, owner, edit.changed):
        return None
    code = _KEPT.format(method.name.value, *(parameter.name.value for parameter in given))
    return [Reshaped(*program.place_of(method), code, lambda made: _kept(made, code))]


def _kept(method: cst.CSTNode, code: str) -> list[cst.CSTNode]:
    """Return the method that keeps samples, a copying one, and the program's own, renamed."""
    function = cst.ensure_type(method, cst.FunctionDef)
    kept = cst.ensure_type(cst.parse_statement(code), cst.FunctionDef)
    kept = kept.with_changes(
        leading_lines=function.leading_lines, params=function.params, returns=function.returns
    )
    blank = [cst.EmptyLine(indent=False)]
    copying = cst.ensure_type(cst.parse_statement(_COPY), cst.FunctionDef)
    renamed = function.with_changes(name=cst.Name("_make_sample"), leading_lines=blank)
    return [kept, copying.with_changes(leading_lines=blank), renamed]


def _changes_later(program: Program, owner: cst.ClassDef, changed: tuple[str, ...]) -> bool:
    """Return True if a name of what the methods read is assigned outside of any `__init__`."""
    begin = [
        function for function in program.of(cst.FunctionDef) if function.name.value == "__init__"
    ]
    first = {
        target
        for each in begin
        for target in Syntax(each).targets
        if source_of(target)[:5] == "self."
    }
    later = {
        attribute
        for y in program.targets
        if y not in first
        for attribute in Syntax(y).of(cst.Attribute)
    }
    statements = [statement for statement in owner.body.body if statement not in begin]
    read = {
        attribute for each in statements for attribute in Syntax(each).of(cst.Attribute)
    } - later
    return bool(
        {*changed, *(node.attr.value for node in later)} & {node.attr.value for node in read}
    )


def with_kept_results(program: Program, edit: KeptResultEdit) -> Changes | None:
    """Let a function keep its results; None if they may come of more than its arguments."""
    function = program.innermost(program.of(cst.FunctionDef), edit.line)
    if function is None or function.name.value != edit.function:
        return None
    decorator = f"functools.lru_cache(maxsize={edit.kept})"
    if any("cache" in source_of(decorator.decorator) for decorator in function.decorators):
        return []
    if function.decorators or function not in program.module.body or function.asynchronous:
        return None
    params = function.params
    starred = params.star_kwarg is not None or isinstance(params.star_arg, cst.Param)
    if starred or not params.params or _depends_on_more(program, function):
        return None

    def kept(made: cst.CSTNode) -> list[cst.CSTNode]:
        definition = cst.ensure_type(made, cst.FunctionDef)
        added = cst.Decorator(decorator=cst.parse_expression(decorator))
        return [definition.with_changes(decorators=[added])]

    imported = with_statement(program, StatementEdit(file="", statement="import functools"))
    if imported is None:
        return None
    return [*imported, Reshaped(*program.place_of(function), f"@{decorator}", kept)]


def _depends_on_more(program: Program, function: cst.FunctionDef) -> bool:
    """Return True if a function reads, draws or changes what is not its own or its arguments'."""
    syntax = Syntax(function.body)
    called = [program.full_name(call.func) for call in syntax.calls()]
    if any(_UNLIKE.search(name) for name in called):
        return True  # NumPy's arrays cannot be the arguments of what is kept
    given = {node.name.value for node in Syntax(function.params).of(cst.Param)}
    local_names = given | {source_of(target) for target in syntax.targets}
    read = set(names_read(function.body)) - local_names
    changed = [target for target in program.targets if target not in syntax.targets]
    outside = {source_of(target).split(".")[0].split("[")[0] for target in changed}
    constants = {name for name in read if name.isupper()}
    stored = [target for target in syntax.targets if not isinstance(target, cst.Name)]
    written = {source_of(target).split(".")[0].split("[")[0] for target in stored}
    kinds: tuple[type[cst.CSTNode], ...] = (cst.Global, cst.Nonlocal, cst.Yield)
    declared = any(syntax.of(kind) for kind in kinds)
    return bool(declared or written & given or (read - constants) & outside)
