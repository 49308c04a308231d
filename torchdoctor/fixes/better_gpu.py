"""What another GPU would give: a prediction, not a measurement.

## What it does
Where kernels fill the step of a GPU whose data sheet is known, it predicts the step on others:
between what their memory bandwidth and what their arithmetic gives.

## Why it helps
Kernels that move data gain with the bandwidth, matrix products with the arithmetic.

## Risks
It is a model of two figures of data sheets. Rent one by the hour and measure before buying.

## Make it permanent
    torchdoctor run train.py        # on both machines, then
    torchdoctor compare here.json there.json

## Sources
- The makers' data sheets, each named in torchdoctor/gpu_data_sheets.py.
- Williams et al., Roofline: https://doi.org/10.1145/1498765.1498785
"""

from typing import Any

from torchdoctor.facts.gpu_data_sheets import DataSheet, data_sheet, sheets
from torchdoctor.words import FixSpec, Recording, Settings, process

_BUSY = 0.8  # of the step in kernels: below, the host is the limit


def refuses(recording: Recording) -> str | None:
    if not recording.has_gpu:
        return "The model trains on the CPU, from which no GPU can be predicted."
    if (recording.shares.gpu or 0.0) < _BUSY:
        return "The GPU does not compute most of the step: a faster one would wait as well."
    here = _sheet(recording)
    if here is None:
        return "The GPU's data sheet is not among those that are known."
    if not _better(here, recording.shares.gpu or 0.0):
        return "No GPU among those that are known is faster."
    return None


def _sheet(recording: Recording) -> DataSheet | None:
    gpus = recording.environment.gpus
    return data_sheet(gpus[0].name) if gpus else None


def _better(here: DataSheet, share: float) -> list[tuple[float, float, str]]:
    """Return the least and greatest gain of GPUs that are faster by both figures, with names."""
    faster = []
    for sheet in sheets():
        arithmetic = (sheet.peak("float16") or 0.0) / (here.peak("float16") or 1.0)
        ratios = sorted((sheet.bandwidth / here.bandwidth, arithmetic))
        if ratios[0] < 1.0:
            continue
        low, high = (1.0 / (1.0 - share + share / ratio) for ratio in ratios)
        if high > 1.05:
            faster.append((low, high, sheet.name))
    return sorted(faster)


def instruction(settings: Settings, recording: Recording) -> str:
    here, share = _sheet(recording), recording.shares.gpu or 0.0
    assert here is not None, "otherwise it is refused"
    lines = [f"# predicted from {share:.0%} of the step in kernels, by data sheets; not measured"]
    for low, high, name in _better(here, share):
        lines.append(f"{name}: {low:.2f}x to {high:.2f}x as fast as {here.name}")
    return "\n".join(lines)


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
    suits=lambda trace: False,
    instruction=instruction,
    offers=[(_on("NVIDIA A100-SXM4-80GB"), "H100 SXM: 1.64x to 3.17x")],
    refusals=[
        ({}, "CPU"),
        (_on("NVIDIA A100-SXM4-80GB", gpu=0.4), "most of the step"),
        (_on("NVIDIA B200"), "No GPU"),
        (_on("Odd Card"), "not among"),
    ],
)
