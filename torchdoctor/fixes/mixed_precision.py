"""Compute the forward pass in 16 bits where that is safe (autocast).

## What it does
Puts each training forward pass and its loss under `torch.autocast`: in bfloat16 if the hardware has
it, in float16 on GPUs with tensor cores for float16 alone (V100, T4). Matrix products and
convolutions compute in 16 bits; softmax, normalization and losses stay in float32, and so do
parameters, gradients and the optimizer. Evaluation is left as it is.

With float16 the loss is scaled as `torch.amp.GradScaler` does it. In the trial, gradients are
divided by the scale as soon as a backward pass has ended, so that clipping sees them as they are.

## Why it helps
Tensor cores, and the AMX and AVX-512 BF16 units of newer processors, multiply 16-bit numbers
several times as fast as float32. Activations take half the memory, which speeds up the rest too.

## Risks
bfloat16 has 8 significant bits instead of 24, float16 has 11 and overflows above 65504: losses
differ in the third digit from the first step on. Most networks train to the same quality; compare
your validation metric once. NumPy has no bfloat16: call `.float()` before handing activations to
it. float16 is refused if the program scales gradients itself, differentiates them again, trains
without an optimizer, or computes gradients within the optimizer's step.

## Make it permanent
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):   # or "cpu"
        output = model(x)
        loss = criterion(output, y)
    loss.backward()                                                  # outside

and with `dtype=torch.float16`, in place of `loss.backward()` and `optimizer.step()`:

    scaler = torch.amp.GradScaler("cuda")                            # once
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)                                       # before clipping, if any
    scaler.step(optimizer)
    scaler.update()

## Sources
- PyTorch, Automatic Mixed Precision: https://docs.pytorch.org/docs/stable/amp.html
"""

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import trainer_call
from torchdoctor.edits.training import around_forward, with_scaler
from torchdoctor.queries.hardware import compute_capability, has_bf16_instructions, low_precision
from torchdoctor.queries.lookup import multiplies_float32, training_models
from torchdoctor.queries.touched import (
    cpu_precision_ratio,
    moved_in_half,
    precision_ratio,
    products,
    products_on_cpu,
    several,
)
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, Touches, fact

_LEAST_CAPABILITY = (7, 0)  # the first compute capability with tensor cores: for float16


def refuses(recording: Recording) -> Evidence | None:
    models = training_models(recording)
    if recording.processes and not models:
        return fact("no-forward-pass")
    if models and all(m.autocast_forwards for m in models):
        return fact("autocast-already")
    if any({"bfloat16", "float16"} & set(m.dtypes) for m in models):
        return fact("in-16-bits-already")
    if models and all(m.dtypes == ["float64"] for m in models):
        return fact("in-float64")
    capability = compute_capability(recording)
    if recording.has_gpu and capability is not None and capability < _LEAST_CAPABILITY:
        return fact("no-tensor-cores", capability=list(capability))
    if not recording.has_gpu and has_bf16_instructions(recording) is False:
        return fact("no-bfloat16-instructions")
    return _unscalable(recording) if low_precision(recording) == "float16" else None


def _unscalable(recording: Recording) -> Evidence | None:
    """Return why float16, which needs a gradient scaler, cannot apply."""
    if recording.infers:
        return None
    main = recording.main
    models = recording.main.models
    if main.flags.grad_scaler:
        return fact("scales-gradients-itself")
    if any(m.data_parallel == "FSDP" for m in models):
        return fact("gradients-sharded")
    if recording.processes and not any(optimizer.steps for optimizer in main.optimizers):
        return fact("no-step-to-leave-out")
    if any(optimizer.inside_backwards for optimizer in main.optimizers):
        return fact("step-with-closure")
    return None


def settings(recording: Recording) -> list[Settings]:
    return [{"dtype": low_precision(recording) or "bfloat16"}]


def touches(recording: Recording) -> Touches:
    """Return float32 products, and beside them operators by element, which move half the bytes."""
    if not recording.has_gpu:
        ratio = cpu_precision_ratio(recording)
        # A trace says nothing of the CPU that it is of; of a run only an unusual one is unknown.
        is_cpu_known = ratio is not None or recording.steps is not None
        on_cpu = products_on_cpu(recording, ratio or 0.0) if is_cpu_known else []
        return on_cpu and several(on_cpu, moved_in_half(recording) or [])
    ratio = precision_ratio(recording, "float16")
    float32_products = products(recording, "float32 products", "float32 products", ratio)
    return float32_products and several(float32_products, moved_in_half(recording))


