"""Infer with weights in bfloat16, on CPUs that compute in it.

## What it does
Rounds parameters and buffers in float32 to bfloat16 once, and what the model is called with at each
call; its output is float32 again, so that the code behind it stays as it is.

## Why it helps
CPUs with AMX or AVX-512 BF16 multiply bfloat16 several times as fast, and weights of half the size
are read in half the time. Autocast converts the weights again in each call.

## Risks
Weights and activations keep 8 significant bits: outputs differ in the third digit, and close
decisions may turn. The share of decisions that agree is measured. It is refused on CPUs without
such instructions, where bfloat16 is slower.

## Make it permanent
    model = model.to(torch.bfloat16)
    output = model(x.to(torch.bfloat16)).float()  # integer inputs stay as they are

## Sources
- PyTorch, Module.to: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
- oneDNN, data types: https://uxlfoundation.github.io/oneDNN/dev_guide_data_types.html
"""

from typing import Any

from torchdoctor.queries.hardware import has_bf16_instructions
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import phases
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    Recording,
    Settings,
    fact,
    process,
)


def refuses(recording: Recording) -> Evidence | None:
    if not recording.infers:
        return fact("weights-need-float32")
    if recording.has_gpu:
        return fact("model-on-gpu")
    if not has_bf16_instructions(recording):
        return fact("no-bfloat16-instructions")
    models = training_models(recording)
    if not any("float32" in model.dtypes for model in models):
        return fact("no-float32-weights")
    if all(model.autocast_forwards for model in models):
        return fact("autocast-already")
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    half = torch.bfloat16
    single = torch.float32
    hooks: dict[int, Any] = {}  # of modules that were changed
    before: dict[int, list[Any]] = {}  # (tensor, its numbers in float32)

    def cast(value: Any, old: Any, new: Any) -> Any:
        def change(leaf: Any) -> Any:
            is_old = isinstance(leaf, torch.Tensor) and leaf.dtype is old
            return leaf.to(new) if is_old else leaf

        return torch.utils._pytree.tree_map(change, value)

    def round_off(module: Any) -> None:
        parts = [*module.parameters(), *module.buffers()]
        if any(part.device.type != "cpu" for part in parts):
            program.refuse("model-not-on-cpu")
        single_parts = [part for part in parts if part.dtype is single]
        if not single_parts:
            return
        before[id(module)] = [(part, part.data) for part in single_parts]
        for part in single_parts:
            part.data = part.data.to(half)

        def widen(_: Any, __: Any, output: Any) -> Any:
            return cast(output, half, single)

        hooks[id(module)] = module.register_forward_hook(widen)
        program.applied()

    def undo(module: Any) -> None:
        if (hook := hooks.pop(id(module), None)) is not None:
            hook.remove()
            for part, data in before.pop(id(module)):
                part.data = data

    def convert_inputs(module: Any, args: Any, kwargs: Any) -> Any:
        return cast((args, kwargs), single, half) if id(module) in hooks else (args, kwargs)

    program.set_reason("no-float32-model-called")
    program.on_model(round_off, undo)
    program.at("arguments", convert_inputs)


def location(recording: Recording) -> Location | None:
    called = [model.call.location for model in training_models(recording) if model.call]
    return called[0] if called else None


_MODEL = {"ident": 0, "forwards": 9, "dtypes": ["float32"]}
_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_NEW_CPU = {**_INFERS, "environment": {"cpu_features": ["avx2", "avx512_bf16"]}}
FIX: FixSpec = FixSpec(
    name="bfloat16 weights",
    treats=("low-precision-unused", "compute"),
    keeps_results="lower precision",
    when="between steps",
    phases=("forward_s",),
    touches=lambda recording: phases(recording, "forward_s"),
    p_helps=0.4,  # as of bfloat16 products
    refuses=refuses,
    sentences={
        "weights-need-float32": "The program trains: its weights need the digits of float32 (see "
        "mixed-precision).",
        "model-on-gpu": "The model is on a GPU; mixed-precision is the like of it there.",
        "no-bfloat16-instructions": "The CPU is not known to have bfloat16 instructions "
        "(avx512_bf16, amx_bf16).",
        "no-float32-weights": "No model that is called has weights in float32.",
        "no-float32-model-called": "No model in float32 was called.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=location,
    instruction=lambda settings, recording: FIX.permanent_form,
    refusals=[
        ({}, "weights-need-float32"),
        ({**_INFERS, **process(models=[_MODEL])}, "no-bfloat16-instructions"),
        (
            {**_INFERS, "environment": {"cpu_features": ["avx2"]}, **process(models=[_MODEL])},
            "no-bfloat16-instructions",
        ),
        ({**_NEW_CPU, **process(models=[{**_MODEL, "dtypes": ["float64"]}])}, "no-float32-weights"),
        ({**_NEW_CPU, **process(models=[{**_MODEL, "autocast_forwards": 9}])}, "autocast-already"),
    ],
    example=Example(
        code="""
model = torch.nn.Linear(4, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=4)
with torch.no_grad():
    print([(model.weight.dtype, model(x).dtype) for (x,) in data][1])
""",
        without="(torch.float32, torch.float32)",
        with_fix="(torch.bfloat16, torch.float32)",
    ),
)
