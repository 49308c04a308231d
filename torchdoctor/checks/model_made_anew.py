"""The model is made again and again.

## What it means
A model that is made, loaded, moved or compiled for each request costs that each time. Made once,
when the program starts, it costs it once.

## How it is measured
The probe counts the models of one class that were called one after another, each when the one
before was gone. The share is that of sampled stacks within torch's code that fills and loads
parameters; what the program's own code adds to that is not in it.

## Not to be confused with
An ensemble, whose models all stay.
"""

from torchdoctor.queries.hot_calls import is_sampled_enough, sampled_share
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.stacks import making_rows
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    if not recording.infers:
        return
    rows = making_rows(recording)
    share = sampled_share(recording, rows) if rows and is_sampled_enough(recording) else None
    for model in training_models(recording):
        if model.made_anew < CHECK.threshold:
            continue
        name = model.cls.rpartition(".")[2] or "The model"
        made = fact("made", name=name, times=model.made_anew + 1, calls=model.forwards)
        yield Symptom(
            share=share,
            evidence=[made, *([fact("takes", share=share)] if share is not None else [])],
            location=model.call.location if model.call else model.location,
            severity="high",
        )


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=3,
    unit="models of one class, made one after another",
    source="torchdoctor: made once is what a model is for",
    sentences={
        "made": "{name} was made {times:counted time} for {calls:counted call}.",
        "takes": "That takes {share:.0%} of {each_step} or more.",
    },
    examine=_examine,
    closes_verdict=True,
    fires=[{**_INFERS, **process(models=[{"ident": 0, "forwards": 9, "made_anew": 8}])}],
    quiet=[{**_INFERS, **process(models=[{"ident": 0, "forwards": 9}])}],
)
