"""Train in float32 where the program trains in double precision (float64).

## What it does
Names each line that asks for float64 (the model, the default type, NumPy arrays that become
tensors), and what to write there instead. If every such line is certain, it is an edit.

## Why it helps
CPUs and GPUs for data centres compute twice as many float32 numbers at once, other GPUs 32 to 64
times as many, in half the memory. oneDNN has no float64 convolutions. TF32 and 16 bits work too.

## Risks
float32 has 24 significant bits instead of 53: losses differ by about 1e-7 at first. Networks train
to the same quality. Stay with float64 if the digits are the point: solvers and simulations,
Cholesky factors of nearly singular matrices, higher derivatives, L-BFGS, gradient checks. Code that
multiplies the output with float64 matrices of its own needs them in float32 too. With the same
seed, random numbers in float32 differ from those in float64.

## Make it permanent
    model = model.float()                     # not .double()
    x = torch.from_numpy(array).float()       # NumPy's numbers are float64
    torch.set_default_dtype(torch.float32)    # the default: remove the line that sets float64

## Sources
- NVIDIA, CUDA C++ Guide: https://docs.nvidia.com/cuda/cuda-c-programming-guide/
"""

from torchdoctor.edits import BatchCastEdit, Edit
from torchdoctor.edits.reading import batch_loops
from torchdoctor.edits.training import in_single_precision
from torchdoctor.queries.arithmetic import double_leaves, double_location, double_models
from torchdoctor.queries.lookup import place, training_loaders, training_models
from torchdoctor.queries.touched import moved_in_half, precision_ratio, products, several
from torchdoctor.schema import (
    Evidence,
    FixSpec,
    Recording,
    Settings,
    Touches,
    TraceStatistics,
    fact,
    process,
)


def refuses(recording: Recording) -> Evidence | None:
    models = training_models(recording)
    if recording.processes and not models:
        return fact("no-forward-pass")
    if not double_models(recording):
        return fact("no-float64-parameters")
    if any(dtype.startswith("complex") for m in models for dtype in m.dtypes):
        return fact("complex-parameters")
    if recording.main.flags.gradcheck_calls:
        return fact("gradcheck")
    return None


def touches(recording: Recording) -> Touches:
    """Return float64 products, and beside them operators by element, which move half the bytes."""
    ratio = precision_ratio(recording, "float32", "float64")
    float64_products = products(recording, "float64 products", "float64 products", ratio)
    if not recording.has_gpu or not float64_products:
        return float64_products if recording.has_gpu else None
    return several(float64_products, moved_in_half(recording))


def suits(trace: TraceStatistics) -> bool:
    products = trace.matrix_work.products if trace.matrix_work is not None else []
    return any(product.precision == "float64" for product in products)


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    calls = recording.main.double_calls
    for call in calls:
        where = place(recording, call.location, "where it is called")
        change = {
            "model": f".{call.name}(...) of the model: float32, .float()",
            "default": f"torch.{call.name}: remove it, float32 is the default",
        }.get(call.kind, f"{call.name}(...) gives float64: .float()")
        lines.append(f"{where}  {change}")
    if all(call.kind == "data" for call in calls):
        lines.append("model = model.float()  # before training, and before it is wrapped")
    if any(double_leaves(recording)):
        lines.append("x = x.float()  # each float64 tensor of a batch, in validation too")
    return "\n".join(lines)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return edits of the lines that ask for float64, and of the loops; none if one is unsure.

    Batches of a data set of the program's own may be made of arrays that no line converts.
    """
    calls = recording.main.double_calls
    lines = in_single_precision(calls)
    if not lines:
        return []
    loaders = training_loaders(recording)
    made = any(call.kind == "data" for call in calls)
    if not loaders or not any(double_leaves(recording)):
        return lines
    if made and loaders[0].dataset_cls.endswith("TensorDataset"):
        return lines
    loops = _loops(recording)
    return [*lines, *loops] if loops else []


def _loops(recording: Recording) -> list[Edit]:
    """Return the loops that hand a batch to the model, in the file with the training loop."""
    casts: dict[tuple[str, int], Edit] = {}
    for model in double_models(recording):
        call = model.call
        loops = batch_loops(call.location.file, call.name, double_leaves(recording)) if call else []
        if call is None or not loops:
            return []
        for line, names in loops:
            file = call.location.file
            casts[file, line] = BatchCastEdit(file=file, line=line, names=names)
    return list(casts.values())


_MODEL = {"ident": 0, "forwards": 9, "dtypes": ["float64"], "elements": 9, "float64_elements": 9}
_COMPLEX = {**_MODEL, "dtypes": ["complex128", "float64"]}

FIX = FixSpec(
    name="float32 instead of float64",
    treats=("double-precision", "compute", "memory-near-limit"),
    keeps_results="lower precision",
    untried="only the source says which digits the program needs.",
    refuses=refuses,
    sentences={
        "no-forward-pass": "No forward pass of a module was seen.",
        "no-float64-parameters": "No model that is called has its parameters in float64.",
        "complex-parameters": "The model has complex parameters beside those in float64: its "
        "precision is meant.",
        "gradcheck": "The program checks gradients by differences (gradcheck), which needs "
        "float64.",
    },
    touches=touches,
    suits=suits,
    location=double_location,
    instruction=instruction,
    edits=edits,
    offers=[(process(models=[_MODEL]), "model = model.float()")],
    refusals=[
        ({}, "no-forward-pass"),
        (process(models=[_COMPLEX]), "complex-parameters"),
        (process(models=[_MODEL], flags={"gradcheck_calls": 1}), "gradcheck"),
    ],
)
