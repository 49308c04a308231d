"""Infer in evaluation mode: a correction of the results.

## What it does
Calls `model.eval()`. Dropout then keeps all values, and batch norm uses the statistics that it
learned in place of those of the batch at hand.

## Why it helps
The results become those of the trained model, the same for the same input. The random masks and
statistics of each batch cost nothing any more.

## Risks
A program that draws with dropout on purpose (Monte Carlo dropout) needs training mode.

## Make it permanent
    model.eval()                    # It changes results: dropout ends, batch norm is as learned
    with torch.inference_mode():    # no graph for a backward pass either
        output = model(x)

## Sources
- PyTorch, Module.eval: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.training import before_training
from torchdoctor.queries.lookup import in_training_mode
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
    trace,
)

_EVAL = (
    "model.eval()                    # It changes results: dropout ends, batch norm is as learned"
)


def refuses(recording: Recording) -> Evidence | None:
    traced = recording.trace
    if recording.infers:
        changes = in_training_mode(recording)
        unchanged = fact("evaluation-changes-nothing")
        return None if changes else unchanged
    if traced is None or traced.trains or recording.processes:
        return fact("program-trains")
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    were_training: dict[int, list[Any]] = {}

    def evaluate(module: Any) -> None:
        were_training[id(module)] = [
            submodule for submodule in module.modules() if submodule.training
        ]
        module.eval()
        program.applied()

    def undo(module: Any) -> None:
        for part in were_training.pop(id(module), ()):
            part.training = True

    program.set_reason("no-model-seen")
    program.on_model(evaluate, undo)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    return before_training(recording, "{model}.eval()")


def location(recording: Recording) -> Location | None:
    return next((m.call.location for m in in_training_mode(recording) if m.call), None)


def instruction(settings: Settings, recording: Recording) -> str:
    # Whether a run's calls build graphs is known, and a finding of its own.
    return _EVAL if recording.infers else FIX.permanent_form


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_MODEL = {"ident": 0, "forwards": 9, "mode_dependent": ["Dropout"]}
FIX: FixSpec = FixSpec(
    name="evaluation mode",
    treats=("training-mode-left-on",),
    keeps_results="corrects results",
    when="between steps",
    touches=lambda recording: phases(recording, "forward_s"),
    phases=("forward_s",),
    p_helps=0.5,  # what it takes away is seen to run
    needs_finding=True,
    refuses=refuses,
    sentences={
        "evaluation-changes-nothing": "Evaluation mode changes nothing: no layer depends on it, or "
        "it is on.",
        "program-trains": "The program trains.",
        "no-model-seen": "No model was seen.",
    },
    location=location,
    suits=lambda trace: not trace.trains,
    instruction=instruction,
    apply=apply,
    edits=edits,
    offers=[({"processes": [], **trace(trains=False, active_dropouts=3)}, "model.eval()")],
    refusals=[
        ({}, "program-trains"),
        (
            {**_INFERS, **process(models=[{**_MODEL, "eval_forwards": 9}])},
            "evaluation-changes-nothing",
        ),
    ],
    example=Example(
        code="""
model = torch.nn.Dropout(0.5)
net = torch.nn.Sequential(torch.nn.Linear(4, 1), model)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=4)
print("training mode:", [net(x) is not None and net.training for (x,) in data])
""",
        without="training mode: [True, True]",
        with_fix="training mode: [False, False]",
    ),
)
