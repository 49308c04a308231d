"""Where the source makes the padding that a model was seen to get."""

import linecache
from collections.abc import Sequence
from dataclasses import replace

from torchdoctor.edits.filled_rows import filled_rows
from torchdoctor.schema import ModelFacts, ProcessFacts

_LONGEST_LINE = 200


def with_filled_rows(processes: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """Return processes whose models with padding have the line that makes it, where it is sure."""
    return [
        replace(process, models=[_with_place(model) for model in process.models])
        for process in processes
    ]


def _with_place(model: ModelFacts) -> ModelFacts:
    if not model.common_padding_share or model.call is None:
        return model
    filled = filled_rows(model.call, _row_lengths(model))
    if filled is None:
        return model
    text = linecache.getline(filled.location.file, filled.location.line).strip()
    return replace(model, filled=replace(filled, text=text[:_LONGEST_LINE]))


def _row_lengths(model: ModelFacts) -> set[int]:
    """Return the lengths of the rows of tokens that a model got."""
    return {
        tensor.sizes[1]
        for call in model.input_tensors
        for tensor in call
        if tensor.is_whole and len(tensor.sizes) > 1
    }
