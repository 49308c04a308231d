"""Normalize the inputs, and normalize between convolutions.

## What it does
If the model's first input is far from mean 0 and deviation 1, the fix gives the numbers to subtract
and divide by, for each channel of images and each column of tables. If a deep convolutional model
has no normalization layer, it says where they go.

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

from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, TrainingAdvice, fact, process

_FAR = 5.0  # |mean| or deviation above it; below a fifth of 1 as well
_DEEP = 4  # convolutions
_MOST_SHOWN = 8  # channels


def refuses(recording: Recording) -> Evidence | None:
    main = recording.main
    if not main.analysed_steps:
        return fact("inputs-unexamined")
    if _input(recording) or _deep(recording):
        return None
    if main.input_mean is None or main.input_std is None:
        return fact("inputs-without-mean")
    return fact(
        "normal-enough",
        mean=main.input_mean,
        deviation=main.input_std,
        most=_FAR,
        least=1 / _FAR,
    )


def _input(recording: Recording) -> bool:
    mean = recording.main.input_mean
    std = recording.main.input_std
    far = mean is not None and std is not None and (abs(mean) > _FAR or not 1 / _FAR <= std <= _FAR)
    return far and std != 0.0


def _deep(recording: Recording) -> bool:
    return any(m.conv2d >= _DEEP and not m.norms for m in training_models(recording))


def _channels(recording: Recording) -> list[tuple[float, float]]:
    """Return mean and deviation by channel; a channel that is always the same is only shifted."""
    channels = recording.main.input_channels
    if not all(abs(m) < float("inf") and s < float("inf") for m, s in channels):
        return []
    return [(float(f"{m:.3g}"), float(f"{s:.3g}") if s > 0 else 1.0) for m, s in channels]


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    if _input(recording):
        mean = recording.main.input_mean
        std = recording.main.input_std
        lines.append(f"x = (x - {mean:.3g}) / {std:.3g}  # in the dataset; as the inputs were seen")
        if 1 < len(channels := _channels(recording)) <= _MOST_SHOWN:
            means, stds = (
                [f"{value:g}" for value in column] for column in zip(*channels, strict=True)
            )
            lines.append(f"# by channel: mean [{', '.join(means)}], std [{', '.join(stds)}]")
    if _deep(recording):
        lines.append("nn.BatchNorm2d(channels)  # after each convolution, which then needs no bias")
    return "\n".join(lines)


FIX = FixSpec(
    name="normalization",
    also_known_as=("input-normalization", "batch-normalization"),
    keeps_results="changes training",
    untried="a short run does not show whether a model trains better.",
    refuses=refuses,
    sentences={
        "normal-enough": "The inputs have mean {mean:.2g} and deviation {deviation:.2g}: within "
        "what is passed over (|mean| up to {most:g}, deviation {least:g} to {most:g}, or 0).",
        "inputs-unexamined": "The model's inputs were not examined: that needs steps after the "
        "profiler window.",
        "inputs-without-mean": "The model's first input has no mean: it is token numbers, or no "
        "tensor was seen.",
    },
    instruction=instruction,
    training=TrainingAdvice(
        costs=(
            "whoever uses the trained model has to normalize in the same way; batch normalization "
            "behaves differently in evaluation and suits no batch of one or two."
        ),
    ),
    offers=[
        (process(analysed_steps=6, input_mean=127.0, input_std=70.0), "(x - 127) / 70"),
        (
            process(analysed_steps=6, models=[{"ident": 0, "forwards": 9, "conv2d": 8}]),
            "BatchNorm2d",
        ),
    ],
    refusals=[
        ({}, "inputs-unexamined"),
        (
            process(analysed_steps=6, input_mean=0.242, input_std=0.219),
            "normal-enough",
        ),
        (process(analysed_steps=6), "inputs-without-mean"),
    ],
)
