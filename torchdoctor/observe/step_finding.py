"""What one iteration of this program is, decided from the whole sequence of events.

An iteration is one batch of the training loop. The event that separates two must be one that the
probe can see at run time, so each candidate is tried out by the probe's own rule (`boundary_rows`).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from torchdoctor.observe.events import Events, learning_rows
from torchdoctor.probe import step_log
from torchdoctor.words import Boundary, Location, ProcessFacts

_BEGINS = {
    "loader": step_log.FETCH_BEGIN,
    "optimizer": step_log.OPTIMIZER_END,
    "backward": step_log.BACKWARD_BEGIN,
    "explicit": step_log.EXPLICIT_STEP,
}
STEP_KINDS = tuple(_BEGINS)
_MORE_STEPS = "Give it more data or steps, or call torchdoctor.step() at the end of each iteration."
_GRADIENT_CALLS = ("call of torch.autograd.grad", "calls of torch.autograd.grad")
_COMPUTED = {
    "backward": ("backward pass", "backward passes"),
    "autograd.grad": _GRADIENT_CALLS,
    "torch.func": ("gradient by torch.func", "gradients by torch.func"),
    "create_graph": _GRADIENT_CALLS,
    "batch": ("batch", "batches"),
}
# Why steps cannot be told by what the user named.
_ABSENCE = {
    "loader": "no DataLoader fed the training",
    "optimizer": "no optimizer stepped",
    "backward": "no backward pass and no call of torch.autograd.grad was seen",
    "explicit": "the program never called torchdoctor.step()",
}
FEWEST_ITERATIONS = 2  # complete ones; below this nothing can be timed
_FEW_OPTIMIZER_STEPS = 10
_STEADY_SPAN = 0.6  # of the learning that a boundary must go on for
_MINOR_TRAINER = 0.2  # of the busiest process's backwards, to count as a trainer


@dataclass(frozen=True, kw_only=True)
class StepsFound:
    """How iterations are separated, and by which processes."""

    boundary: Boundary
    how_found: str  # one sentence for the report
    trainers: list[int]  # pids, the main one first


@dataclass(frozen=True)
class NoSteps:
    """No training step was found: what was seen instead in one sentence, and what can be done."""

    reason: str
    advice: str = _MORE_STEPS


def boundary_rows(events: Events, boundary: Boundary) -> np.ndarray:
    """Return the rows of the events that begin an iteration, by the probe's own rule.

    A loader's boundary is the beginning of a fetch when something was learned since the last
    boundary; so evaluating over the training loader, or fetching ahead, begins no iteration.
    """
    rows = events.at(_BEGINS[boundary.kind])
    if boundary.kind == "loader":
        rows = rows[events.loader[rows] == boundary.ident]
        rows = rows[np.diff(np.searchsorted(learning_rows(events), rows), prepend=0) > 0]
    elif boundary.kind == "optimizer":
        rows = rows[events.ident[rows] == boundary.ident]
    return np.asarray(rows[boundary.every - 1 :: boundary.every])


def find_boundary(
    events_by_pid: Mapping[int, Events],
    facts_by_pid: Mapping[int, ProcessFacts],
    step_on: str | None = None,
    rank: int | None = None,
) -> StepsFound | NoSteps:
    """Find what separates iterations of the main training process; `step_on` overrules it."""
    trainers = training_processes(events_by_pid, facts_by_pid, rank)
    if not trainers:
        fetched = any(_fetched(log) > 1 for log in events_by_pid.values())
        loader = " all the same, give --step-on loader, or" if fetched else ","
        advice = f"If it trains{loader} call torchdoctor.step() at the end of each iteration."
        return NoSteps(_seen_instead(events_by_pid, facts_by_pid), advice)
    events = events_by_pid[trainers[0]]
    facts = facts_by_pid.get(trainers[0], ProcessFacts(pid=trainers[0]))
    if step_on is not None:
        boundary = _of_kind(events, step_on, facts)
        if boundary is None:
            return NoSteps(
                reason=f"steps were to be told by {step_on!r}, but {_ABSENCE[step_on]} "
                f"({tally(events)}).",
                advice="Leave --step-on out, so that what was seen counts.",
            )
        how = f"as asked for with --step-on {step_on}: {_words(boundary, events, facts)}"
    else:
        boundary = _decide(events, facts)
        how = _words(boundary, events, facts)
    boundary = replace(boundary, learned_by=events.learned_by)
    complete = len(boundary_rows(events, boundary)) - 1
    if complete < FEWEST_ITERATIONS:
        return NoSteps(
            reason=f"only {max(complete, 0)} complete iterations were seen "
            f"({tally(events)}); at least {FEWEST_ITERATIONS} are needed."
        )
    if len(trainers) > 1:
        how += f", in each of {len(trainers)} training processes"
    return StepsFound(boundary=boundary, how_found=how + ".", trainers=trainers)


def training_processes(
    events_by_pid: Mapping[int, Events], facts: Mapping[int, ProcessFacts], main: int | None = None
) -> list[int]:
    """Return the pids of the processes that train, the main one first: that of rank `main`."""
    marks = {
        pid: len(learning_rows(events)) + len(events.at(step_log.EXPLICIT_STEP))
        for pid, events in events_by_pid.items()
        if pid not in facts or not facts[pid].is_loader_worker
    }
    least = max(1.0, _MINOR_TRAINER * max(marks.values(), default=0))

    def order(pid: int) -> tuple[bool, int, int, int]:
        rank = facts[pid].rank if pid in facts else None
        last = 1 << 30 if rank is None else rank
        return (main not in (None, rank), last, int(events_by_pid[pid].t_ns[0]), pid)

    return sorted((pid for pid, count in marks.items() if count >= least), key=order)


def _decide(events: Events, facts: ProcessFacts) -> Boundary:
    if len(events.at(step_log.EXPLICIT_STEP)) > FEWEST_ITERATIONS:
        return Boundary(kind="explicit")
    slowest = _slowest_optimizer(events, learning_rows(events))
    by_update = slowest or Boundary(kind="backward")
    updates = len(boundary_rows(events, by_update))
    loader = _training_loader(events, _made_anew(events, facts))
    # A batch that is fetched once and trained on for ever makes no loop over the loader.
    if loader and len(boundary_rows(events, loader)) >= min(20, 0.2 * updates):
        return loader
    backwards = len(events.at(step_log.BACKWARD_BEGIN))
    # LBFGS: a few steps of many backwards each.
    if updates < _FEW_OPTIMIZER_STEPS and backwards >= 3 * updates:
        return Boundary(kind="backward")
    return by_update


def _made_anew(events: Events, facts: ProcessFacts) -> set[int]:
    """Return the loaders that a line makes again and again: none can be waited for in a trial."""
    fetches = events.at(step_log.FETCH_BEGIN)
    spans: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for loader in facts.loaders:
        rows, place = fetches[events.loader[fetches] == loader.ident], loader.location
        boundary = Boundary(kind="loader", ident=loader.ident)
        if place is not None and len(boundary_rows(events, boundary)):
            spans[place.file, place.line].append((int(rows[0]), int(rows[-1]), loader.ident))
    return {
        ident
        for alike in spans.values()
        for first, last, ident in alike
        if any(last < other[0] or other[1] < first for other in alike)
    }


def _training_loader(
    events: Events, left_out: Collection[int] = (), steady: bool = True
) -> Boundary | None:
    """Return the loader whose batches the training loop goes through; None: there is none."""
    ranked: list[tuple[int, int, Boundary]] = []
    learned = learning_rows(events)
    for ident in set(events.loader[events.at(step_log.FETCH_BEGIN)].tolist()) - set(left_out):
        boundary = Boundary(kind="loader", ident=ident)
        rows = boundary_rows(events, boundary)
        if len(rows) > FEWEST_ITERATIONS and (not steady or _goes_on(events, rows, learned)):
            # Of two loaders zipped, the one that is fetched first begins the iteration.
            late = int(np.median(rows - learned[np.searchsorted(learned, rows) - 1]))
            ranked.append((-len(rows), late, boundary))
    return min(ranked, key=lambda rank: (*rank[:2], rank[2].ident))[2] if ranked else None


def _slowest_optimizer(events: Events, learned: np.ndarray, steady: bool = True) -> Boundary | None:
    """Return the optimizer with the fewest steps of those that step all the time."""
    idents, counts = np.unique(events.ident[events.at(step_log.OPTIMIZER_END)], return_counts=True)
    for ident, count in sorted(zip(idents, counts, strict=True), key=lambda pair: pair[1]):
        boundary = Boundary(kind="optimizer", ident=int(ident))
        goes_on = count >= 0.02 * counts.max()
        goes_on &= _goes_on(events, boundary_rows(events, boundary), learned)
        if goes_on or not steady:
            return boundary
    return None


def _goes_on(events: Events, rows: np.ndarray, learned: np.ndarray) -> bool:
    """Return True if these events span most of the learning, by its time or by its events."""
    if len(rows) < 2 or len(learned) < 2:
        return len(rows) > 0
    span = float(events.t_ns[rows[-1]] - events.t_ns[rows[0]])
    span /= float(events.t_ns[learned[-1]] - events.t_ns[learned[0]])
    # By counts as well: the very first iteration may take longer than many after it.
    first, last = np.searchsorted(learned, [rows[0], rows[-1]])
    # One iteration is missing at each end: the first boundary comes after the first learning.
    missing = (len(rows) + 1) / (len(rows) - 1)
    return missing * max(span, float(last - first) / len(learned)) >= _STEADY_SPAN


def _of_kind(events: Events, kind: str, facts: ProcessFacts) -> Boundary | None:
    learned = learning_rows(events)
    if kind == "loader":
        steady = _training_loader(events, _made_anew(events, facts))
        return steady or _training_loader(events, steady=False)
    if kind == "optimizer":
        steady = _slowest_optimizer(events, learned)
        return steady or _slowest_optimizer(events, learned, steady=False)
    return Boundary(kind=kind) if len(events.at(_BEGINS[kind])) else None


def _words(boundary: Boundary, events: Events, facts: ProcessFacts) -> str:
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


def _seen_instead(events: Mapping[int, Events], facts: Mapping[int, ProcessFacts]) -> str:
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
