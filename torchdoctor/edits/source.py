"""One edit of one module's source, with comments and formatting kept. Pure: text in, text out."""

from collections.abc import Callable
from typing import Any

import libcst as cst

from torchdoctor import edits
from torchdoctor.edits import blocks, caching, decorators, keywords, precision, statements, tensors
from torchdoctor.edits.syntax import Program

_BY_KIND: dict[type[edits.Edit], Callable[[Program, Any], cst.Module | None]] = {
    edits.KeywordEdit: keywords.with_keyword_set,
    edits.DropKeywordEdit: keywords.without_keyword,
    edits.StatementEdit: statements.with_statement,
    edits.DecoratorEdit: decorators.with_decorator,
    edits.WithEdit: blocks.with_context,
    edits.BeforeLoopEdit: blocks.before_loop,
    edits.InputEdit: blocks.with_input,
    edits.ScaledStepEdit: blocks.scaled_step,
    edits.RemoveEdit: blocks.without_statement,
    edits.AsTensorEdit: tensors.as_tensor,
    edits.OnDeviceEdit: tensors.on_device,
    edits.DetachEdit: tensors.detached,
    edits.NonBlockingEdit: tensors.non_blocking,
    edits.SinglePrecisionEdit: precision.single_precision,
    edits.BatchCastEdit: precision.cast_batch,
    edits.KeptSamplesEdit: caching.with_kept_samples,
}
_MARK = "\ufeff"  # of a file's byte order; LibCST drops it


def edited(source: str, edit: edits.Edit) -> str | None:
    """Return the source with one edit made; the same text if it stands there already.

    None if that is not certain, the source does not parse, or the edit fails.
    """
    try:
        changed = _BY_KIND[type(edit)](Program(source), edit)
        if changed is None:
            return None
        code = changed.code.removeprefix(_MARK)
        compile(code, "<edited>", "exec")
    except Exception:
        # The instruction stands then: whatever an edit trips over must not cost the report.
        return None
    return _MARK + code if source.startswith(_MARK) else code