def apply(torch: Any, settings: Settings, program: Any) -> None:
    dtype = getattr(torch, settings.get("dtype", "bfloat16"))
    scales = dtype is torch.float16 and not program.infers
    scaling = program.gradient_scaling() if scales else None

    def autocast(module: Any) -> Any:
        trains = module.training and torch.is_grad_enabled()
        if not (trains or program.infers) or not program.usable:
            return None
        parameter = next(iter(module.parameters()), None)
        device = "cpu" if parameter is None else parameter.device.type
        if device == "cuda" and scaling is None and not torch.cuda.is_bf16_supported():
            program.refuse("no-bfloat16-here")
        if scaling is not None:
            scaling.follow(module)
        program.applied(device=device, dtype=str(dtype))
        return torch.autocast(device_type=device, dtype=dtype)

    def look(module: Any, args: Any, kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
                program.refuse("gradients-of-inputs")

    program.set_reason("no-forward-in-training")
    program.around_forward(autocast, until="backward")
    if scaling is not None:
        program.at("arguments", look)
        scaling.install()


def instruction(settings: Settings, recording: Recording) -> str:
    dtype = settings.get("dtype", "bfloat16")
    if dtype == "bfloat16" and not edits(settings, recording):
        asked = trainer_call(recording, {"bfloat16": True})
        if asked is not None:
            return asked
    return _code(recording, dtype, clips=bool(recording.main.flags.clip_calls))


def _code(recording: Recording, dtype: str, clips: bool) -> str:
    """Return the context around forward and loss, and the scaler that float16 needs."""
    device = "cuda" if recording.has_gpu else "cpu"
    traced = recording.trace
    if traced is not None and traced.platform == "xpu":
        device = "xpu"
    forward = (
        f'with torch.autocast(device_type="{device}", dtype=torch.{dtype}):\n'
        "    output = model(x)\n"
    )
    if recording.infers or (traced is not None and traced.trains is False):
        return f"# or the whole model in 16 bits: model.to(torch.{dtype})\n{forward}".rstrip()
    around = f"{forward}    loss = criterion(output, y)\n"
    if dtype == "bfloat16":
        return f"{around}loss.backward()  # outside the block"
    unscale = "scaler.unscale_(optimizer)  # before gradients are clipped\n" if clips else ""
    return (
        f'scaler = torch.amp.GradScaler("{device}")  # once: float16 gradients underflow\n'
        f"{around}scaler.scale(loss).backward()  # in place of loss.backward(), outside the block\n"
        f"{unscale}scaler.step(optimizer)  # in place of optimizer.step()\n"
        "scaler.update()"
    )


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    dtype = settings.get("dtype", "bfloat16")
    context = f"torch.autocast(device_type={{device}}, dtype=torch.{dtype})"
    around = around_forward(recording, context)
    if dtype == "bfloat16" or not around:
        return around
    scaled = with_scaler(recording)
    return [*around, *scaled] if scaled else []


def advice(recording: Recording) -> str | None:
    capability = compute_capability(recording)
    if capability is not None and capability < _LEAST_CAPABILITY:
        return None
    is_rocm_or_xpu = recording.trace is not None and recording.trace.platform in ("rocm", "xpu")
    if capability is None and recording.has_gpu and not is_rocm_or_xpu:
        older = "# before Ampere (V100, T4): torch.float16, which needs torch.amp.GradScaler\n"
        return older + _code(recording, "bfloat16", clips=False)
    return _code(recording, low_precision(recording) or "bfloat16", clips=True)


FIX = FixSpec(
    name="autocast",
    treats=("compute", "low-precision-unused", "tensor-cores-unused", "memory-near-limit"),
    keeps_results="lower precision",
    when="between steps",
    phases=("forward_s", "backward_s"),
    touches=touches,
    p_helps=0.5,  # gained in 8 of 17 programs of benchmarks/logs
    least_capability=_LEAST_CAPABILITY,
    refuses=refuses,
    sentences={
        "no-tensor-cores": "The GPU (compute capability {capability:list|.}) has no tensor cores: "
        "those for float16 came with 7.0, for bfloat16 with 8.0.",
        "no-forward-pass": "No forward pass of a module was seen to put under autocast.",
        "autocast-already": "The model already runs under autocast.",
        "in-16-bits-already": "The model's own parameters are already in 16 bits.",
        "in-float64": "The model computes in float64, which autocast leaves alone (see "
        "single-precision).",
        "no-bfloat16-instructions": "The processor has no bfloat16 instructions (amx_bf16, "
        "avx512_bf16), so bf16 would be slower than float32.",
        "gradients-sharded": "The gradients are sharded (FSDP), whose overflow no rank sees alone.",
        "no-step-to-leave-out": "float16 needs a gradient scaler, and there is no optimizer step "
        "to leave out.",
        "step-with-closure": "float16 needs a gradient scaler, which cannot leave out a step with "
        "a closure.",
        "no-bfloat16-here": "The GPU does not compute in bfloat16.",
        "gradients-of-inputs": "Gradients of the inputs are asked for, which would stay scaled.",
        "no-forward-in-training": "No forward pass in training mode was seen.",
    },
    settings=settings,
    suits=lambda trace: not trace.has_device or multiplies_float32(trace),
    platforms=("cuda", "rocm", "xpu"),
    apply=apply,
    advice=advice,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
x = torch.randn(4, 8)
(model(x) ** 2).mean().backward()
output = model(x)
print("training forward:", output.dtype, "gradient:", model.weight.grad.dtype)
(output.float() ** 2).mean().backward()
model.eval()
print("evaluation:", model(x).dtype)
""",
        settings={"dtype": "bfloat16"},
        without="""training forward: torch.float32 gradient: torch.float32
evaluation: torch.float32""",
        with_fix="""training forward: torch.bfloat16 gradient: torch.float32
evaluation: torch.float32""",
    ),
)
