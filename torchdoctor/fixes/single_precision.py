"""Train in float32 where the program trains in double precision (float64).

What it does
------------
Converts each model that is in float64 to float32 when it is first called, with its gradients and
what its optimizers remember of it, and from then on whatever float64 it is called with. Until the
backward pass, new tensors are float32 by default, conversions to float64 give float32, and losses
of `torch.nn.functional` take their targets in float32. What the program sets up before stays as it
is, so that the trial begins with the same weights and trains on the same samples.

Why it helps
------------
A CPU computes twice as many float32 numbers at once, and they take half the memory and half of its
bandwidth; its library for convolutions (oneDNN) has none in float64. GPUs for data centres (V100,
A100, H100) compute twice as many, all others 32 to 64 times as many. TF32 and 16-bit precision,
which build on float32, become possible besides.

Risks
-----
float32 has 24 significant bits instead of 53: losses differ by about 1e-7 at first. Networks train
to the same quality. Do not do it where the digits are the point: solvers and simulations, Cholesky
factors of nearly singular matrices (Gaussian processes), higher derivatives in physics-informed
networks, L-BFGS driven to many digits, checks of gradients. A short trial cannot tell these:
compare what you publish once. Code between forward and backward that multiplies the output with
float64 matrices of its own fails, and needs them in float32. Random numbers that are drawn in
float32 by the edited source are others than those in float64 with the same seed.

Make it permanent
-----------------
    model = model.float()                     # not .double()
    x = torch.from_numpy(array).float()       # NumPy's numbers are float64
    torch.set_default_dtype(torch.float32)    # the default: remove the line that sets float64

Sources
-------
- NVIDIA CUDA C++ Programming Guide, "Arithmetic Instructions" (64-bit against 32-bit operations per
  clock and multiprocessor): https://docs.nvidia.com/cuda/cuda-c-programming-guide/
- PyTorch documentation, torch.set_default_dtype:
  https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html
- PyTorch documentation, torch.from_numpy:
  https://docs.pytorch.org/docs/stable/generated/torch.from_numpy.html
"""

from __future__ import annotations

from typing import Any

from torchdoctor.edits import BatchCastEdit, Edit, SinglePrecisionEdit
from torchdoctor.edits.precision import batch_loops
from torchdoctor.facts.lookup import place, training_loaders, training_models
from torchdoctor.facts.precision import double_leaves, double_location, double_models
from torchdoctor.words import ModelFacts, Recording, TraceStatistics
from torchdoctor.words.specs import Example, FixSpec

_MOST_CALLS = 16  # that the probe keeps
_WRAPPED = ("DistributedDataParallel", "FSDP")  # buckets and shards have the type they were made in


def refuses(recording: Recording) -> str | None:
    """Why there is nothing to convert, or float64 is meant."""
    models = training_models(recording)
    if recording.processes and not models:
        return "No forward pass of a module in training mode was seen."
    if not double_models(recording):
        return "No model in training has its parameters in float64."
    if any(dtype.startswith("complex") for m in models for dtype in m.dtypes):
        return "The model has complex parameters beside those in float64: its precision is meant."
    if recording.main.flags.gradcheck_calls:
        return "The program checks gradients by differences (gradcheck), which needs float64."
    return None


def _wrapped(recording: Recording) -> list[ModelFacts]:
    return [m for m in double_models(recording) if m.data_parallel in _WRAPPED]


def by_hand(recording: Recording) -> bool:
    """Whether the model must be converted before it is wrapped, which only the source can do."""
    return bool(_wrapped(recording))


