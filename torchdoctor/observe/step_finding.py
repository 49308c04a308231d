"""What one iteration of this program is: the log of its events, given to the rule of `steps`.

The event that separates two iterations must be one that the probe can see at run time;
`boundary_rows` finds it as the probe does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from torchdoctor.observe.events import Events, learning_rows
from torchdoctor.probe import step_log
from torchdoctor.schema import Boundary, Evidence, Location, ProcessFacts, fact, figures
from torchdoctor.steps import evidence
from torchdoctor.steps.rule import Decision, StepRule

_BEGINS = {
    "loader": step_log.FETCH_BEGIN,
    "optimizer": step_log.OPTIMIZER_END,
    "backward": step_log.BACKWARD_BEGIN,
    "forward": step_log.FORWARD_BEGIN,
    "entry": step_log.ENTRY_BEGIN,
    "explicit": step_log.EXPLICIT_STEP,
}
_EVENTS = {  # of the rule
    step_log.FETCH_BEGIN: evidence.FETCH,
    step_log.OPTIMIZER_BEGIN: evidence.OPTIMIZER_BEGIN,
    step_log.OPTIMIZER_END: evidence.OPTIMIZER_END,
    step_log.BACKWARD_BEGIN: evidence.BACKWARD_BEGIN,
    step_log.BACKWARD_END: evidence.BACKWARD_END,
    step_log.EXPLICIT_STEP: evidence.STEP,
    step_log.LEARNED: evidence.BATCH,
}
_INFERRING = {  # where a model's call is all that happens; a batch that it gets counts
    step_log.FETCH_BEGIN: evidence.FETCH,
    step_log.FORWARD_END: evidence.BATCH,
    step_log.ENTRY_BEGIN: evidence.ENTRY,
    step_log.ENTRY_END: evidence.ENTRY_END,
    step_log.EXPLICIT_STEP: evidence.STEP,
}
_CALLS = {step_log.FORWARD_BEGIN: evidence.FORWARD}
_FEWEST_CALLS, _LEAST_S = 5, 3.0  # of a program that infers: no training begins any more
STEP_KINDS = evidence.NAMED_KINDS
_MORE_STEPS = "Give it more data or steps, or call torchdoctor.step() at the end of each iteration."
# Why steps cannot be told by what the user named.
_ABSENCE = {
    "loader": "no DataLoader fed the training",
    "optimizer": "no optimizer stepped",
    "backward": "no backward pass and no call of torch.autograd.grad was seen",
    "explicit": "the program never called torchdoctor.step()",
}
FEWEST_ITERATIONS = 2  # complete ones; below this nothing can be timed
_MINOR_TRAINER = 0.2  # of the busiest process's backwards, to count as a trainer


@dataclass(frozen=True, kw_only=True)
class StepsFound:
    """How iterations are separated, and by which processes."""

    boundary: Boundary
    evidence: Evidence  # what an iteration is, and the counts that this rests on
    trainers: list[int]  # pids, the main one first
    is_decided: bool = True  # no further events of this kind would change it


@dataclass(frozen=True)
class NoSteps:
    """No training step was found: what was seen instead in one sentence, and what can be done."""

    reason: str
    advice: str = _MORE_STEPS


def boundary_rows(events: Events, boundary: Boundary) -> np.ndarray:
    """Return the rows of the events that begin an iteration, by the probe's own rule.

    A loader's boundary is the beginning of a fetch when something was learned since the last
    boundary; so evaluating over the training loader, or fetching ahead, begins no iteration. The
    first fetch begins one where the program infers; of a training that iteration is told apart, as
    `first_step_s`.
    """
    rows = events.at(_BEGINS[boundary.kind])
    if boundary.kind == "loader":
        rows = rows[events.loader[rows] == boundary.ident]
        learned = np.searchsorted(learning_rows(events), rows)
        rows = rows[np.diff(learned, prepend=-1 if boundary.infers else 0) > 0]
    elif boundary.kind in ("optimizer", "forward", "entry"):
        rows = rows[events.ident[rows] == boundary.ident]
    elif boundary.kind == "backward":
        rows = rows[_passes_open(events)[rows] == 1]  # without those within, as of checkpointing
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
    decision = _decide(events, step_on)
    if step_on is not None and decision is None:
        return NoSteps(
            reason=f"steps were to be told by {step_on!r}, but {_ABSENCE[step_on]} "
            f"({tally(events)}).",
            advice="Leave --step-on out, so that what was seen counts.",
        )
    boundary = Boundary(kind="backward")
    if decision is not None:
        ident = decision.source if isinstance(decision.source, int) else 0
        boundary = Boundary(kind=decision.kind, ident=ident)
    found_by = _evidence(boundary, events, facts)
    boundary = replace(boundary, learned_by=events.learned_by)
    complete = len(boundary_rows(events, boundary)) - 1
    if complete < FEWEST_ITERATIONS:
        return NoSteps(
            reason=f"only {max(complete, 0)} complete iterations were seen "
            f"({tally(events)}); at least {FEWEST_ITERATIONS} are needed."
        )
    processes = len(trainers) if len(trainers) > 1 else None
    values = {**found_by.values, "asked_for": step_on, "processes": processes}
    return StepsFound(
        boundary=boundary,
        evidence=replace(found_by, values=values),
        trainers=trainers,
        is_decided=_is_final(decision, facts)
        if not boundary.infers
        else _infers_for_sure(events, facts, boundary),
    )


def training_processes(
    events_by_pid: Mapping[int, Events], facts: Mapping[int, ProcessFacts], main: int | None = None
) -> list[int]:
    """Return the pids of the processes that train, the main one first: that of rank `main`."""
    infers = {pid for pid, events in events_by_pid.items() if events.learned_by == "forward"}
    if any(len(learning_rows(events_by_pid[pid])) for pid in events_by_pid.keys() - infers):
        events_by_pid = {pid: events for pid, events in events_by_pid.items() if pid not in infers}
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


def _is_final(decision: Decision | None, facts: ProcessFacts) -> bool:
    """Return whether more of the same changes nothing about what a step is."""
    if decision is None:
        return False
    # Where there is no optimizer, none needs to be waited for.
    by_hand = decision.kind == "backward" and not facts.optimizers
    return decision.is_final or (by_hand and decision.is_sure)


def _infers_for_sure(events: Events, facts: ProcessFacts, boundary: Boundary) -> bool:
    """Return whether models were called for long enough, and no optimizer waits for its turn."""
    called = learning_rows(events)
    if len(called) < _FEWEST_CALLS or facts.optimizers:
        return False
    if boundary.kind not in ("entry", "explicit") and _awaits_calls(events):
        return False
    return float(events.t_ns[called[-1]] - events.t_ns[called[0]]) / 1e9 >= _LEAST_S


def _awaits_calls(events: Events) -> bool:
    """Return whether a known entry point was called too few times to know if it goes on."""
    begins = events.at(step_log.ENTRY_BEGIN)
    fetches = events.at(step_log.FETCH_BEGIN)
    outside = len(begins) > 0 and len(fetches) > 0 and fetches[0] < begins[0]
    return 0 < len(begins) < evidence.FEWEST and not outside


@lru_cache(4)
def _decide(events: Events, wanted: str | None) -> Decision | None:
    """Return what the rule says of a log, or would say of it so far."""
    if events.learned_by != "forward":
        return _by_rule(events, wanted, _EVENTS)
    by_call = _by_rule(events, wanted, _INFERRING)
    if by_call is not None and by_call.is_sure:
        return by_call
    return _by_rule(events, wanted, _CALLS) or by_call


def _by_rule(events: Events, wanted: str | None, kinds: Mapping[int, int]) -> Decision | None:
    rule = StepRule(wanted)
    rows = events.at(*kinds)
    codes = events.code[rows]
    sources = np.where(codes == step_log.FETCH_BEGIN, events.loader[rows], events.ident[rows])
    columns = (codes, sources, events.t_ns[rows], _threads(events)[rows])
    for code, source, now, thread in zip(*(column.tolist() for column in columns), strict=True):
        rule.add(kinds[code], source, thread, now)
    return rule.leaning()


def _threads(events: Events) -> np.ndarray:
    """Return the thread of each event: those that begin something name it; int64 of shape (n,)."""
    if events.learned_by == "forward":
        return np.zeros(len(events), dtype=np.int64)  # who fetches ahead does so for the models
    fetches, passes, updates = (
        _latest(events, begin)
        for begin in (step_log.FETCH_BEGIN, step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN)
    )
    named = np.maximum(passes, updates)  # what names none is of the thread that learns
    for code, latest in (
        (step_log.FETCH_BEGIN, fetches),
        (step_log.LEARNED, fetches),
        (step_log.FORWARD_END, fetches),
        (step_log.BACKWARD_END, _passes_ended(events)),
        (step_log.OPTIMIZER_END, updates),
    ):
        named = np.where(events.code == code, latest, named)
    return np.where(named < 0, 0, events.value[named])


def _latest(events: Events, code: int) -> np.ndarray:
    """Return the row of the latest event of a code, at each event; -1: none yet."""
    rows = np.where(events.code == code, np.arange(len(events)), -1)
    return np.asarray(np.maximum.accumulate(rows))


def _passes_ended(events: Events) -> np.ndarray:
    """Return the row where the pass began that ends with each event; -1: none does.

    Of passes within each other the last one to begin ends first.
    """
    begins = np.full(len(events), -1, dtype=np.int64)
    opened = list[int]()
    rows = events.at(step_log.BACKWARD_BEGIN, step_log.BACKWARD_END)
    for row, code in zip(rows.tolist(), events.code[rows].tolist(), strict=True):
        if code == step_log.BACKWARD_BEGIN:
            opened.append(row)
        elif opened:
            begins[row] = opened.pop()
    return begins


def _passes_open(events: Events) -> np.ndarray:
    """Return how many backward passes are open after each event; int64 of shape (n,)."""
    change = (events.code == step_log.BACKWARD_BEGIN).astype(np.int64)
    change -= events.code == step_log.BACKWARD_END
    opened = np.cumsum(change)
    # The log may begin within a pass.
    return np.asarray(opened - np.minimum.accumulate(np.minimum(opened, 0)))


def _evidence(boundary: Boundary, events: Events, facts: ProcessFacts) -> Evidence:
    """Return what one iteration is, with the counts that it rests on."""
    place: Location | None = None
    name: str | None = None
    beside_loaders = False
    if boundary.kind == "loader":
        loaders = [loader for loader in facts.loaders if loader.ident == boundary.ident]
        place = loaders[0].location if loaders else None
    elif boundary.kind == "optimizer":
        steppers = [each for each in facts.optimizers if each.ident == boundary.ident]
        if steppers:
            name = steppers[0].cls.rsplit(".", 1)[-1] or None
            place = steppers[0].location
        beside_loaders = any(loader.batches > 0 for loader in facts.loaders)
    elif boundary.kind == "forward":
        models = [model.cls for model in facts.models if model.ident == boundary.ident]
        name = models[0].rsplit(".", 1)[-1] if models else None
    elif boundary.kind == "entry":
        names = [entry.name for entry in facts.entry_points if entry.ident == boundary.ident]
        name = names[0] if names else None
    return fact(
        "optimizer-beside-loaders" if beside_loaders else boundary.kind,
        location=place,
        name=name or None,
        learned_by=events.learned_by,
        counts=counts_of(events),
    )


def tally(events: Events) -> str:
    """Return how much of each kind was seen."""
    return figures.tally(counts_of(events), events.learned_by)


def _fetched(events: Events) -> int:
    return int((events.value[events.at(step_log.FETCH_END)] != -1).sum())


def counts_of(events: Events) -> dict[str, int]:
    """Return how much of each kind was seen, where any was; kinds are those of `figures.tally`."""
    forwards = events.at(step_log.FORWARD_BEGIN)
    backwards = events.at(step_log.BACKWARD_BEGIN)
    none_was_hooked = len(forwards) > 0 and bool((backwards[:1] < forwards[0]).any())
    counts = {
        "batch": _fetched(events),
        "forward_after_first" if none_was_hooked else "forward": len(forwards),
        "computed": len(backwards),
        "gradient_within": len(events.at(step_log.GRADIENT_BEGIN)),
        "optimizer": len(events.at(step_log.OPTIMIZER_END)),
        "explicit": len(events.at(step_log.EXPLICIT_STEP)),
    }
    return {kind: number for kind, number in counts.items() if number}


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
    counted = counts_of(busiest)
    counts = figures.counts_in_words(counted, busiest.learned_by) or "loaders were started"
    if len(busiest.at(step_log.FORWARD_BEGIN)):
        return f"{counts}, but no backward pass: this looks like inference, not training."
    return f"{counts}, but no forward or backward pass."
