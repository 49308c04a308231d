"""Infer in evaluation mode: a correction of the results.

## What it does
It shows where to call `model.eval()`. Dropout then keeps all values, and batch norm takes what
training found in place of the batch's own mean.

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

from torchdoctor.edits import Edit
from torchdoctor.edits.training import before_training
from torchdoctor.facts.lookup import training_models
from torchdoctor.words import FixSpec, Location, Recording, Settings, process


def refuses(recording: Recording) -> str | None:
    if not recording.infers:
        return "The program trains."
    models = training_models(recording)
    if not any(m.mode_dependent and m.forwards > m.eval_forwards for m in models):
        return "Evaluation mode changes nothing: no layer depends on it, or it is on."
    return None


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
    keeps_results="changes training",
    keeps_but="It corrects the results.",
    untried="it changes the results, which no speed can judge.",
    untried_needs=("train-mode",),
    refuses=refuses,
    location=location,
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=edits,
    offers=[({**_INFERS, **process(models=[_MODEL])}, "model.eval()")],
    refusals=[({}, "trains")],
)
