"""Compute in float32 on a CPU where the model is in float16.

## What it does
Makes the parameters float32, and what the model is called with; its output is float16 again, so
that the code behind it stays as it is. Gradients and the optimizer's states follow the parameters.

## Why it helps
Most CPUs have no arithmetic in float16: operators convert to float32 and back, number by number,
and hardly any of them is vectorized.

## Risks
Parameters and activations take twice the memory. Results are more exact: float16 has 11 significant
bits, loses gradients below 6e-8 and overflows above 65504.

## Make it permanent
    model = model.float()     # not .half(), nor torch_dtype=torch.float16
    x = x.float()             # what it is called with

On a CPU with bfloat16 instructions (amx_bf16, avx512_bf16), autocast in bfloat16 may gain more.

## Sources
- PyTorch, tensor types: https://docs.pytorch.org/docs/stable/tensors.html
"""

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.training import in_single_precision
from torchdoctor.queries.arithmetic import half_location, half_models
from torchdoctor.queries.lookup import place
from torchdoctor.queries.touched import phases
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact, process


def refuses(recording: Recording) -> Evidence | None:
    return None if half_models(recording) else fact("no-float16-on-cpu")


def apply(torch: Any, settings: Settings, program: Any) -> None:
    half = torch.float16
    single = torch.float32
    hooks: dict[int, Any] = {}  # of modules that were changed
    halves: dict[int, list[Any]] = {}  # their tensors that were float16

    def cast(value: Any, dtype: Any) -> Any:
        def change(leaf: Any) -> Any:
            is_other = isinstance(leaf, torch.Tensor) and leaf.dtype in (half, single)
            return leaf.to(dtype) if is_other and leaf.dtype is not dtype else leaf

        return torch.utils._pytree.tree_map(change, value)

    def convert(module: Any) -> None:
        parts = [*module.parameters(), *module.buffers()]
        half_parts = [part for part in parts if part.dtype is half]
        if not half_parts:
            return
        if any(part.device.type != "cpu" for part in parts):
            program.refuse("model-not-on-cpu")
        halves[id(module)] = half_parts
        _set_dtype(torch, half_parts, single, program.optimizers())
        hooks[id(module)] = module.register_forward_hook(lambda _, __, output: cast(output, half))
        program.applied()

    def undo(module: Any) -> None:
        if (hook := hooks.pop(id(module), None)) is not None:
            hook.remove()
            _set_dtype(torch, halves.pop(id(module)), half, program.optimizers())

    def convert_inputs(module: Any, args: Any, kwargs: Any) -> Any:
        return cast((args, kwargs), single) if id(module) in hooks else (args, kwargs)

    program.set_reason("no-float16-model-called")
    program.on_model(convert, undo)
    program.at("arguments", convert_inputs)


def _set_dtype(torch: Any, parts: list[Any], dtype: Any, optimizers: Any) -> None:
    """Convert tensors in place, and gradients and optimizer states along with their parameter."""
    for part in parts:
        part.data = part.data.to(dtype)
        if part.grad is not None:
            part.grad.data = part.grad.data.to(dtype)
        for optimizer in optimizers:
            state = optimizer.state.get(part, {})
            for name, value in state.items():
                alike = isinstance(value, torch.Tensor) and value.shape == part.shape
                if alike and value.is_floating_point():
                    state[name] = value.to(dtype)


def instruction(settings: Settings, recording: Recording) -> str:
    lines = [
        f"{place(recording, call.location, 'where it is called')}  {call.name}(...): float32"
        for call in recording.main.half_calls
    ]
    return "\n".join([*lines, FIX.permanent_form])


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return edits of the lines that ask for float16; none if one is unsure, or is not known."""
    return in_single_precision(recording.main.half_calls)


_MODEL = {"ident": 0, "forwards": 9, "dtypes": ["float16"], "device": "cpu"}
FIX: FixSpec = FixSpec(
    name="float32 on a CPU",
    treats=("half-on-cpu",),
    keeps_results="within rounding",
    keeps_but="results are more exact than those of float16",
    when="between steps",
    phases=("forward_s", "backward_s", "optimizer_s"),
    touches=lambda recording: phases(
        recording, "forward_s", "backward_s", "optimizer_s", label="arithmetic in float16"
    ),
    p_helps=0.7,
    needs_finding=True,
    refuses=refuses,
    sentences={
        "no-float16-on-cpu": "No model computes in float16 on a CPU.",
        "no-float16-model-called": "No model in float16 was called.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=half_location,
    instruction=instruction,
    edits=edits,
    refusals=[
        ({}, "no-float16-on-cpu"),
        (process(models=[{**_MODEL, "device": "cuda:0"}]), "no-float16-on-cpu"),
    ],
    example=Example(
        code="""
model = torch.nn.Linear(8, 8).half()
x = torch.ones(4, 8, dtype=torch.float16)
model(x).sum().backward()
output = model(x)
output.sum().backward()
print("parameters:", model.weight.dtype, "gradient:", model.weight.grad.dtype, output.dtype)
""",
        without="parameters: torch.float16 gradient: torch.float16 torch.float16",
        with_fix="parameters: torch.float32 gradient: torch.float32 torch.float16",
    ),
)
