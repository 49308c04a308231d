"""What a fix asks to change around the model: its call in training, and before the loop."""

from __future__ import annotations

import re

from torchdoctor.edits import (
    BeforeLoopEdit,
    Edit,
    InputEdit,
    ScaledStepEdit,
    StatementEdit,
    WithEdit,
)
from torchdoctor.records import ModelFacts, Recording
from torchdoctor.records.lookup import training_models

_IMAGES = re.compile(r"\d+x\d+x\d+x\d+ (float|bfloat)")  # of a call's first tensor


def _called(recording: Recording) -> ModelFacts | None:
    """The model, where one alone was called with gradients, and by a name of the user's code."""
    models = [model for model in training_models(recording) if model.call is not None]
    trainers = recording.main.optimizers
    return models[0] if len(models) == 1 and len(trainers) <= 1 else None


def around_forward(recording: Recording, context: str) -> list[Edit]:
    """From the model's call up to the backward pass, both in one function of the user's.

    Args:
        recording: says where they are.
        context: of the `with`; "{device}" becomes the type of the model's device.
    """
    model, backward = _called(recording), recording.main.flags.backward_location
    if model is None or model.call is None or backward is None:
        return []
    place = model.call.location
    if (place.file, place.function) != (backward.file, backward.function):
        return []
    return [
        WithEdit(
            file=place.file,
            line=place.line,
            callee=model.call.name,
            before=backward.line,
            context=context.format(device=model.device.partition(":")[0]),
        )
    ]


_SCALER = "gradient_scaler"


def with_scaler(recording: Recording) -> list[Edit]:
    """A gradient scaler at the head of the file with the backward pass, and its calls there."""
    model, backward = _called(recording), recording.main.flags.backward_location
    if model is None or backward is None:
        return []
    device = model.device.partition(":")[0]
    made = f'{_SCALER} = torch.amp.GradScaler("{device}")'
    return [
        ScaledStepEdit(file=backward.file, line=backward.line, scaler=_SCALER),
        StatementEdit(file=backward.file, statement=made),
    ]


def before_training(recording: Recording, statement: str) -> list[Edit]:
    """A statement where the model has a name and the training loop has not begun.

    Args:
        recording: says where that is.
        statement: "{model}" becomes the model's name there.
    """
    model = _called(recording)
    if model is None or model.holder is None or model.holder_depth is None:
        return []
    holder = model.holder
    if statement.startswith("{model} =") and "." in holder.name:
        return []  # somebody else may hold the attribute's old value
    return [
        BeforeLoopEdit(
            file=holder.location.file,
            line=holder.location.line,
            statement=statement.format(model=holder.name),
            name=holder.name,
            # A function that is called from further in may be called at each step.
            needs_loop=model.holder_depth > 1,
        )
    ]


def on_images(recording: Recording, method: str) -> list[Edit]:
    """A method chained to the images that the model is called with."""
    model = _called(recording)
    if model is None or model.call is None or not model.input_shapes:
        return []
    if not all(_IMAGES.match(shapes) for shapes in model.input_shapes):
        return []
    place = model.call.location
    return [InputEdit(file=place.file, line=place.line, callee=model.call.name, method=method)]
