"""What a step is: `run` on its log and `watch` while it comes say the same of forty programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from programs import PROGRAMS, Event, Expected, Tape

from torchdoctor.observe.events import Events, from_rows
from torchdoctor.observe.step_finding import StepsFound, boundary_rows, find_boundary
from torchdoctor.probe import step_log
from torchdoctor.schema import OptimizerFacts, ProcessFacts
from torchdoctor.steps import evidence
from torchdoctor.steps.rule import StepRule
from torchdoctor.watch.inside import layout, stepping
from torchdoctor.watch.recording import Steps

MS = 1_000_000
START_NS = 10**12
# As the hooks of the probe log it: in the value, where nothing else stands there.
_WITH_THREAD = (step_log.FETCH_BEGIN, step_log.BACKWARD_BEGIN, step_log.OPTIMIZER_BEGIN)
_OF_RULE = {
    step_log.FETCH_BEGIN: evidence.FETCH,
    step_log.FORWARD_BEGIN: evidence.FORWARD,
    step_log.BACKWARD_BEGIN: evidence.BACKWARD_BEGIN,
    step_log.BACKWARD_END: evidence.BACKWARD_END,
    step_log.OPTIMIZER_BEGIN: evidence.OPTIMIZER_BEGIN,
    step_log.OPTIMIZER_END: evidence.OPTIMIZER_END,
    step_log.EXPLICIT_STEP: evidence.STEP,
}


def recorded(name: str) -> tuple[list[Event], Expected]:
    program, expected = PROGRAMS[name]
    tape = Tape()
    program(tape)
    return tape.events, expected


def logged(events: list[Event]) -> Events:
    """The log that the probe writes of it, a millisecond from each event to the next."""
    rows = [
        (e.code, e.ident, START_NS + at * MS, e.thread if e.code in _WITH_THREAD else e.value)
        for at, e in enumerate(events)
    ]
    return from_rows(np.array(rows, dtype=np.int64).reshape(-1, 4))


def by_run(events: list[Event], also_made: Sequence[int] = ()) -> tuple[str, int, int, bool] | None:
    """Kind, number of the loader or optimizer, steps, and whether that is decided, for `run`."""
    log = logged(events)
    made = {event.ident for event in events if event.code == step_log.OPTIMIZER_BEGIN}
    optimizers = [OptimizerFacts(ident=ident) for ident in made | set(also_made)]
    found = find_boundary({1: log}, {1: ProcessFacts(pid=1, optimizers=optimizers)})
    if not isinstance(found, StepsFound):
        return None
    complete = len(boundary_rows(log, found.boundary)) - 1
    return found.boundary.kind, found.boundary.ident, complete, found.is_decided


class Watched:
    """The same program, watched."""

    def __init__(self, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, int | None]] = []
        rows = bytearray()
        now, thread = [START_NS], [0]
        monkeypatch.setattr(stepping, "perf_counter_ns", lambda: now[0])
        monkeypatch.setattr(stepping, "get_ident", lambda: thread[0])
        log = stepping.StepLog(rows.extend, lambda *told, **figures: None, lambda number: number)
        log.on_found = lambda kind, place, again: self.found.append((kind, place))
        for event in events:
            now[0] += MS
            thread[0] = event.thread
            if event.code == step_log.FORWARD_BEGIN:
                log.forward(event.ident, event.value)
            else:
                log.add(event.code, event.ident, event.value)
            log.work()
        log.end()
        read = Steps(rows=np.frombuffer(bytes(rows), list(layout.STEP_COLUMNS)))
        self.steps = int(read.steps.sum())


def is_fetched_after_learning(events: list[Event], loader: int) -> bool:
    fetches = [at for at, e in enumerate(events) if e.code == step_log.FETCH_BEGIN]
    learned = [at for at, e in enumerate(events) if e.code == step_log.OPTIMIZER_END]
    return [at for at in fetches if events[at].ident == loader][-1] > learned[-1]


def decisions(events: list[Event]) -> Iterator[tuple[str, object] | None]:
    """What the rule itself says after each event."""
    rule = StepRule()
    for at, event in enumerate(events):
        if event.code in _OF_RULE:
            rule.add(_OF_RULE[event.code], event.ident, event.thread, at)
        yield rule.decision[:2] if rule.decision is not None else None


@pytest.mark.parametrize("name", PROGRAMS)
def test_run_and_watch_agree_on_what_a_step_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events, expected = recorded(name)
    watched, seen = Watched(events, monkeypatch), by_run(events)
    if expected.kind is None:
        if expected.inferring is None:
            assert seen is None and not watched.found
        else:  # a training may still begin, for `run`; `watch` has seen the program's end
            assert watched.found == [(expected.inferring, expected.ident)]
            assert watched.steps == expected.steps
            unseen = int(expected.inferring != "loader")  # no call follows the last one
            assert seen == (expected.inferring, expected.ident, expected.steps - unseen, False)
        return
    assert seen is not None
    kind, ident, complete, is_decided = seen
    assert is_decided
    (found,) = watched.found  # once, and never another
    assert kind == found[0] == expected.kind
    if expected.ident is not None:
        assert ident == found[1] == expected.ident
    assert watched.steps == expected.steps
    # No boundary is seen before the first batch, and where no fetch follows none after the last.
    unseen = 1 if kind != "loader" or is_fetched_after_learning(events, ident) else 2
    assert complete == expected.steps - unseen


@pytest.mark.parametrize("name", [name for name in PROGRAMS if PROGRAMS[name][1].kind])
def test_what_was_decided_holds_however_far_the_machine_came(name: str) -> None:
    events, _ = recorded(name)
    made = {event.ident for event in events if event.code == step_log.OPTIMIZER_BEGIN}
    stride, said = max(len(events) // 60, 1), set()
    for stop in range(1, len(events) + 1, stride):
        seen = by_run(events[:stop], made)
        if seen is not None and seen[3]:
            said.add(seen[:2])
    assert len(said) == 1


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "gradients without" not in name])
def test_the_rule_decides_once(name: str) -> None:
    events, expected = recorded(name)
    said = [decision for decision in decisions(events) if decision is not None]
    if expected.kind is not None:  # an evaluation may come before
        said = [decision for decision in said if decision[0] != "forward"]
    assert said
    assert {kind for kind, _ in said} == {expected.rule or expected.kind}
    assert len(set(said)) == 1
