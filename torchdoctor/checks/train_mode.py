"""A model infers in training mode: its results are wrong.

## What it means
In training mode dropout zeroes random values, and batch norm takes the mean of the batch in place
of what training found: the same input gives another result each time, and costs more.

## How it is measured
The probe notes the mode of each call, and looks for layers that compute something else in it.

## Not to be confused with
Monte Carlo dropout, which wants the noise.
"""

from torchdoctor.facts.lookup import training_models
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, process


def _examine(recording: Recording) -> Symptoms:
    if not recording.infers:
        return
    for model in training_models(recording):
        trains = model.forwards - model.eval_forwards
        if not model.mode_dependent or trains < CHECK.threshold * model.forwards:
            continue
        layers = " and ".join(model.mode_dependent[:2])
        yield Symptom(
            evidence=f"{trains} of {model.forwards} calls ran in training mode, which changes what "
            f"{layers} compute: the results are not those of the trained model.",
            location=model.call.location if model.call else model.location,
            severity="high",
        )


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_MODEL = {"ident": 0, "forwards": 20, "mode_dependent": ["BatchNorm2d", "Dropout"]}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.5,
    unit="of a model's calls in training mode",
    source="torchdoctor: most calls, not a short warm-up",
    examine=_examine,
    told="first",
    fires=[{**_INFERS, **process(models=[_MODEL])}],
    quiet=[
        {**_INFERS, **process(models=[{**_MODEL, "eval_forwards": 20}])},
        {**_INFERS, **process(models=[{**_MODEL, "mode_dependent": []}])},
        {"steps": {}, **process(models=[_MODEL])},
    ],
)
