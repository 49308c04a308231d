"""What was found to be a step, or was not, in words for the report."""

from __future__ import annotations

from collections.abc import Mapping

from torchdoctor.observe.events import Events
from torchdoctor.probe import step_log
from torchdoctor.words import Boundary, Location, ProcessFacts

MORE_STEPS = "Give it more data or steps, or call torchdoctor.step() at the end of each iteration."
_CALLS = {
    "autograd.grad": ("call of torch.autograd.grad", "calls of torch.autograd.grad"),
    "torch.func": ("gradient of torch.func", "gradients of torch.func"),
    "create_graph": ("call of torch.autograd.grad", "calls of torch.autograd.grad"),
    "other": ("gradient within the loss", "gradients within the loss"),
}
_BACKWARD = {
    "backward": "one backward pass",
    "autograd.grad": "one call of torch.autograd.grad",
    "torch.func": "one gradient by torch.func",
    "create_graph": "one call of torch.autograd.grad",
    "batch": "one batch",
}


def advice(events: Mapping[int, Events]) -> str:
    """Return the advice that makes the steps of a program known."""
    explicit = "call torchdoctor.step() at the end of each iteration"
    if any(fetched(log) > 1 for log in events.values()):
        return f"If it trains all the same, give --step-on loader, or {explicit}."
    return f"If it trains, {explicit}."


def fetched(events: Events) -> int:
    """Return the batches that came of any DataLoader."""
    return int((events.value[events.at(step_log.FETCH_END)] != -1).sum())


def absence(kind: str) -> str:
    """Return why steps cannot be told by what the user named."""
    return {
        "loader": "no DataLoader fed the training",
        "optimizer": "no optimizer stepped",
        "backward": "no backward pass and no call of torch.autograd.grad was seen",
        "explicit": "the program never called torchdoctor.step()",
    }[kind]


def words(boundary: Boundary, events: Events, facts: ProcessFacts) -> str:
    """Return what one iteration is, with the counts that it rests on."""
    if boundary.kind == "loader":
        place = next((x.location for x in facts.loaders if x.ident == boundary.ident), None)
        iteration = f"one iteration is one batch of the DataLoader{_at(place)}"
    elif boundary.kind == "optimizer":
        fact = next((x for x in facts.optimizers if x.ident == boundary.ident), None)
        name = fact.cls.rsplit(".", 1)[-1] if fact is not None and fact.cls else "the optimizer"
        feeding = sum(loader.batches > 0 for loader in facts.loaders)
        if not feeding:
            why = "there is no DataLoader"
        elif feeding == 1:
            why = "no fetch of a DataLoader goes with each step"
        else:  # one made anew in each epoch counts as many
            why = f"no one of {feeding} DataLoaders feeds each step"
        iteration = f"{why}, so one iteration is one step of {name}"
        iteration += _at(fact.location if fact is not None else None)
    elif boundary.kind == "backward":
        iteration = f"one iteration is {_BACKWARD[events.learned_by]}"
    else:
        iteration = "one iteration is one call of torchdoctor.step()"
    if events.learned_by == "batch":
        iteration += ", though no backward pass and no optimizer step was seen"
    return f"{iteration} ({tally(events)})"


def _at(place: Location | None) -> str:
    return f" at {place.file}:{place.line}" if place is not None else ""


def tally(events: Events) -> str:
    """Return how much of each kind was seen."""
    counted = _counted(events)
    return f"{counted} seen" if counted else "no pass or step had ended"


def _counted(events: Events) -> str:
    named = _CALLS.get(events.learned_by)
    computed = named or ("backward pass", "backward passes")
    forwards, backwards = events.at(step_log.FORWARD_BEGIN), events.at(step_log.BACKWARD_BEGIN)
    later = ""
    if len(forwards) and len(backwards) and backwards[0] < forwards[0]:
        later = f" after the first {named[0] if named else 'backward pass'}"  # none was hooked yet
    counts = (
        (fetched(events), "batch fetched", "batches fetched"),
        (len(forwards), f"forward pass{later}", f"forward passes{later}"),
        (len(backwards), *computed),
        (len(events.at(step_log.GRADIENT_BEGIN)), *_CALLS["other"]),
        (len(events.at(step_log.OPTIMIZER_END)), "optimizer step", "optimizer steps"),
        (len(events.at(step_log.EXPLICIT_STEP)), "call of it", "calls of it"),
    )
    return ", ".join(f"{n} {singular if n == 1 else plural}" for n, singular, plural in counts if n)


def seen_instead(events: Mapping[int, Events], facts: Mapping[int, ProcessFacts]) -> str:
    """Return what a program without training steps did."""
    if not events and not facts:
        return (
            "no process of the program fetched a batch from a DataLoader, made a backward pass or "
            "stepped an optimizer (python -I, -E and -S keep the probe out)."
        )
    busiest = max(events.values(), key=len, default=None)
    if busiest is None or not len(busiest):
        return "the program imported torch, but fetched no batch and made no backward pass."
    counts = _counted(busiest)
    if len(busiest.at(step_log.FORWARD_BEGIN)):
        return f"{counts}, but no backward pass: this looks like inference, not training."
    return f"{counts or 'loaders were started'}, but no forward or backward pass."
