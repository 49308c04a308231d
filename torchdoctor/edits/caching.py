"""A class that makes each sample once, where an index alone decides which it is."""

import re

import libcst as cst

from torchdoctor.edits import KeptSamplesEdit
from torchdoctor.edits.changes import Changes, Reshaped
from torchdoctor.edits.syntax import Program, Syntax, last_name, source_of

_OWN = re.compile(r"\b(_samples|_make_sample|__slots__)\b")
_NEEDED = {"copy", "torch"}
_KEPT = """
def {0}({1}, {2}):
    samples, key = vars({1}).setdefault("_samples", {{}}), int({2})
    if key not in samples:
        made = {1}._make_sample({2})
        made = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, made)
        samples[key] = copy.deepcopy(made)
    return copy.deepcopy(samples[key])
"""


def with_kept_samples(program: Program, edit: KeptSamplesEdit) -> Changes | None:
    """Let the method answer later calls with a copy; None if it takes more than an index."""
    method = program.innermost(program.of(cst.FunctionDef), edit.line)
    classes = program.of(cst.ClassDef)
    owner = next((x for x in classes if method in x.body.body), None)
    if method is None or owner is None:
        return None
    if "._make_sample(" in source_of(owner):
        return []
    given = method.params.params
    plain = method.params.deep_equals(cst.Parameters(params=given)) and len(given) == 2
    special = method.decorators or method.asynchronous or given[-1].default
    named = _OWN.search(source_of(owner)) or {*map(program.full_name, _NEEDED)} != _NEEDED
    extended = any(last_name(b.value) == owner.name.value for x in classes for b in x.bases)
    if special or named or extended or not plain or _changes_later(program, owner, edit.changed):
        return None
    code = _KEPT.format(method.name.value, *(x.name.value for x in given))
    return [Reshaped(*program.place_of(method), code, lambda made: _kept(made, code))]


def _kept(method: cst.CSTNode, code: str) -> list[cst.CSTNode]:
    """Return the method that keeps samples, and the program's own under another name."""
    own = cst.ensure_type(method, cst.FunctionDef)
    kept = cst.ensure_type(cst.parse_statement(code), cst.FunctionDef)
    kept = kept.with_changes(
        leading_lines=own.leading_lines, params=own.params, returns=own.returns
    )
    name = cst.Name("_make_sample")
    return [kept, own.with_changes(name=name, leading_lines=[cst.EmptyLine(indent=False)])]


def _changes_later(program: Program, owner: cst.ClassDef, changed: tuple[str, ...]) -> bool:
    """Return True if a name of what the methods read is assigned outside of any `__init__`."""
    begin = [x for x in program.of(cst.FunctionDef) if x.name.value == "__init__"]
    first = {x for each in begin for x in Syntax(each).targets if source_of(x)[:5] == "self."}
    later = {x for y in program.targets if y not in first for x in Syntax(y).of(cst.Attribute)}
    own = [x for x in owner.body.body if x not in begin]
    read = {x for each in own for x in Syntax(each).of(cst.Attribute)} - later
    return bool({*changed, *(x.attr.value for x in later)} & {x.attr.value for x in read})
