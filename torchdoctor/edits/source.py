"""One edit of one module's source, with comments and formatting kept. Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libcst as cst

from torchdoctor.edits import (
    AsTensorEdit,
    BatchCastEdit,
    BeforeLoopEdit,
    DecoratorEdit,
    DetachEdit,
    DropKeywordEdit,
    Edit,
    InputEdit,
    KeywordEdit,
    NonBlockingEdit,
    OnDeviceEdit,
    RemoveEdit,
    ScaledStepEdit,
    SinglePrecisionEdit,
    StatementEdit,
    WithEdit,
)
from torchdoctor.edits.blocks import (
    before_loop,
    scaled_step,
    with_context,
    with_input,
    without_statement,
)
from torchdoctor.edits.decorators import with_decorator
from torchdoctor.edits.keywords import with_keyword_set, without_keyword
from torchdoctor.edits.precision import cast_batch, single_precision
from torchdoctor.edits.statements import with_statement
from torchdoctor.edits.syntax import Ranges, parsed
from torchdoctor.edits.tensors import as_tensor, detached, non_blocking, on_device

_BY_KIND: dict[type[Edit], Callable[[cst.Module, Ranges, Any], cst.Module | None]] = {
    KeywordEdit: with_keyword_set,
    DropKeywordEdit: without_keyword,
    DecoratorEdit: with_decorator,
    WithEdit: with_context,
    BeforeLoopEdit: before_loop,
    AsTensorEdit: as_tensor,
    OnDeviceEdit: on_device,
    DetachEdit: detached,
    InputEdit: with_input,
    ScaledStepEdit: scaled_step,
    NonBlockingEdit: non_blocking,
    RemoveEdit: without_statement,
    SinglePrecisionEdit: single_precision,
    BatchCastEdit: cast_batch,
}
_MARK = "\ufeff"  # of a file's byte order


def edited(source: str, edit: Edit) -> str | None:
    """Return the source with one edit made; the same text if it stands there already.

    None if that is not certain: another call stands there, the argument may hide in `**options`,
    the source does not parse, or the edit fails.
    """
    try:
        return _edited(source, edit)
    except Exception:
        # The instruction stands then: whatever an edit trips over must not cost the report.
        return None


def _edited(source: str, edit: Edit) -> str | None:
    module, ranges = parsed(source)
    if isinstance(edit, StatementEdit):
        changed = with_statement(module, edit.statement)
    else:
        changed = _BY_KIND[type(edit)](module, ranges, edit)
    if changed is None:
        return None
    code = changed.code
    if source.startswith(_MARK) and not code.startswith(_MARK):
        code = _MARK + code  # LibCST drops it
    compile(code.removeprefix(_MARK), "<edited>", "exec")
    return code
