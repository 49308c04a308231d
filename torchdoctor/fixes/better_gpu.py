"""Measure the program on another GPU.

## What it does
Where kernels fill the step of a GPU, it gives the commands that compare two machines. Nothing is
predicted: no data sheet knows how well a program's kernels use a GPU.

## Why it helps
Kernels that move data gain with a GPU's memory bandwidth, matrix products with its arithmetic.

## Risks
A faster GPU waits for the same host and the same data loader. Rent one by the hour and measure
before buying.

## Make it permanent
    torchdoctor run train.py        # on both machines, then
    torchdoctor compare here.json there.json

## Sources
- Williams et al., Roofline: https://doi.org/10.1145/1498765.1498785
"""

from typing import Any

from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, process

_BUSY = 0.8  # of the step in kernels: below, the host is the limit
_COMPARED = """\
torchdoctor run train.py        # on both machines, then
torchdoctor compare here.json there.json"""


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("no-gpu")
    if (recording.shares.gpu or 0.0) < _BUSY:
        return fact("gpu-not-the-limit")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    return _COMPARED


def _on(name: str, gpu: float = 1.0) -> dict[str, Any]:
    model = {"ident": 0, "device": "cuda:0", "forwards": 9}
    machine = {"environment": {"gpus": [{"index": 0, "name": name}]}, "shares": {"gpu": gpu}}
    return {**process(models=[model]), **machine}


FIX = FixSpec(
    name="another GPU",
    treats=("compute",),
    keeps_results="within rounding",
    untried="it needs the other GPU.",
    no_bound="It is about a GPU that was not recorded.",
    refuses=refuses,
    sentences={
        "no-gpu": "The model is on the CPU, and not on a GPU.",
        "gpu-not-the-limit": "The GPU does not compute most of the step: a faster one would wait "
        "as well.",
    },
    suits=lambda trace: False,
    instruction=instruction,
    offers=[(_on("NVIDIA A100-SXM4-80GB"), "torchdoctor compare")],
    refusals=[
        ({}, "no-gpu"),
        (_on("NVIDIA A100-SXM4-80GB", gpu=0.4), "gpu-not-the-limit"),
    ],
)
