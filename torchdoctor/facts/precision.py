"""Which models train in float64, and which lines of the user's code made it so. Pure."""

from __future__ import annotations

from torchdoctor.facts.lookup import training_models
from torchdoctor.words.program import DoubleCall, Location, ModelFacts
from torchdoctor.words.recording import Recording

_MOST = 0.5  # of a model's elements


def double_models(recording: Recording) -> list[ModelFacts]:
    """Models in training most of whose parameters are float64, the largest first."""
    found = [
        m
        for m in training_models(recording)
        if m.float64_elements > _MOST * m.elements and m.float64_elements
    ]
    return sorted(found, key=lambda m: -m.elements)


def made_double(recording: Recording) -> DoubleCall | None:
    """What made the model float64: its conversion, else the default; None: not seen."""
    calls = recording.main.double_calls
    for kind in ("model", "default"):
        for call in calls:
            if call.kind == kind:
                return call
    return None


def double_location(recording: Recording) -> Location | None:
    """Where the model was made float64, or else where the largest such model is defined."""
    call = made_double(recording)
    if call is not None:
        return call.location
    return next((m.location for m in double_models(recording)), None)


def double_leaves(recording: Recording) -> tuple[bool, ...]:
    """Which tensors of the training loader's batches are float64; () where it cannot be told."""
    from torchdoctor.facts.lookup import training_loaders

    loaders = training_loaders(recording)
    if not loaders or not loaders[0].batch_shapes:
        return ()
    kinds = {
        tuple(leaf.endswith(" float64") for leaf in shapes.split(", "))
        for shapes in loaders[0].batch_shapes
    }
    found = kinds.pop()
    # Of a batch with more tensors the first four are known.
    return found if not kinds and any(found) and len(found) < 4 else ()
