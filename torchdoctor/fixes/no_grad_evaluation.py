"""Evaluate without recording gradients.

## What it does
Runs the forward pass of a module in evaluation mode under `torch.no_grad()`, unless its inputs need
gradients or one flows back into its output (frozen batch normalization, a perceptual loss).

## Why it helps
With gradients on, autograd builds a graph and keeps every activation for a backward pass that an
evaluation never makes. The memory saved may allow a larger batch for evaluation.

## Risks
Code that differentiates the output of the evaluation afterwards would fail.

## Make it permanent
    @torch.no_grad()
    def evaluate(model, loader):
        model.eval()
        ...

## Sources
- PyTorch, Autograd mechanics: https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

import weakref
from typing import Any

from torchdoctor.edits import DecoratorEdit, Edit
from torchdoctor.queries.lookup import place
from torchdoctor.queries.touched import phases
from torchdoctor.schema import Evidence, Example, FixSpec, ModelFacts, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    models = recording.main.models
    steps = recording.steps
    if not any(m.eval_forwards for m in models):
        if steps is not None and steps.program_ended:
            return fact("no-evaluation-made")
        return fact("no-evaluation-reached")
    if not any(m.eval_forwards_with_grad for m in models):
        return fact("no-evaluation-with-gradients")
    if not _changed(recording):
        return fact("trains-in-evaluation-mode")
    return None


def _changed(recording: Recording) -> list[ModelFacts]:
    models = [m for m in recording.main.models if m.eval_forwards_with_grad]
    return [m for m in models if m.forwards > m.eval_forwards]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    watched: weakref.WeakSet[Any] = weakref.WeakSet()
    differentiated: weakref.WeakSet[Any] = weakref.WeakSet()
    needs_gradient = without = False  # of the latest root forward: its inputs; this fix's doing

    def tensors(value: Any) -> list[Any]:
        leaves = torch.utils._pytree.tree_leaves(value)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

    def look_at_inputs(module: Any, args: Any, kwargs: Any) -> Any:
        nonlocal needs_gradient
        needs_gradient = bool(tensors((args, kwargs)))
        return args, kwargs

    def watch(module: Any, inputs: Any, output: Any) -> None:
        handles.pop(module).remove()
        for tensor in tensors(output):
            tensor.register_hook(lambda gradient: differentiated.add(module))

    def without_gradients(module: Any) -> Any:
        nonlocal without
        without = False
        if module.training or not torch.is_grad_enabled() or needs_gradient:
            return None
        if module not in watched:
            watched.add(module)
            handles[module] = module.register_forward_hook(watch)
            return None
        if module in differentiated:
            return None
        without = True
        program.applied()
        return torch.no_grad()

    def check() -> None:
        if without:
            program.refuse("backward-after-evaluation")

    handles: dict[Any, Any] = {}  # of hooks on a module's next output
    program.set_reason("no-second-evaluation")
    program.at("arguments", look_at_inputs)
    program.around_forward(without_gradients, until="forward")
    program.at("backward", check)


def instruction(settings: Settings, recording: Recording) -> str:
    lines = []
    for model in _changed(recording):
        where = place(recording, model.eval_with_grad_location, "where it is evaluated")
        lines.append(f"{where}  put the evaluation under  with torch.no_grad():")
    return "\n".join(dict.fromkeys(lines)) or "with torch.no_grad():  # around the evaluation"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    places = [m.eval_with_grad_location for m in _changed(recording)]
    return [
        DecoratorEdit(file=where.file, line=where.line, decorator="torch.no_grad()")
        for where in dict.fromkeys(places)
        if where is not None
    ]


FIX = FixSpec(
    name="evaluation without gradients",
    treats=("evaluation-with-gradients",),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.5,  # the graph is seen to be built
    touches=lambda recording: phases(recording, "evaluation_s"),
    refuses=refuses,
    sentences={
        "no-evaluation-reached": "No evaluation was reached in the launch: it was stopped before "
        "the first one.",
        "no-evaluation-with-gradients": "No evaluation with gradients on was seen.",
        "trains-in-evaluation-mode": "The model trains in evaluation mode, so its forward passes "
        "need gradients.",
        "no-evaluation-made": "No evaluation was made: the program ended without one.",
        "backward-after-evaluation": "A backward pass follows a forward pass in evaluation mode.",
        "no-second-evaluation": "The launch ended before a second evaluation with gradients.",
    },
    apply=apply,
    location=lambda recording: next((m.eval_with_grad_location for m in _changed(recording)), None),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
torch.manual_seed(0)
model, frozen = torch.nn.Linear(4, 1), torch.nn.Linear(1, 1).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2)
for (x,) in data:
    # `frozen` is in evaluation mode all the time, and gradients flow through it.
    frozen(model(x)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
recorded = [model(x).requires_grad for (x,) in data]
print("graphs:", recorded, "trained through:", frozen.weight.grad is not None)
""",
        without="graphs: [True, True, True, True] trained through: True",
        with_fix="graphs: [True, False, False, False] trained through: True",
    ),
)
