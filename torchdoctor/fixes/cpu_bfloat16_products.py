"""Let the CPU multiply float32 matrices by its bfloat16 units.

## What it does
Allows oneDNN to round the factors of float32 matrix products and convolutions to bfloat16, once
training begins (`torch.set_float32_matmul_precision("medium")`, and
`torch.backends.mkldnn` where torch has it). Weights, activations and sums stay in float32.

## Why it helps
CPUs with AMX or AVX-512 BF16 multiply bfloat16 several times as fast, here without conversions.

## Risks
Factors keep 8 bits of their mantissa: less than TF32 on a GPU, the same as bfloat16 autocast.

## Make it permanent
    torch.set_float32_matmul_precision("medium")

## Sources
- oneDNN, Math Mode: https://uxlfoundation.github.io/oneDNN/dev_guide_attributes_fpmath_mode.html
"""

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import on_top
from torchdoctor.queries.hardware import has_bf16_instructions
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import cpu_precision_ratio, products_on_cpu
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact

_STATEMENT = 'torch.set_float32_matmul_precision("medium")'


def refuses(recording: Recording) -> Evidence | None:
    if recording.has_gpu:
        return fact("model-on-gpu")
    if not has_bf16_instructions(recording):
        return fact("bfloat16-not-known")
    models = training_models(recording)
    if models and not any("float32" in model.dtypes for model in models):
        return fact("not-in-float32")
    if models and all(model.autocast_forwards for model in models):
        return fact("autocast-already")
    if recording.main.flags.environment.get("ONEDNN_DEFAULT_FPMATH_MODE", "").upper() == "BF16":
        return fact("asked-for-already")
    return None


def touches(recording: Recording) -> Touches:
    """Return the products; nothing where the CPU is not known to have such units."""
    ratio = cpu_precision_ratio(recording)
    return [] if ratio is None else products_on_cpu(recording, ratio)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    before: list[Any] = []
    conv: Any = getattr(torch.backends.mkldnn, "conv", None)  # a switch of its own in newer torch

    def allow() -> None:
        before[:] = [torch.get_float32_matmul_precision(), getattr(conv, "fp32_precision", None)]
        torch.set_float32_matmul_precision("medium")
        if hasattr(conv, "fp32_precision"):
            conv.fp32_precision = "bf16"
        program.applied(precision=torch.get_float32_matmul_precision())

    def restore() -> None:
        if before:
            torch.set_float32_matmul_precision(before[0])
            if before[1] is not None:
                conv.fp32_precision = before[1]
            before.clear()

    program.set_reason("training-did-not-begin")
    program.at_first_batch(allow, restore)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return the call after the imports; not where convolutions were switched too."""
    convolves = any(model.conv2d for model in training_models(recording))
    return [] if convolves else on_top(recording, _STATEMENT)


FIX = FixSpec(
    name="bfloat16 products on the CPU",
    treats=("low-precision-unused", "compute"),
    keeps_results="lower precision",
    phases=("forward_s", "backward_s"),
    when="between steps",
    touches=touches,
    p_helps=0.4,  # gained in 7 of 16 programs of benchmarks/logs
    refuses=refuses,
    sentences={
        "model-on-gpu": "The model is on a GPU; tf32 is the like of it there.",
        "bfloat16-not-known": "The CPU is not known to have bfloat16 instructions.",
        "not-in-float32": "The model is not in float32.",
        "autocast-already": "The forward pass runs under autocast already.",
        "asked-for-already": "ONEDNN_DEFAULT_FPMATH_MODE=BF16 asks for it already.",
    },
    suits=lambda trace: not trace.has_device,
    apply=apply,
    instruction=lambda settings, recording: f"{_STATEMENT}  # after the imports",
    edits=edits,
    example=Example(
        code="""
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.ones(8, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    loss = model(x).sum()
    loss.backward()
print(torch.get_float32_matmul_precision(), loss.dtype, model.weight.grad.dtype)
""",
        without="highest torch.float32 torch.float32",
        with_fix="medium torch.float32 torch.float32",
    ),
)
