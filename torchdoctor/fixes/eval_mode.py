"""Infer in evaluation mode: a correction of the results.

## What it does
Calls `model.eval()`. Dropout then keeps all values, and batch norm takes what training found in
place of the batch's own mean.

## Why it helps
The results become those of the trained model, the same for the same input. What dropout and batch
norm compute beside that falls away.

## Risks
None but for programs that want the noise (Monte Carlo dropout): their results change.

## Make it permanent
    model.eval()

## Sources
- PyTorch, Module.eval: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.training import before_training
from torchdoctor.facts.lookup import training_models
from torchdoctor.words import Example, FixSpec, Location, Recording, Settings, process


def refuses(recording: Recording) -> str | None:
    if not recording.infers:
        return "The program trains."
    models = training_models(recording)
    if not any(m.mode_dependent and m.forwards > m.eval_forwards for m in models):
        return "Evaluation mode changes nothing: no layer depends on it, or it is on."
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    were_training: dict[int, list[Any]] = {}

    def evaluate(module: Any) -> None:
        were_training[id(module)] = [x for x in module.modules() if x.training]
        module.eval()
        program.applied()

    def undo(module: Any) -> None:
        for part in were_training.pop(id(module), ()):
            part.training = True

    program.set_reason("No model was seen.")
    program.on_model(evaluate, undo)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    return before_training(recording, "{model}.eval()")


def location(recording: Recording) -> Location | None:
    called = [m.call.location for m in training_models(recording) if m.call]
    return called[0] if called else None


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_MODEL = {"ident": 0, "forwards": 9, "mode_dependent": ["Dropout"]}
FIX: FixSpec = FixSpec(
    name="evaluation mode",
    treats=("train-mode",),
    keeps_results="corrects results",
    when="between steps",
    phases=("forward_s",),
    p_helps=0.5,  # what it takes away is seen to run
    needs_finding=True,
    refuses=refuses,
    location=location,
    instruction=lambda settings, recording: FIX.permanent_form,
    apply=apply,
    edits=edits,
    refusals=[
        ({}, "trains"),
        ({**_INFERS, **process(models=[{**_MODEL, "eval_forwards": 9}])}, "changes nothing"),
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
