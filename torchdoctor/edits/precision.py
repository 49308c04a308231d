"""Edits that make float32 of what a program computes in float64, or in float16."""

import re
from itertools import takewhile

import libcst as cst
from libcst import matchers

from torchdoctor.edits import BatchCastEdit, SinglePrecisionEdit
from torchdoctor.edits.changes import Around, Changes, Inserted, Replaced
from torchdoctor.edits.syntax import Program, last_name, same_statement, source_of

_DOUBLE = ("torch.float64", "torch.double", "torch.DoubleTensor", "torch.cuda.DoubleTensor")
_HALF = ("torch.float16", "torch.half", "torch.HalfTensor")
_OLD_TYPE = re.compile(r"(Double|Half)Tensor")
_METHODS = ("double", "half")
_SINGLE = ("torch.float32", "torch.float", "torch.FloatTensor", "torch.cuda.FloatTensor")
_MAKERS = ("from_numpy", "as_tensor", "tensor")
_TYPES = ("float", "double", "to", "type", "half", "bfloat16", "long", "int")


def single_precision(program: Program, edit: SinglePrecisionEdit) -> Changes | None:
    """Make the calls of a name on a line give float32; None if there is none or it is not sure."""
    on_line = [call for call in program.calls() if program.covers(call, edit.line)]
    calls = [call for call in on_line if last_name(call.func) == edit.callee]
    chosen = [call for call in calls if program.line(call) == edit.line] or calls
    if not chosen:
        done = edit.callee in _METHODS and any(last_name(call.func) == "float" for call in on_line)
        return [] if done else None
    changes: Changes = []
    for call in chosen:
        made = _single(program, call, edit.callee)
        if made is None:
            return None
        changes += made
    return changes


def _single(program: Program, call: cst.Call, callee: str) -> Changes | None:
    """Return what to change in one call; None if it is not sure."""
    if callee in _METHODS:
        if call.args or not isinstance(call.func, cst.Attribute):
            return None
        return [Replaced(*program.span(call.func.attr), "float")]
    kinds = [source_of(given.value).strip("'\"") for given in call.args]
    for given, kind in zip(call.args, kinds, strict=True):
        if kind in (*_DOUBLE, *_HALF):
            single = _OLD_TYPE.sub("FloatTensor", source_of(given.value))
            text = single if "Tensor" in kind else "torch.float32"
            return [Replaced(*program.span(given.value), text)]
    if set(kinds) & set(_SINGLE):
        return []
    typed = any(a.star or (a.keyword and a.keyword.value == "dtype") for a in call.args)
    if callee not in _MAKERS or typed:
        return None
    after: cst.CSTNode = call
    while isinstance(method := program.parents[after], cst.Attribute):
        if method.attr.value in _TYPES:
            return []  # what follows says the type
        after = program.parents[method]
    return [Around(*program.span(call), "", ".float()")]


def cast_batch(program: Program, edit: BatchCastEdit) -> Changes | None:
    """Cast the parts of a batch to float32 before anything else in the loop's body."""
    loops = [loop for loop in program.of(cst.For) if program.line(loop) == edit.line]
    if len(loops) != 1 or not isinstance(loops[0].body, cst.IndentedBlock):
        return None
    block = loops[0].body
    body = loops[0].body.body
    casts = ", ".join(f"{name}.float()" for name in edit.names)
    added = cst.parse_statement(f"{', '.join(edit.names)} = {casts}")
    text = matchers.SimpleStatementLine(body=[matchers.Expr(value=matchers.SimpleString())])
    at = len(list(takewhile(lambda line: matchers.matches(line, text), body)))  # a docstring
    if len(body) > at and same_statement(body[at], added):
        return []
    code = source_of(added)
    if at < len(body):
        return [Inserted(block, at, code, statement=added)]
    return [Inserted(block, at - 1, code, after=True, statement=added)]
