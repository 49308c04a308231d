"""Evaluate without recording gradients.

What it does
------------
Runs the forward pass of a module in evaluation mode under `torch.no_grad()`. A module is left alone
if a gradient flows back into its evaluation output (frozen batch normalization, a perceptual loss),
or if its inputs need gradients.

Why it helps
------------
With gradients on, autograd builds a graph and keeps every activation for a backward pass that an
evaluation never makes. The memory saved may allow a larger batch for evaluation.

Risks
-----
None for the values: the same operators compute the same numbers. Code that differentiates the
output of the evaluation afterwards would fail.

Make it permanent
-----------------
    @torch.no_grad()
    def evaluate(model, loader):
        model.eval()
        ...

Sources
-------
- PyTorch documentation, Autograd mechanics, "Locally disabling gradient computation":
  https://docs.pytorch.org/docs/stable/notes/autograd.html
- PyTorch Performance Tuning Guide, "Disable gradient calculation for validation or inference":
  https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import weakref
from typing import Any

from torchdoctor.edits import DecoratorEdit, Edit
from torchdoctor.facts.lookup import place
from torchdoctor.words import ModelFacts, Recording
from torchdoctor.words.specs import Example, FixSpec


def refuses(recording: Recording) -> str | None:
    """Return why there is nothing to change, or it must not be changed."""
    evaluating = [m for m in recording.main.models if m.eval_forwards_with_grad]
    if not any(m.eval_forwards for m in recording.main.models):
        if recording.steps is not None and recording.steps.program_ended:
            return "No evaluation was made: the program ended without one."
        return "No evaluation was reached in the launch: it was stopped before the first one."
    if not evaluating:
        return "No evaluation with gradients on was seen."
    if not _changed(recording):
        return "The model trains in evaluation mode, so its forward passes need gradients."
    return None


def _changed(recording: Recording) -> list[ModelFacts]:
    return [
        m
        for m in recording.main.models
        if m.eval_forwards_with_grad and m.forwards > m.eval_forwards
    ]


class _Watched:
    """Remembers whether a module's first evaluation output was differentiated."""

    def __init__(self) -> None:
        self.differentiated = False

    def watch(self, tensor: Any) -> None:
        """Notice when a gradient flows back into this tensor."""

        def flowed(gradient: Any) -> None:
            self.differentiated = True

        tensor.register_hook(flowed)


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Evaluate without gradients, unless a module's first evaluation output is differentiated."""
    watched: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
    last: list[bool] = [False]  # whether the latest root forward ran without gradients by this fix
    needs_gradient: list[bool] = [False]

    def look_at_inputs(module: Any, args: Any, kwargs: Any) -> Any:
        needs_gradient[0] = any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in _flat((args, kwargs))
        )
        return args, kwargs

    def without_gradients(module: Any) -> Any:
        last[0] = False
        if module.training or not torch.is_grad_enabled() or needs_gradient[0]:
            return None
        output_watch = watched.get(module)
        if output_watch is None:
            watched[module] = output_watch = _Watched()
            _watch_next_output(torch, module, output_watch)
            return None
        if output_watch.differentiated:
            return None
        last[0] = True
        program.applied()
        return torch.no_grad()

    def check() -> None:
        if last[0]:
            program.refuse("A backward pass follows a forward pass in evaluation mode.")

    program.set_reason("No second evaluation with gradients on came by.")
    program.before_forward(look_at_inputs)
    program.around_forward(without_gradients, until="forward")
    program.before_backward(check)


def _watch_next_output(torch: Any, module: Any, output_watch: _Watched) -> None:
    def after(module: Any, inputs: Any, output: Any) -> None:
        handle.remove()
        for tensor in _flat(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                output_watch.watch(tensor)

    handle = module.register_forward_hook(after)


def _flat(value: Any) -> Any:
    """Return every leaf of nested tuples, lists, dictionaries and objects with their own fields."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif hasattr(value, "values") and hasattr(value, "keys"):
        for item in value.values():
            yield from _flat(item)
    else:
        yield value


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return where to turn gradients off."""
    lines = []
    for model in _changed(recording):
        where = place(recording, model.eval_with_grad_location, "where it is evaluated")
        lines.append(f"{where}  put the evaluation under  with torch.no_grad():")
    return "\n".join(dict.fromkeys(lines)) or "with torch.no_grad():  # around the evaluation"


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Decorate the function that evaluates; return none if the place is not known."""
    places = [m.eval_with_grad_location for m in _changed(recording)]
    return [
        DecoratorEdit(file=where.file, line=where.line, decorator="torch.no_grad()")
        for where in dict.fromkeys(places)
        if where is not None
    ]


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("evaluation-with-gradients",),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.5,  # the graph is seen to be built
    refuses=refuses,
    apply=apply,
    location=lambda recording: next((m.eval_with_grad_location for m in _changed(recording)), None),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import torch

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
