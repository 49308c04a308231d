"""Put a model that only infers into evaluation mode.

## What it does
It gives the lines to write: dropout ends, and batch norm uses the statistics that it learned.

## Why it helps
The results are right, and the random masks and statistics of each batch cost nothing any more.

## Risks
A program that draws with dropout on purpose (Monte Carlo dropout) needs training mode.

## Make it permanent
    model.eval()                    # It changes results: dropout ends, batch norm is as learned
    with torch.inference_mode():    # no graph for a backward pass either
        output = model(x)

## Sources
- PyTorch, Module.eval: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from torchdoctor.words import FixSpec, Recording, trace


def refuses(recording: Recording) -> str | None:
    if recording.trace is None or recording.trace.trains or recording.processes:
        return "The program trains."
    return None


FIX: FixSpec = FixSpec(
    name="evaluation mode",
    treats=("training-mode-left-on",),
    keeps_results="changes training",
    untried="it changes what the model computes, which is for its author to decide.",
    refuses=refuses,
    suits=lambda trace: not trace.trains,
    instruction=lambda settings, recording: FIX.permanent_form,
    offers=[({"processes": [], **trace(trains=False, active_dropouts=3)}, "model.eval()")],
    refusals=[({}, "trains")],
)
