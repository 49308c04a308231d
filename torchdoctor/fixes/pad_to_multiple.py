"""Pad the sizes of large layers, of the vocabulary and of the batch to multiples of 8.

## What it does
Times the largest matrix products and convolutions of uneven size alone on the program's device,
beside the same ones padded. It names the layers whose sizes are no multiple of 8, the next size
that is, and the measured gain. Training stays untouched.

## Why it helps
Tensor cores work on tiles of 8 or 16 by 16 numbers of 16 bits. A product whose rows do not begin at
a multiple of 16 bytes takes another kernel, which can be several times slower. A CPU handles uneven
sizes well and mostly gains nothing.

## Risks
The model has other shapes: checkpoints do not load without change, and initial random weights
differ. Unused classes of a vocabulary have to stay unused (mask their logits).

## Make it permanent
    size = 8 * -(-size // 8)           # 50257 -> 50264; 64 on A100 and later: 50304
    model = GPT(vocab_size=size)
    # a sequence: pad each batch to such a length where it is collated, and mask what was added

## Sources
- NVIDIA, Matrix Multiplication Background User's Guide:
  https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
"""

from dataclasses import replace

from torchdoctor.checks import odd_sizes, sizes_not_multiples
from torchdoctor.queries.arithmetic import padding_gains
from torchdoctor.queries.hardware import compute_capability
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import uneven_products
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, process

_NAMED = 3


def refuses(recording: Recording) -> Evidence | None:
    timed = padding_gains(recording)
    if timed and not any(product.worthwhile for product in timed):
        return replace(odd_sizes.padded(timed[0]), fact="padding-gains-too-little")
    if timed:
        return None
    if not recording.has_gpu:
        return fact("model-on-cpu")
    if not (odd_sizes.CHECK.findings(recording) or sizes_not_multiples.CHECK.findings(recording)):
        return fact("no-odd-sizes")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    tile = 64 if (compute_capability(recording) or (0, 0)) >= (8, 0) else 8
    lines = [product.text for product in padding_gains(recording) if product.worthwhile]
    if not recording.has_gpu:
        return "\n".join(lines)
    for model in training_models(recording):
        for layer in model.uneven_linears:
            inputs, outputs = (tile * -(-size // tile) for size in (layer.inputs, layer.outputs))
            sizes = f"{layer.inputs} -> {layer.outputs}  to  {inputs} -> {outputs}"
            lines.append(f"{layer.name}: Linear {sizes}")
    return "\n".join(lines)


def advice(recording: Recording) -> str:
    """Return advice for traces, which know sizes but not the variables they come from."""
    work = recording.trace.matrix_work if recording.trace else None
    advice_by_size: dict[tuple[str, int, int], str] = {}
    for product in work.products if work else []:
        for odd in product.uneven:
            advice_by_size.setdefault((odd.dimension, odd.size, odd.multiple), product.operator)
    changed = "the model" if recording.trace and recording.trace.trains is False else "training"
    lines = [f"# It changes {changed} where it gives layers other shapes."]
    for (dimension, size, multiple), operator in list(advice_by_size.items())[:_NAMED]:
        full = multiple * -(-size // multiple)
        lines.append(f"# {operator}, {dimension}: {size} -> {full}. {_origin(operator, dimension)}")
        lines.append(f"size = {multiple} * -(-size // {multiple})")
    return "\n".join(lines)


def _origin(operator: str, dimension: str) -> str:
    """Return what such a size mostly is."""
    if "bmm" in operator or "attention" in operator:
        return "The length of a sequence (pad batches, mask what is added), or an attention head."
    if "channels" in dimension:
        return "The channels of a convolution: set them where the layer is made."
    if dimension == "rows":
        return "The rows of a layer's input: the batch, or its tokens (mask what is added)."
    return "The size of a layer, of the classes or the vocabulary."


_MODEL = odd_sizes.MODEL

FIX = FixSpec(
    name="sizes in multiples of 8",
    treats=("odd-sizes", "sizes-not-multiples"),
    keeps_results="changes training",
    touches=uneven_products,
    untried="only its source can give it other shapes: its products are timed alone.",
    refuses=refuses,
    sentences={
        "padding-gains-too-little": "Padded, the program's own products are not seen to gain "
        "enough: {padded_sizes:each padded-size}: {gain:.2f}x ({low:.2f} to {high:.2f}) measured "
        "alone, {operator} of {sizes} in {precision}.",
        "padded-size": "{dimension} {size} -> {padded}",
        "model-on-cpu": "The model is on the CPU, which has no tiles to fill.",
        "no-odd-sizes": "No large layer has a size that tensor cores are slow with.",
    },
    platforms=("cuda",),
    advice=advice,
    instruction=instruction,
    offers=[
        ({**process(models=[_MODEL]), **odd_sizes.ON_A100}, "768 -> 50304"),
        (
            process(models=[_MODEL], padded_products=[odd_sizes.PADDED]),
            "columns 1001 -> 1008: 1.30x (1.28 to 1.33) measured alone",
        ),
    ],
    refusals=[
        (process(models=[{**_MODEL, "device": "cpu"}]), "model-on-cpu"),
        (process(models=[{**_MODEL, "uneven_linears": []}]), "no-odd-sizes"),
        (
            process(models=[_MODEL], padded_products=[odd_sizes.NO_GAIN]),
            "padding-gains-too-little",
        ),
    ],
)
