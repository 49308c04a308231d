"""What was found to be a step, or was not, in words for the report."""

from __future__ import annotations

from collections.abc import Mapping

from torchdoctor.observe.events import Events
from torchdoctor.probe import step_log
from torchdoctor.words import Boundary, Location, ProcessFacts

MORE_STEPS = "Give it more data or steps, or call torchdoctor.step() at the end of each iteration."
_GRADIENT_CALLS = ("call of torch.autograd.grad", "calls of torch.autograd.grad")
_COMPUTED = {
    "backward": ("backward pass", "backward passes"),
    "autograd.grad": _GRADIENT_CALLS,
    "torch.func": ("gradient by torch.func", "gradients by torch.func"),
    "create_graph": _GRADIENT_CALLS,
    "batch": ("batch", "batches"),
}
# Why steps cannot be told by what the user named.
ABSENCE = {
    "loader": "no DataLoader fed the training",
    "optimizer": "no optimizer stepped",
    "backward": "no backward pass and no call of torch.autograd.grad was seen",
    "explicit": "the program never called torchdoctor.step()",
}


def advice(events: Mapping[int, Events]) -> str:
    """Return the advice that makes the steps of a program known."""
    explicit = "call torchdoctor.step() at the end of each iteration"
    if any(_fetched(log) > 1 for log in events.values()):
        return f"If it trains all the same, give --step-on loader, or {explicit}."
    return f"If it trains, {explicit}."


def words(boundary: Boundary, events: Events, facts: ProcessFacts) -> str:
    """Return what one iteration is, with the counts that it rests on."""
    place: Location | None = None
    if boundary.kind == "loader":
        place = next((x.location for x in facts.loaders if x.ident == boundary.ident), None)
        iteration = "one iteration is one batch of the DataLoader"
    elif boundary.kind == "optimizer":
        fact = next((x for x in facts.optimizers if x.ident == boundary.ident), None)
        name = fact.cls.rsplit(".", 1)[-1] if fact is not None and fact.cls else "the optimizer"
        place = fact.location if fact is not None else None
        feeding = sum(loader.batches > 0 for loader in facts.loaders)
        why = "no DataLoader feeds each step" if feeding else "there is no DataLoader"
        iteration = f"{why}, so one iteration is one step of {name}"
    elif boundary.kind == "backward":
        iteration = f"one iteration is one {_COMPUTED[events.learned_by][0]}"
    else:
        iteration = "one iteration is one call of torchdoctor.step()"
    if place is not None:
        iteration += f" at {place.file}:{place.line}"
    if events.learned_by == "batch":
        iteration += ", though no backward pass and no optimizer step was seen"
    return f"{iteration} ({tally(events)})"


def tally(events: Events) -> str:
    """Return how much of each kind was seen."""
    counted = _counted(events)
    return f"{counted} seen" if counted else "no pass or step had ended"


def _fetched(events: Events) -> int:
    return int((events.value[events.at(step_log.FETCH_END)] != -1).sum())


def _counted(events: Events) -> str:
    forwards, backwards = events.at(step_log.FORWARD_BEGIN), events.at(step_log.BACKWARD_BEGIN)
    computed, later = _COMPUTED[events.learned_by], ""
    if len(forwards) and (backwards[:1] < forwards[0]).any():
        later = f" after the first {computed[0]}"  # none was hooked yet
    gradients = len(events.at(step_log.GRADIENT_BEGIN))
    counts = {
        ("batch fetched", "batches fetched"): _fetched(events),
        (f"forward pass{later}", f"forward passes{later}"): len(forwards),
        computed: len(backwards),
        ("gradient within the loss", "gradients within the loss"): gradients,
        ("optimizer step", "optimizer steps"): len(events.at(step_log.OPTIMIZER_END)),
        ("call of it", "calls of it"): len(events.at(step_log.EXPLICIT_STEP)),
    }
    return ", ".join(f"{n} {names[n != 1]}" for names, n in counts.items() if n)


def seen_instead(events: Mapping[int, Events], facts: Mapping[int, ProcessFacts]) -> str:
    """Return what a program without training steps did."""
    busiest = max(events.values(), key=len, default=None)
    if busiest is None and not facts:
        return (
            "no process of the program fetched a batch from a DataLoader, made a backward pass or "
            "stepped an optimizer (python -I, -E and -S keep the probe out)."
        )
    if busiest is None or not len(busiest):
        return "the program imported torch, but fetched no batch and made no backward pass."
    counts = _counted(busiest) or "loaders were started"
    if len(busiest.at(step_log.FORWARD_BEGIN)):
        return f"{counts}, but no backward pass: this looks like inference, not training."
    return f"{counts}, but no forward or backward pass."
