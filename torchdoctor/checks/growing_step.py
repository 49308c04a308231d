"""The step becomes longer with its number.

## What it means
Something is gone through whole in each step that each step makes larger: a history of scores, a
list of losses, a graph of autograd, a buffer. What costs little at first costs most later.

## What to do
Keep running figures (a sum, a count, a histogram) in place of the history, go through it only where
its result is read, or give it a bound (`deque(maxlen=...)`, `.detach()`).

## How it is measured
A line through the times of one phase in the measured steps (medians of a dozen parts), in relation
to the rest of the same steps, which other load on the machine makes longer as well. It counts where
it rises for certain, and makes the step longer by 15 % or more. Objects of the training loop are
asked for their sizes a few times a second, and models for their hooks; those that were larger each
time are named.

## Not to be confused with
Memory that grows (memory-growth), which need not cost any time. Warming up, which makes steps
shorter. Gains of fixes are those of the steps that were compared; later steps have more to gain.
"""

from torchdoctor.queries.growth import (
    HOOKS,
    growing_line,
    grown_objects,
    times_after_an_hour,
    times_at_end,
)
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    GrownObject,
    Recording,
    Symptom,
    Symptoms,
    fact,
    process,
)

_NAMED = 1
_PER = 100  # steps
_PHASES = {
    "data_wait": "waiting for data",
    "h2d_copy": "copies to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
}
_OUTSIDE = "code outside of forward, backward and optimizer"


def _examine(recording: Recording) -> Symptoms:
    steps = recording.steps
    growth = steps.growth if steps is not None else None
    if growth is None or growth.last_s < (1.0 + CHECK.threshold) * growth.first_s:
        return
    grown = grown_objects(recording)
    evidence = [
        fact(
            "slope",
            object=next(
                (
                    grown_object.name
                    for grown_object in grown[:_NAMED]
                    if grown_object.kind != HOOKS
                ),
                None,
            ),
            more_s=_PER * growth.slope_s,
            per=_PER,
            first_s=growth.first_s,
            last_s=growth.last_s,
            phase=_PHASES.get(growth.phase, _OUTSIDE),
        )
    ]
    at_end, epoch = times_at_end(recording, growth)
    if growth.anew_every is not None:
        evidence.append(fact("anew", times=at_end, steps=growth.anew_every))
    else:
        hour = times_after_an_hour(growth)
        evidence.append(fact("hour", times=hour, at_end=at_end, epoch=epoch))
    evidence += [_of_object(each) for each in grown[:_NAMED]]
    yield Symptom(evidence=evidence, location=growing_line(recording), severity="high")


def _of_object(grown: GrownObject) -> Evidence:
    """Return what grows, and where hooks are registered again."""
    each = grown.per_step
    last = grown.last
    if grown.kind != HOOKS:
        return fact("object", name=grown.name, kind=grown.kind, each=each, last=last)
    return fact(
        "hooks",
        location=grown.location,
        method=grown.name,
        model=grown.model or "the model",
        each=each,
        last=last,
    )


_GROWTH = {
    "slope_s": 1e-5,
    "first_s": 0.01,
    "last_s": 0.02,
    "phase": "other",
}
_OBJECT = {"name": "metric.scores", "kind": "Tensor", "first": 512, "last": 9000, "per_step": 512.0}
_HOOKS = {
    **_OBJECT,
    "name": "register_forward_hook",
    "kind": "hooks",
    "model": "Sequential",
    "location": {"file": "/w/train.py", "line": 20},
    "per_step": 2.0,
}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.15,
    unit="% by which the last measured step is longer than the first",
    source="torchdoctor: less cannot be told from a changing load",
    sentences={
        "slope": "{The_step} grows[ with {object}]: each {per} {units} make it {more_s:seconds} "
        "longer (from {first_s:seconds} to {last_s:seconds} while it was observed), in {phase}.",
        "hour": "[At the end of an epoch of {epoch} {units} it takes {at_end:.1f}x as long. ]If "
        "nothing begins anew, a {unit} takes {times:.1f}x as long after another hour.",
        "anew": "It begins anew after {steps} {units}, and takes {times:.1f}x as long by then.",
        "hooks": "{method} is called[ at {location:place}] again and again: {model} has {last:,} "
        "hooks by now, {each:.0f} more {each_step}. Register them once, or remove() each handle.",
        "object": "{name} ({kind}) grows by {each:.0f} elements {each_step}, to {last:,} so far.",
    },
    verdict="all",
    closes_verdict=True,
    examine=_examine,
    advises=("hooks",),
    fires=[
        {"steps": {"growth": _GROWTH}, **process(grown_objects=[_OBJECT])},
        {"steps": {"growth": _GROWTH}, **process(grown_objects=[_HOOKS])},
    ],
    quiet=[{"steps": {"growth": {**_GROWTH, "last_s": 0.011}}}, process(grown_objects=[_OBJECT])],
)
