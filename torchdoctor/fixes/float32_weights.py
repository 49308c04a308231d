"""Compute in float32 where a CPU is given a model in float16.

## What it does
Converts the model's parameters and buffers to float32, and float16 inputs at each call.

## Why it helps
Few CPUs have instructions for float16: most operations convert to float32 and back, and matrix
products take slow paths.

## Risks
Weights take twice the memory. The output is float32: code after it that counts on float16 fails.

## Make it permanent
    model = model.float()           # or leave out .half() and torch_dtype=torch.float16 on a CPU
    output = model(x.float())

## Sources
- PyTorch, Automatic Mixed Precision, on types of a CPU: https://docs.pytorch.org/docs/stable/amp.html
"""

import weakref
from typing import Any

from torchdoctor.edits import Edit, InputEdit
from torchdoctor.edits.training import before_training
from torchdoctor.facts.lookup import training_models
from torchdoctor.facts.touched import phases
from torchdoctor.words import Example, FixSpec, Location, ModelFacts, Recording, Settings, process


def _halved(recording: Recording) -> list[ModelFacts]:
    models = training_models(recording)
    return [m for m in models if m.device == "cpu" and "float16" in m.dtypes]


def refuses(recording: Recording) -> str | None:
    if not recording.infers:
        return "It is for programs that infer."
    if not _halved(recording):
        return "No model on the CPU is in float16."
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    converted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def tensors(module: Any) -> list[Any]:
        both = (*module.parameters(), *module.buffers())
        return [x for x in both if x.dtype == torch.float16 and x.device.type == "cpu"]

    def convert(module: Any) -> None:
        own = tensors(module)
        if own:
            converted[module] = [(x, x.data) for x in own]
            for x in own:
                x.data = x.data.float()
            program.applied()

    def undo(module: Any) -> None:
        for x, before in converted.pop(module, ()):
            x.data = before

    def widen(value: Any) -> Any:
        half = isinstance(value, torch.Tensor) and value.dtype == torch.float16
        return value.float() if half else value

    def change(module: Any, args: Any, kwargs: Any) -> Any:
        if module not in converted:
            return None
        return torch.utils._pytree.tree_map(widen, (args, kwargs))

    program.set_reason("No model in float16 was seen on the CPU.")
    program.on_model(convert, undo)
    program.at("arguments", change)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return the conversion before the loop, and that of inputs; none if one is unsure."""
    if len(_halved(recording)) != len(training_models(recording)):
        return []
    edits = before_training(recording, "{model}.float()")
    for model in _halved(recording):
        shapes = ", ".join(model.input_shapes)
        if model.call is None or not model.input_shapes or not edits:
            return []
        if "float16" not in shapes:
            continue
        if not all(x.endswith(" float16") and "," not in x for x in model.input_shapes):
            return []  # which of several is meant cannot be told
        place = model.call.location
        edits.append(
            InputEdit(file=place.file, line=place.line, callee=model.call.name, method=".float()")
        )
    return edits


def location(recording: Recording) -> Location | None:
    return next((m.call.location for m in _halved(recording) if m.call), None)


_STEPS = {"boundary": {"kind": "forward", "learned_by": "forward"}}
FIX: FixSpec = FixSpec(
    name="float32 instead of float16",
    treats=("half-on-cpu",),
    keeps_results="within rounding",
    when="between steps",
    phases=("forward_s",),
    touches=lambda recording: phases(recording, "forward_s"),
    p_helps=0.8,  # the type is seen, and slow on most CPUs
    needs_finding=True,
    refuses=refuses,
    suits=lambda trace: False,
    apply=apply,
    location=location,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    refusals=[
        ({}, "infer"),
        ({"steps": _STEPS, **process(models=[{"ident": 0, "forwards": 9}])}, "float16"),
    ],
    example=Example(
        code="""
model = torch.nn.Linear(4, 1).half().eval()
data = torch.utils.data.TensorDataset(torch.ones(8, 4).half())
with torch.no_grad():
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
        print(model(x).dtype, end=" ")
""",
        without="torch.float16 torch.float16",
        with_fix="torch.float32 torch.float32",
    ),
)
