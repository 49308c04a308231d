"""Large layers have sizes that are no multiple of 8.

## What it means
A GPU's tensor cores work on tiles. A layer of 50257 or 1001 columns is padded inside the kernel, or
handed to a slower one. The next multiple of 8 (64 on an A100 and later) takes less time.

## How it is measured
After the profiler window, torchdoctor times products and convolutions of uneven sizes alone, beside
padded ones, on the device that the program trains on. The lower end of the interval counts, and the
saving must be at least 1 % of the step. If nothing could be timed, the sizes of linear layers count
(both sides 64 and more), on a GPU whose tensor cores are in use.

## Not to be confused with
The number of classes of a small head: its product takes no time.
"""

from dataclasses import asdict

from torchdoctor.queries.arithmetic import PaddingGain, padding_gains
from torchdoctor.queries.hardware import compute_capability
from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    ModelFacts,
    Recording,
    Symptom,
    Symptoms,
    fact,
    on_gpu,
    process,
)

_NAMED = 4  # layers


def _examine(recording: Recording) -> Symptoms:
    gains = padding_gains(recording)
    if worthwhile := [gain for gain in gains if gain.worthwhile]:
        shares = [gain.step_share for gain in worthwhile if gain.step_share is not None]
        yield Symptom(
            share=min(sum(shares), 1.0) if shares else None,
            evidence=[padded(gain) for gain in worthwhile],
            severity="advice",
        )
    elif not gains and (models := _with_odd_sizes(recording)):  # not timed, but likely
        layers = [asdict(layer) for model in models for layer in model.uneven_linears]
        yield Symptom(
            evidence=fact("no-multiples", layers=layers[:_NAMED]),
            location=models[0].location,
            severity="advice",
        )


def padded(gain: PaddingGain) -> Evidence:
    """Return the figures of a product that was timed padded."""
    product = gain.product
    speedup = gain.speedup
    return fact(
        "padded",
        padded_sizes=[asdict(size) for size in product.padded_sizes],
        gain=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        operator=product.operator,
        sizes=product.sizes,
        precision=product.precision,
    )


def _with_odd_sizes(recording: Recording) -> list[ModelFacts]:
    """Return the models with large uneven layers, if tensor cores are in use."""
    models = [model for model in training_models(recording) if model.uneven_linears]
    if not recording.has_gpu or (compute_capability(recording) or (0, 0)) < (7, 0):
        return []
    low = any(m.autocast_forwards or set(m.dtypes) & {"bfloat16", "float16"} for m in models)
    return models if low or recording.main.flags.matmul_tf32 else []


ON_A100 = on_gpu("A100", compute_capability="8.0")
MODEL = {
    "ident": 0,
    "forwards": 60,
    "device": "cuda:0",
    "dtypes": ["bfloat16"],
    "uneven_linears": [{"name": "head", "inputs": 768, "outputs": 50257}],
}
PADDED = {
    "operator": "aten::mm",
    "sizes": "[512, 128], [128, 1001]",
    "padded_sizes": [{"dimension": "columns", "size": 1001, "padded": 1008}],
    "precision": "float32",
    "device": "cpu",
    "calls_per_step": 3.0,
    "alone_s": 0.001,
    "speedups": [1.3, 1.32, 1.28, 1.31],
}
NO_GAIN = {**PADDED, "speedups": [0.98, 1.01, 1.0, 1.02]}
CHECK = CheckSpec(
    branch="gpu",
    threshold=8,
    unit="elements, of which sizes are to be multiples",
    source="NVIDIA, Matrix Multiplication Background: multiples of 16 bytes (8 halves)",
    sentences={
        "padded": "{padded_sizes:each padded-size}: {gain:.2f}x ({low:.2f}-{high:.2f}) measured "
        "alone, {operator} of {sizes} in {precision}.",
        "padded-size": "{dimension} {size} -> {padded}",
        "no-multiples": "No multiples of 8: {layers:each layer|; }.",
        "layer": "{name}: Linear {inputs} -> {outputs}",
    },
    examine=_examine,
    fires=[{**ON_A100, **process(models=[MODEL])}, process(padded_products=[PADDED])],
    quiet=[
        # Timed, and found to gain nothing: whatever the sizes would let one expect.
        {**ON_A100, **process(models=[MODEL], padded_products=[NO_GAIN])},
        process(padded_products=[{**PADDED, "alone_s": 1e-6}]),
        process(models=[{**MODEL, "device": "cpu"}]),
        {**ON_A100, **process(models=[{**MODEL, "uneven_linears": []}])},
    ],
)
