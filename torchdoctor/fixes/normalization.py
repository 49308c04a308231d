"""Normalize the inputs, and normalize between convolutions.

What it does
------------
Nothing at run time. Where the model's first input is far from mean 0 and deviation 1, it gives the
two numbers to subtract and divide by; where a deep convolutional model has no normalization layer,
it says where they go.

Why it helps
------------
Both are about how many steps training needs. With inputs of one scale, and activations that stay at
it, one learning rate suits all layers and can be higher.

Risks
-----
Whoever uses the trained model has to normalize in the same way. Batch normalization behaves
differently in training and evaluation, and suits no batch of one or two.

Make it permanent
-----------------
    transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()

Sources
-------
- LeCun et al., Efficient BackProp (inputs of mean 0 and one scale):
  https://cseweb.ucsd.edu/classes/wi08/cse253/Handouts/lecun-98b.pdf
- Ioffe and Szegedy, Batch Normalization:
  https://arxiv.org/abs/1502.03167
- PyTorch documentation, BatchNorm2d:
  https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

TREATS: tuple[str, ...] = ()
KEEPS_RESULTS = "changes training"
AIM = "training"
WHEN = "by hand"
UNTRIED = "what it does shows over a whole training, not over a few steps."

_FAR = 5.0  # |mean| or deviation above it; below a fifth of 1 as well
_DEEP = 4  # convolutions


def refuses(recording: Recording) -> str | None:
    """Why it is not advised."""
    if not recording.main.analysed_steps:
        return "The model's inputs were not looked at: that needs steps after the profiler window."
    if not _input(recording) and not _deep(recording):
        return "The inputs have about mean 0 and deviation 1, or are token numbers."
    return None


def _input(recording: Recording) -> bool:
    mean, std = recording.main.input_mean, recording.main.input_std
    if mean is None or std is None or std <= 0.0:
        return False
    return abs(mean) > _FAR or std > _FAR or std < 1.0 / _FAR


def _deep(recording: Recording) -> bool:
    from torchdoctor.records.lookup import training_models

    return any(m.conv2d >= _DEEP and not m.norms for m in training_models(recording))


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [{}]


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The numbers, or the layers."""
    lines = []
    if _input(recording):
        mean, std = recording.main.input_mean, recording.main.input_std
        lines.append(f"x = (x - {mean:.3g}) / {std:.3g}  # in the dataset; as the inputs were seen")
    if _deep(recording):
        lines.append("nn.BatchNorm2d(channels) after each convolution, which then needs no bias")
    return "\n".join(lines)


OFFERS: list[tuple[dict[str, Any], str]] = [
    (
        {"processes": [{"pid": 1, "analysed_steps": 6, "input_mean": 127.0, "input_std": 70.0}]},
        "(x - 127) / 70",
    ),
    (
        {
            "processes": [
                {
                    "pid": 1,
                    "analysed_steps": 6,
                    "models": [{"ident": 0, "forwards": 9, "conv2d": 8}],
                }
            ]
        },
        "BatchNorm2d",
    ),
]
REFUSES: list[tuple[dict[str, Any], str]] = [
    ({}, "profiler window"),
    (
        {"processes": [{"pid": 1, "analysed_steps": 6, "input_mean": 0.1, "input_std": 0.9}]},
        "about mean 0",
    ),
]
