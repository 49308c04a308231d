"""What a fix asks to change around the model: its call in training, and before the loop."""

from collections.abc import Sequence

from torchdoctor.edits import (
    BeforeLoopEdit,
    Edit,
    InputEdit,
    ScaledStepEdit,
    SinglePrecisionEdit,
    StatementEdit,
    WithEdit,
)
from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import (
    DoubleCall,
    Location,
    ModelFacts,
    Recording,
    TensorFacts,
    TrainingPass,
)

_SCALER = "gradient_scaler"
_MOST_CALLS = 16  # that the probe keeps
_OF_IMAGES = 4  # dimensions


def _trained(recording: Recording) -> list[ModelFacts]:
    return [model for model in training_models(recording) if model.call is not None]


def around_forward(recording: Recording, context: str) -> list[Edit]:
    """Return a `with` around each pass up to the backward; [] unless it fits all of them."""
    models = {model.ident: model for model in training_models(recording)}
    edits: dict[tuple[str, int], WithEdit] = {}
    for training_pass in recording.main.passes:
        model = models.get(training_pass.model)
        meeting = _meeting(training_pass)
        if model is None or meeting is None:
            return []
        forward, callee, before = meeting
        earlier = edits.get((forward.file, before))
        if earlier is None or forward.line < earlier.line:
            edits[forward.file, before] = WithEdit(
                file=forward.file,
                line=forward.line,
                callee=callee,
                before=before,
                context=context,
                device=model.device.partition(":")[0],
            )
    return list(edits.values())


def _meeting(training_pass: TrainingPass) -> tuple[Location, str, int] | None:
    """Return the forward, what is called there, and the backward's line in the same function."""
    called = [training_pass.name, *(where.function for where in training_pass.forward[:-1])]
    for depth, (forward, backward) in enumerate(
        zip(reversed(training_pass.forward), reversed(training_pass.backward), strict=False)
    ):
        if (forward.file, forward.function) != (backward.file, backward.function):
            return None
        if forward.line != backward.line:
            names = called[: len(called) - depth]
            # A comprehension has a frame of its own, and what it calls stands on the same line.
            name = next(
                (name for name in reversed(names) if name is None or not name.startswith("<")), None
            )
            return (forward, name, backward.line) if name is not None else None
    return None


def with_scaler(recording: Recording) -> list[Edit]:
    """Return edits that add a gradient scaler; [] where there are several models or optimizers."""
    models = _trained(recording)
    backward = recording.main.flags.backward_location
    if len(models) != 1 or len(recording.main.optimizers) > 1 or backward is None:
        return []
    device = models[0].device.partition(":")[0]
    made = f'{_SCALER} = torch.amp.GradScaler("{device}")'
    return [
        ScaledStepEdit(file=backward.file, line=backward.line, scaler=_SCALER),
        StatementEdit(file=backward.file, statement=made),
    ]


def before_training(recording: Recording, statement: str) -> list[Edit]:
    """Return a statement, with "{model}" named, before each model's loop; [] unless for all."""
    edits: list[Edit] = []
    for model in _trained(recording):
        holder = model.holder
        if holder is None or model.holder_depth is None:
            return []
        if statement.startswith("{model} =") and "." in holder.name:
            return []  # somebody else may hold the attribute's old value
        edits.append(
            BeforeLoopEdit(
                file=holder.location.file,
                line=holder.location.line,
                statement=statement.format(model=holder.name),
                name=holder.name,
                # A function that is called from further in may be called at each step.
                needs_loop=model.holder_depth > 1,
                function=holder.location.function or "",
            )
        )
    return edits


def in_single_precision(calls: Sequence[DoubleCall]) -> list[Edit]:
    """Return edits that make float32 of what lines ask for; [] if one is unsure or not known."""
    if not any(call.kind != "data" for call in calls) or not all(call.sure for call in calls):
        return []
    if len(calls) >= _MOST_CALLS:
        return []  # there may be more
    return [
        SinglePrecisionEdit(file=c.location.file, line=c.location.line, callee=c.name)
        for c in calls
    ]


def _are_images(tensor: TensorFacts | None) -> bool:
    return tensor is not None and tensor.is_floating and len(tensor.sizes) == _OF_IMAGES


def on_images(recording: Recording, method: str) -> list[Edit]:
    """Return edits that chain a method to models' images, but to those of one pixel (noise)."""
    edits: list[Edit] = []
    for model in _trained(recording):
        call = model.call
        if call is None or not model.input_tensors:
            return []
        first = [tensors[0] if tensors else None for tensors in model.input_tensors]
        if not all(map(_are_images, first)):
            return []
        if all(tensor.sizes[2:] == [1, 1] for tensor in first if tensor is not None):
            continue
        place = call.location
        edits.append(InputEdit(file=place.file, line=place.line, callee=call.name, method=method))
    return edits