def suits(trace: TraceStatistics) -> bool:
    """Products in float64 are seen."""
    products = trace.matrix_work.products if trace.matrix_work is not None else []
    return any(product.precision == "float64" for product in products)


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [] if by_hand(recording) else [{}]


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Convert models at their first call, and what they are given at each."""
    single = program.single_precision()
    single.install()
    program.set_reason("No forward pass of a model in float64 came by.")
    program.before_forward(single.convert)
    program.around_forward(single.until_backward, until="backward")
    program.around_forward(single.within_forward)
    for name in ("double", "to", "type"):
        program.replace(torch.Tensor, name, single.conversion)
    functional = torch.nn.functional
    for name in [n for n in dir(functional) if n.endswith(("_loss", "cross_entropy", "kl_div"))]:
        program.replace(functional, name, single.loss)
    program.replace(functional, "binary_cross_entropy_with_logits", single.loss)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Each line that asks for float64, and what to write; the rest in general."""
    lines = []
    for call in recording.main.double_calls:
        where = place(recording, call.location, "where it is called")
        if call.kind == "model":
            lines.append(f"{where}  .{call.name}(...) of the model: float32, .float()")
        elif call.kind == "default":
            lines.append(f"{where}  torch.{call.name}: remove it, float32 is the default")
        else:
            lines.append(f"{where}  {call.name}(...) gives float64: .float()")
    if not any(call.kind != "data" for call in recording.main.double_calls):
        lines.append("model = model.float()  # before training, and before it is wrapped")
    if any(double_leaves(recording)) or not lines:
        lines.append("x = x.float()  # each float64 tensor of a batch, in validation too")
    return "\n".join(lines)


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """The lines that ask for float64, and the loops whose batches are; empty where one is unsure.

    Batches of a data set of the program's own may be made of arrays that no line converts.
    """
    calls = recording.main.double_calls
    if not any(call.kind != "data" for call in calls) or not all(call.sure for call in calls):
        return []
    if len(calls) >= _MOST_CALLS:
        return []  # there may be more
    found: list[Edit] = [
        SinglePrecisionEdit(file=c.location.file, line=c.location.line, callee=c.name)
        for c in calls
    ]
    loaders, made = training_loaders(recording), any(call.kind == "data" for call in calls)
    held = bool(loaders) and loaders[0].dataset_cls.endswith("TensorDataset")
    if loaders and not (held and made) and any(double_leaves(recording)):
        loops = _loops(recording)
        return [*found, *loops] if loops else []
    return found


def _loops(recording: Recording) -> list[Edit]:
    """The loops that hand a batch to the model, in the file with the training loop."""
    leaves = double_leaves(recording)
    found: dict[tuple[str, int], Edit] = {}
    for model in double_models(recording):
        if model.call is None:
            return []
        file = model.call.location.file
        loops = batch_loops(file, model.call.name, leaves)
        if not loops:
            return []
        for line, names in loops:
            found[file, line] = BatchCastEdit(file=file, line=line, names=names)
    return list(found.values())


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("double-precision", "compute", "memory-near-limit"),
    keeps_results="lower precision",
    when="launch",
    refuses=refuses,
    settings=settings,
    by_hand=by_hand,
    suits=suits,
    apply=apply,
    location=double_location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import numpy as np
import torch

array = np.random.default_rng(0).normal(size=(8, 4))
data = torch.utils.data.TensorDataset(torch.from_numpy(array), torch.from_numpy(array[:, :1]))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0), torch.nn.Linear(4, 1))
model = model.double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
first, seen = model[0].weight.detach().clone(), set()
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    output = model(x)
    loss = torch.nn.functional.huber_loss(output, y)
    loss.backward()
    optimizer.step()
    seen |= {x.dtype, output.dtype, loss.dtype, model[0].weight.grad.dtype}
weight = model[0].weight
held = optimizer.param_groups[0]["params"][0] is weight
moment = optimizer.state[weight]["exp_avg"].dtype
print("trained:", not torch.allclose(weight.double(), first), "same parameter:", held)
print("batch, output, loss, gradient:", sorted(map(str, seen)), "moment:", moment)
print("elsewhere:", torch.ones(2).double().dtype, "evaluated:", model.eval()(x).dtype)
""",
        without="""trained: True same parameter: True
batch, output, loss, gradient: ['torch.float64'] moment: torch.float64
elsewhere: torch.float64 evaluated: torch.float64""",
        with_fix="""trained: True same parameter: True
batch, output, loss, gradient: ['torch.float32', 'torch.float64'] moment: torch.float32
elsewhere: torch.float64 evaluated: torch.float32""",
    ),
)
