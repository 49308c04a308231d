"""Evaluation takes a large part of the training time.

## What it means
Between the steps that train, the model runs over validation data. Each run costs the same, however
little was learned since the last one.

## What to do
Evaluate in larger batches, which need no memory for gradients, or less often (every few epochs, or
after more steps). Use a part of the validation set, and all of it at the end. This changes what
you see of training, not what is learned, unless early stopping or a schedule follows it.

## How it is measured
torchdoctor adds up the time of evaluation sections in the mean step: batches and forward passes
that nothing is learned from. It needs two of them, as one does not show how often they come.

## Not to be confused with
Evaluation that builds a graph for gradients (evaluation-with-gradients): it is faster without.
"""

import math

from torchdoctor.queries.lookup import phase_share, training_loaders
from torchdoctor.schema import CheckSpec, Evidence, Recording, Symptom, Symptoms, fact

_FEWEST = 2
_WORTH_SAYING = 0.05
_SMALLER = 4  # times, than the batches of training


def _examine(recording: Recording) -> Symptoms:
    steps = recording.steps
    share = phase_share(recording, "evaluation_s")
    if steps is None or share is None or share < CHECK.threshold or steps.evaluations < _FEWEST:
        return
    every = steps.evaluation_every
    regular = "share-every" if every and every > 1 else "share-each" if every == 1 else "share"
    small = _small_batches(recording)
    evidence = [
        fact(regular, share=share, times=steps.evaluations, steps=steps.steps, every=every),
        *([small] if small is not None else []),
        fact("half-as-often", then=share / (2 - share)),
    ]
    waits = phase_share(recording, "evaluation_wait_s") or 0.0
    if waits >= _WORTH_SAYING:
        evidence.append(fact("own-loader", share=waits))
    yield Symptom(
        share=share,
        evidence=evidence,
        location=small.location if small is not None else None,
        severity="moderate",
    )


def _small_batches(recording: Recording) -> Evidence | None:
    """Return how much smaller the batches of a loader that nothing is learned from are."""
    training = training_loaders(recording)
    sizes = [
        training_loader.batch_size for training_loader in training if training_loader.batch_size
    ]
    training_idents = {training_loader.ident for training_loader in training}
    unlearned = [
        loader
        for loader in recording.main.loaders
        if loader.ident not in training_idents and loader.batches
    ]
    small = min(unlearned, key=lambda loader: loader.batch_size or math.inf, default=None)
    if not sizes or small is None or not small.batch_size:
        return None
    if small.batch_size * _SMALLER > max(sizes):
        return None
    evaluated = small.batch_size
    trained = max(sizes)
    return fact("small-batches", location=small.location, evaluated=evaluated, trained=trained)


_TAKES = (
    "Evaluation takes {share:.0%} of the training time: it came {times:counted time} in {steps} "
    "steps"
)
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.2,
    unit="% of the training time",
    source="torchdoctor: a fifth of the time is worth a look",
    sentences={
        "share": _TAKES + ".",
        "share-each": _TAKES + ", after each.",
        "share-every": _TAKES + ", every {every}.",
        "half-as-often": "Half as often it would take {then:.0%}; that changes what you see of "
        "training, not what is learned.",
        "small-batches": "It takes batches of {evaluated}[ ({location:place})], training those of "
        "{trained}: larger ones share the cost of each call and need no memory for gradients.",
        "own-loader": "Of the training time, {share:.0%} is its wait for its own data loader.",
    },
    advises=("small-batches",),
    examine=_examine,
    fires=[{"steps": {"evaluation_s": 0.004, "evaluations": 3}}],
    quiet=[{"steps": {"evaluation_s": 0.004, "evaluations": 1}}],
)
