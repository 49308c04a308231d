"""Compute the forward pass in bfloat16 where that is safe (autocast).

What it does
------------
Puts each training forward pass, and the loss that follows it, under
`torch.autocast(dtype=torch.bfloat16)`, until the backward pass begins. Matrix products and
convolutions then compute in bfloat16; softmax, normalization, losses and everything else that
needs the range or the digits stay in float32. Parameters, gradients and the optimizer stay in
float32 too. Evaluation is left as it is.

Why it helps
------------
Tensor cores (and the AMX and AVX-512 BF16 units of newer processors) multiply bfloat16 numbers
several times faster than float32 ones, and activations take half the memory, so memory-bound work
is faster as well. bfloat16 has the exponent range of float32, so gradients do not underflow and
no gradient scaler is needed, unlike with float16.

Risks
-----
bfloat16 has 8 significant bits instead of 24: losses differ in the third digit from the first step
on. Most networks train to the same quality; compare your validation metric once. Code between
forward and backward that hands activations to NumPy fails, because NumPy has no bfloat16: call
`.float()` there. Where the processor has no bfloat16 instructions it would be slower, and it is
refused.

Make it permanent
-----------------
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):   # or "cpu"
        output = model(x)
        loss = criterion(output, y)
    loss.backward()                                                  # outside

Sources
-------
- PyTorch documentation, Automatic Mixed Precision package, torch.amp (which operators are cast):
  https://docs.pytorch.org/docs/stable/amp.html
- Micikevicius et al., "Mixed Precision Training", ICLR 2018: https://arxiv.org/abs/1710.03740
- Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019:
  https://arxiv.org/abs/1905.12322
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.edits import Edit
    from torchdoctor.records import Recording, TraceStatistics

TREATS = ("compute", "low-precision-unused", "memory-near-limit")
KEEPS_RESULTS = "lower precision"
WHEN = "between steps"

_LOW = ("bfloat16", "float16")
CAPABILITY = (8, 0)  # the first compute capability with bfloat16 tensor cores


def refuses(recording: Recording) -> str | None:
    """Why bfloat16 cannot apply or would be slower."""
    from torchdoctor.records.lookup import training_models

    models = training_models(recording)
    if recording.processes and not models:
        return "No forward pass of a module in training mode was seen to put under autocast."
    if models and all(m.autocast_forwards for m in models):
        return "The model already runs under autocast."
    if any(name in m.dtypes for m in models for name in _LOW):
        return "The model's own parameters are already in 16 bits."
    if models and all(m.dtypes == ["float64"] for m in models):
        return "The model computes in float64, which autocast leaves alone."
    return _hardware(recording)


def _hardware(recording: Recording) -> str | None:
    from torchdoctor.records.lookup import compute_capability, has_bf16_instructions

    if recording.has_gpu:
        capability = compute_capability(recording)
        if capability is not None and capability < CAPABILITY:
            return (
                f"The GPU (compute capability {capability[0]}.{capability[1]}) has no bfloat16 "
                "tensor cores: they came with 8.0."
            )
        return None
    if has_bf16_instructions(recording) is False:
        return (
            "The processor has no bfloat16 instructions (amx_bf16, avx512_bf16), so bf16 would "
            "be slower than float32."
        )
    return None


def suits(trace: TraceStatistics) -> bool:
    """It helps matrix products that do not run on tensor cores yet."""
    return (trace.tensor_core_share or 0.0) < 0.5


def settings(recording: Recording) -> list[dict[str, Any]]:
    """bfloat16."""
    return [{"dtype": "bfloat16"}]


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Autocast from each training forward until the backward pass."""
    dtype = getattr(torch, settings.get("dtype", "bfloat16"))

    def autocast(module: Any) -> Any:
        if not module.training or not torch.is_grad_enabled():
            return None
        parameter = next(iter(module.parameters()), None)
        device = "cpu" if parameter is None else parameter.device.type
        if device == "cuda" and not torch.cuda.is_bf16_supported():
            program.refuse("The GPU does not compute in bfloat16.")
        program.applied(device=device, dtype=str(dtype))
        return torch.autocast(device_type=device, dtype=dtype)

    program.set_reason("No forward pass in training mode came by.")
    program.around_forward(autocast, until="backward")


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The context to open around forward and loss, or what asks the program's Trainer for it."""
    from torchdoctor.edits.trainers import trainer_call
    from torchdoctor.records.lookup import place, training_models

    asked = trainer_call(recording, {"bfloat16": True})
    if asked is not None and not edits(settings, recording):
        return asked
    device = "cuda" if recording.has_gpu else "cpu"
    models = training_models(recording)
    held = models[0].holder if len(models) == 1 else None
    if held is not None and any(one.library for one in recording.main.passes):
        # An engine calls the model and computes the loss: what is reached from outside is forward.
        return (
            f'autocast = torch.autocast(device_type="{device}", dtype=torch.bfloat16)\n'
            f"{held.name}.forward = autocast({held.name}.forward)"
            f"  # before {place(recording, held.location, '')}; the loss stays in float32"
        )
    return (
        f'with torch.autocast(device_type="{device}", dtype=torch.bfloat16):\n'
        "    ...  # the forward pass and the loss of the training step\n"
        "loss.backward()  # outside the block"
    )


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """The same as a source edit; empty where forward and backward are not in one function."""
    from torchdoctor.edits.training import around_forward

    dtype = settings.get("dtype", "bfloat16")
    context = f"torch.autocast(device_type={{device}}, dtype=torch.{dtype})"
    return around_forward(recording, context)


EXAMPLE = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
x = torch.randn(4, 8)
(model(x) ** 2).mean().backward()
output = model(x)
print("training forward:", output.dtype, "gradient:", model.weight.grad.dtype)
(output.float() ** 2).mean().backward()
model.eval()
print("evaluation:", model(x).dtype)
"""
EXAMPLE_SETTINGS = {"dtype": "bfloat16"}
EXAMPLE_WITHOUT = """training forward: torch.float32 gradient: torch.float32
evaluation: torch.float32"""
EXAMPLE_WITH = """training forward: torch.bfloat16 gradient: torch.float32
evaluation: torch.float32"""
