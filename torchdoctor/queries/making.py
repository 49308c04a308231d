"""What of a step goes into making, loading and moving models, by the sampled stacks. Pure."""

import re

from torchdoctor.queries.hot_calls import is_sampled_enough, sampled_share
from torchdoctor.schema import Recording, StackSample

_MAKES = re.compile(
    r"nn/(init|parameter)\.py |nn/modules/|torch/(serialization|_weights_only_unpickler|_utils)\.py"
    r"|safetensors|transformers/(modeling_utils|core_model_loading|initialization)\.py"
)
_COMPUTING = ("loader", "forward", "backward", "optimizer")


def making_rows(recording: Recording) -> list[StackSample]:
    """Return the samples in what makes or loads a module, outside of all calls of models."""
    rows = (row for row in recording.main.stacks if row.phase not in _COMPUTING)
    return [row for row in rows if _MAKES.search(row.leaf)]


def making_share(recording: Recording) -> float | None:
    """Return the share of the step that these take at least; None: too few samples tell."""
    rows = making_rows(recording)
    return sampled_share(recording, rows) if rows and is_sampled_enough(recording) else None
