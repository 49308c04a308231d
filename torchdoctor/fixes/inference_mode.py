"""Infer without recording gradients.

## What it does
Runs each call of a model under `torch.no_grad()`, in a program that computes no gradient.

## Why it helps
With gradients on, autograd builds a graph at each call and keeps every activation until the output
is gone. Nobody uses it here.

## Risks
Code that differentiates the output afterwards would fail.

## Make it permanent
    with torch.inference_mode():
        output = model(batch)

## Sources
- PyTorch, Autograd mechanics: https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from typing import Any

from torchdoctor.edits import Edit, StatementEdit
from torchdoctor.fixes import eval_mode
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

_STATEMENT = "torch.set_grad_enabled(False)"


def refuses(recording: Recording) -> Evidence | None:
    if not recording.infers:
        return fact("program-trains")
    if not any(model.forwards_with_grad for model in training_models(recording)):
        return fact("without-gradients-already")
    return None


def together(settings: Settings, recording: Recording) -> dict[str, Settings]:
    """Return evaluation mode, where it is missing: the results are wrong without it."""
    return {"eval-mode": {}} if eval_mode.refuses(recording) is None else {}


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def without_gradients(module: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        program.applied()
        return torch.no_grad()

    program.set_reason("no-call-with-gradients")
    program.around_forward(without_gradients, until="forward")


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    script = recording.workload.script
    return [] if script is None else [StatementEdit(file=script, statement=_STATEMENT)]


def location(recording: Recording) -> Location | None:
    called = [m.call.location for m in training_models(recording) if m.call]
    return called[0] if called else None


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_MODEL = {"ident": 0, "forwards": 9}
FIX = FixSpec(
    name="inference without gradients",
    treats=("inference-with-gradients",),
    keeps_results="exactly",
    when="between steps",
    touches=lambda recording: phases(recording, "forward_s", "other_s"),
    phases=("forward_s", "other_s"),
    p_helps=0.5,  # the graph is seen to be built
    needs_finding=True,
    refuses=refuses,
    sentences={
        "program-trains": "The program trains, and needs its gradients.",
        "without-gradients-already": "Its models are called without gradients already.",
        "no-call-with-gradients": "No model was called with gradients enabled.",
    },
    together=together,
    apply=apply,
    location=location,
    instruction=lambda settings, recording: _STATEMENT,
    edits=edits,
    refusals=[
        ({}, "program-trains"),
        ({**_INFERS, **process(models=[_MODEL])}, "without-gradients-already"),
    ],
    example=Example(
        code="""
model = torch.nn.Linear(4, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=4)
print("graphs:", [model(x).requires_grad for (x,) in data])
""",
        without="graphs: [True, True]",
        with_fix="graphs: [False, False]",
    ),
)
