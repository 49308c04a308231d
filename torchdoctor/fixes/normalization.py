"""Normalize the inputs, and normalize between convolutions.

## What it does
If the model's first input is far from mean 0 and deviation 1, the fix gives the numbers to subtract
and divide by, for each channel of images and each column of tables. If a deep convolutional model
has no normalization layer, it says where they go. In a trial launch the batches are normalized
before the model sees them, and losses are compared. Layers cannot be put into a running program.

## Why it helps
Both change how many steps training needs. With inputs and activations of one scale, one learning
rate suits all layers and can be higher.

## Risks
Whoever uses the trained model has to normalize in the same way. Batch normalization behaves
differently in training and evaluation, and suits no batch of one or two.

## Make it permanent
    transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()

## Sources
- Ioffe and Szegedy, Batch Normalization: https://arxiv.org/abs/1502.03167
"""

from typing import Any

from torchdoctor.facts.lookup import training_loaders, training_models
from torchdoctor.words import Example, FixSpec, Recording, Settings, TrainingAdvice, process

_FAR = 5.0  # |mean| or deviation above it; below a fifth of 1 as well
_DEEP = 4  # convolutions
_MOST_SHOWN = 8  # channels


def refuses(recording: Recording) -> str | None:
    main = recording.main
    if not main.analysed_steps:
        return "The model's inputs were not examined: that needs steps after the profiler window."
    if _input(recording) or _deep(recording):
        return None
    if main.input_mean is None or main.input_std is None:
        return "The model's first input has no mean: it is token numbers, or no tensor was seen."
    return (
        f"The inputs have mean {main.input_mean:.2g} and deviation {main.input_std:.2g}: within "
        f"what is passed over (|mean| up to {_FAR:g}, deviation {1 / _FAR:g} to {_FAR:g}, or 0)."
    )


def _input(recording: Recording) -> bool:
    mean, std = recording.main.input_mean, recording.main.input_std
    far = mean is not None and std is not None and (abs(mean) > _FAR or not 1 / _FAR <= std <= _FAR)
    return far and std != 0.0


def _deep(recording: Recording) -> bool:
    return any(m.conv2d >= _DEEP and not m.norms for m in training_models(recording))


def settings(recording: Recording) -> list[Settings]:
    if not _input(recording):
        return [{}]
    whole = (recording.main.input_mean or 0.0, recording.main.input_std or 1.0)
    means, stds = zip(*(_channels(recording) or [whole]), strict=True)
    return [{"mean": list(means), "std": list(stds)}]


def _channels(recording: Recording) -> list[tuple[float, float]]:
    """Return mean and deviation by channel; a channel that is always the same is only shifted."""
    channels = recording.main.input_channels
    if not all(abs(m) < float("inf") and s < float("inf") for m, s in channels):
        return []
    return [(float(f"{m:.3g}"), float(f"{s:.3g}") if s > 0 else 1.0) for m, s in channels]


def untriable(recording: Recording) -> str | None:
    if not _input(recording):
        return "Batch normalization between convolutions cannot be put into a program that runs."
    if len(training_models(recording)) > 1:
        return "The program trains several models, whose inputs are each other's outputs."
    if not training_loaders(recording):
        return "Without a DataLoader the first batch is used before a trial knows the model."
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    known: dict[tuple[Any, ...], Any] = {}

    def constants(x: Any) -> Any:
        key = (x.device, x.dtype, x.dim())
        if key not in known:
            shape = [1, -1] + [1] * (x.dim() - 2) if len(settings["mean"]) > 1 else [1] * x.dim()
            known[key] = [
                torch.tensor(settings[name], dtype=x.dtype, device=x.device).reshape(shape)
                for name in ("mean", "std")
            ]
        return known[key]

    def normalized(x: Any) -> Any:
        if not x.is_floating_point():
            program.refuse("The inputs are whole numbers, which the model itself converts.")
        if len(settings["mean"]) > 1 and (x.dim() < 2 or x.shape[1] != len(settings["mean"])):
            program.refuse("The inputs have not always the same channels.")
        mean, deviation = constants(x)
        return (x - mean) / deviation

    def change(module: Any, args: Any, kwargs: Any) -> Any:
        inputs = dict(enumerate(args)) | kwargs
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                inputs[name] = normalized(value)
                program.applied()
                return tuple(inputs[n] for n in range(len(args))), {n: inputs[n] for n in kwargs}
        return None

    program.set_reason("No model was called with a tensor.")
    program.at("arguments", change)


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    if _input(recording):
        mean, std = recording.main.input_mean, recording.main.input_std
        lines.append(f"x = (x - {mean:.3g}) / {std:.3g}  # in the dataset; as the inputs were seen")
        if 1 < len(channels := _channels(recording)) <= _MOST_SHOWN:
            means, stds = ([f"{x:g}" for x in column] for column in zip(*channels, strict=True))
            lines.append(f"# by channel: mean [{', '.join(means)}], std [{', '.join(stds)}]")
    if _deep(recording):
        lines.append("nn.BatchNorm2d(channels)  # after each convolution, which then needs no bias")
    return "\n".join(lines)


FIX = FixSpec(
    name="normalization",
    also_known_as=("input-normalization", "batch-normalization"),
    keeps_results="changes training",
    refuses=refuses,
    settings=settings,
    apply=apply,
    instruction=instruction,
    training=TrainingAdvice(
        costs=(
            "whoever uses the trained model has to normalize in the same way; batch normalization "
            "behaves differently in evaluation and suits no batch of one or two."
        ),
        untriable=untriable,
    ),
    offers=[
        (process(analysed_steps=6, input_mean=127.0, input_std=70.0), "(x - 127) / 70"),
        (
            process(analysed_steps=6, models=[{"ident": 0, "forwards": 9, "conv2d": 8}]),
            "BatchNorm2d",
        ),
    ],
    refusals=[
        ({}, "profiler window"),
        (
            process(analysed_steps=6, input_mean=0.242, input_std=0.219),
            "mean 0.24 and deviation 0.22: within what is passed over (|mean| up to 5, deviation",
        ),
        (process(analysed_steps=6), "token numbers"),
    ],
    example=Example(
        code="""
model = torch.nn.Linear(2, 1)
model.register_forward_pre_hook(
    lambda module, args: print([round(value, 3) for value in args[0].flatten().tolist()])
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.tensor([[100.0, 5.0], [140.0, 7.0]]))
for (x,) in torch.utils.data.DataLoader(rows, batch_size=2):
    model(x).sum().backward()
    optimizer.step()
""",
        settings={"mean": [120.0, 6.0], "std": [20.0, 2.0]},
        without="[100.0, 5.0, 140.0, 7.0]",
        with_fix="[-1.0, -0.5, 1.0, 0.5]",
    ),
)
