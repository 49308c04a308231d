"""What each kind of edit changes in a program, and all edits of one program made together."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchdoctor import edits
from torchdoctor.edits import (
    batching,
    blocks,
    caching,
    copies,
    decorators,
    inputs,
    joining,
    kept_models,
    keywords,
    opening,
    placing,
    precision,
    rare_calls,
    removing,
    rings,
    scaling,
    statements,
    tensors,
)
from torchdoctor.edits.changes import Change, Changes
from torchdoctor.edits.rewriting import rewritten
from torchdoctor.edits.syntax import Program

_BY_KIND: dict[type[edits.Edit], Callable[[Program, Any], Changes | None]] = {
    edits.StatementEdit: statements.with_statement,
    edits.AssignedEdit: statements.with_value,
    edits.DecoratorEdit: decorators.with_decorator,
    edits.WithEdit: blocks.with_context,
    edits.BeforeLoopEdit: placing.before_loop,
    edits.InputEdit: inputs.with_input,
    edits.ScaledStepEdit: scaling.scaled_step,
    edits.RemoveEdit: removing.without_statement,
    edits.AsTensorEdit: tensors.as_tensor,
    edits.ReadOriginalEdit: copies.read_original,
    edits.OnDeviceEdit: tensors.on_device,
    edits.DetachEdit: tensors.detached,
    edits.NonBlockingEdit: tensors.non_blocking,
    edits.SinglePrecisionEdit: precision.single_precision,
    edits.BatchCastEdit: precision.cast_batch,
    edits.KeptSamplesEdit: caching.with_kept_samples,
    edits.KeptResultEdit: caching.with_kept_results,
    edits.KeptModelEdit: kept_models.with_kept_model,
    edits.OpenedOnceEdit: opening.opened_once,
    edits.RareCallEdit: rare_calls.called_rarely,
    edits.RingEdit: rings.with_ring,
    edits.JoinedOnceEdit: joining.joined_once,
    edits.BatchSamplerEdit: batching.with_batch_sampler,
}
# What they do depends on what other edits do to an argument of the same call.
_ARGUMENTS: dict[type[edits.Edit], Callable[[Program, Any, Sequence[Change]], Changes | None]] = {
    edits.KeywordEdit: keywords.with_keyword_set,
    edits.DropKeywordEdit: keywords.without_keyword,
}


class EditedProgram:
    """One program as it was parsed, and what edits of it make of its text."""

    def __init__(self, source: str) -> None:
        """Parse a source; raise cst.ParserSyntaxError."""
        self._source = source
        self._program = Program(source)
        self._mark = "\ufeff" if source.startswith("\ufeff") else ""  # LibCST drops it
        self._known: dict[edits.Edit, Changes | None] = {}

    def with_edits(self, wanted: Iterable[edits.Edit]) -> str | None:
        """Return the text with all edits, the same in whatever order they are given.

        The same text if all that they make stands there already. None if one of them is not
        certain, two of them want different things, or one fails.
        """
        try:
            changes = self._changes(list(dict.fromkeys(wanted)))
            if changes is None:
                return None
            return self._mark + rewritten(self._program, changes) if changes else self._source
        except Exception:
            # The instruction stands then: whatever an edit trips over must not cost the report.
            return None

    def _changes(self, wanted: Sequence[edits.Edit]) -> Changes | None:
        arguments = [edit for edit in wanted if type(edit) in _ARGUMENTS]
        alone = [edit for edit in wanted if type(edit) not in _ARGUMENTS or not _depends(edit)]
        changes: Changes = []
        for edit in alone:
            edit_changes = self._changes_alone(edit)
            if edit_changes is None:
                return None
            changes += edit_changes
        beside = list(changes)
        for edit in arguments:
            if _depends(edit):
                edit_changes = _ARGUMENTS[type(edit)](self._program, edit, beside)
                if edit_changes is None:
                    return None
                changes += edit_changes
        return changes

    def _changes_alone(self, edit: edits.Edit) -> Changes | None:
        """Return what an edit changes that depends on no other; each is looked for once."""
        if edit not in self._known:
            kind = type(edit)
            if kind in _ARGUMENTS:
                self._known[edit] = _ARGUMENTS[kind](self._program, edit, ())
            else:
                self._known[edit] = _BY_KIND[kind](self._program, edit)
        return self._known[edit]


def _depends(edit: edits.Edit) -> bool:
    """Return True if an edit is another one where a second argument of its call is changed."""
    return bool(getattr(edit, "needs", None) or getattr(edit, "unless", None))


def edited(source: str, edit: edits.Edit) -> str | None:
    """Return the source with one edit made; None if that is not certain. See `with_edits`."""
    try:
        program = EditedProgram(source)
    except Exception:
        return None  # it does not parse
    return program.with_edits([edit])
