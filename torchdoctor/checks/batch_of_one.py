"""A model gets one input at a time while others wait.

## What it means
Each call pays for its Python, its operators' start and one reading of all weights. Inputs that are
there already could share them in one call.

## What to do
Give the model several inputs at once: `batch_size=` of the loader or the pipeline,
`torch.cat(inputs)` of batches of one, or `torch.stack(inputs)` of inputs without that dimension.
Pad those of other lengths.

## How it is measured
The probe notes the sizes of each model's inputs. All calls get one row, and one follows the other:
the program waits for no input in between.

## Not to be confused with
A server that answers a request as it comes, and decoding of one token after the other.
"""

from typing import Any

from torchdoctor.queries.lookup import data_wait_share, phase_share, training_models
from torchdoctor.schema import (
    CheckSpec,
    Recording,
    Symptom,
    Symptoms,
    TensorFacts,
    fact,
    process,
)

_FEWEST_CALLS = 20
_GROWING = 0.1  # of the calls: these decode
_MOST_WAIT = 0.1  # of the step, for an input


def _examine(recording: Recording) -> Symptoms:
    if not recording.infers or (data_wait_share(recording) or 0.0) > _MOST_WAIT:
        return
    share = phase_share(recording, "forward_s")
    if share is None or share < CHECK.threshold:
        return
    for model in training_models(recording):
        single = bool(model.input_tensors) and all(map(_is_single, model.input_tensors))
        decodes = model.grown_calls > _GROWING * model.forwards
        if single and not decodes and model.forwards >= _FEWEST_CALLS:
            yield Symptom(
                evidence=fact("one", calls=model.forwards, share=share),
                location=model.call.location if model.call else model.location,
                severity="moderate",
            )


def _is_single(call: list[TensorFacts]) -> bool:
    """Return True if a call's first tensor is a batch of one."""
    return bool(call) and len(call[0].sizes) > 1 and call[0].sizes[0] == 1


def _images(number: int) -> dict[str, Any]:
    return {"sizes": [number, 3, 64, 64], "dtype": "float32"}


_STEPS = {
    "boundary": {"kind": "forward", "learned_by": "forward"},
    "mean_s": 0.01,
    "forward_s": 0.009,
}
_MODEL = {"ident": 0, "forwards": 90, "input_tensors": [[_images(1)]]}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.5,
    unit="of the step in calls of a model with one input each",
    source="torchdoctor: where calls take most, their number matters",
    sentences={
        "one": "All of {calls:counted call} got one input, and the next one waited: calls take "
        "{share:.0%} of {each_step}.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(models=[_MODEL])}],
    quiet=[
        {"steps": _STEPS, **process(models=[{**_MODEL, "input_tensors": [[_images(8)]]}])},
        {"steps": _STEPS, **process(models=[{**_MODEL, "grown_calls": 80}])},
        {"steps": {**_STEPS, "forward_s": 0.001}, **process(models=[_MODEL])},
        {"steps": {**_STEPS, "data_wait_s": 0.004}, **process(models=[_MODEL])},
        {"steps": {"mean_s": 0.01, "forward_s": 0.009}, **process(models=[_MODEL])},
    ],
)
