"""Steps that are taken in at once, by an earlier one, are what they are event by event."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from test_stepping import EVAL, GRAD, MS, Program

from torchdoctor.probe import step_log
from torchdoctor.watch.inside import stepping
from torchdoctor.watch.inside.repeated_steps import RepeatedSteps
from torchdoctor.watch.inside.step_under_way import StepUnderWay

SEEDS = range(160)
LENGTHS = (3, 20, 60, 150)  # steps of a phase of a program
TIMES_MS = (0.003, 0.05, 1.0, 20.0)  # from one event to the next


class Mixed(Program):
    """A program made up at random of phases, each with its own kind of step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        super().__init__(monkeypatch)
        self.random = random.Random(seed)
        self.thread = 1
        monkeypatch.setattr(stepping, "get_ident", lambda: self.thread)

    def does(self, code: int, ident: int = 0, value: int = 0, ms: float = 1) -> None:
        super().does(code, ident, value, self.random.choice(TIMES_MS))

    def trains(self, number: int) -> None:
        self.fetch()
        self.updates_alone(number)

    def updates_alone(self, number: int) -> None:
        self.now += MS
        self.log.forward(0, GRAD, 96, 32, is_new=self.random.random() < 0.02)
        self.does(step_log.FORWARD_END)
        self.backward()
        self.update()

    def accumulates(self, number: int) -> None:
        self.fetch()
        self.forward()
        self.backward()
        if number % 4 == 3:
            self.update()

    def raises_now_and_then(self, number: int) -> None:
        self.now += MS
        self.log.forward(0, GRAD, 96, 32)
        if self.random.random() > 0.05:
            self.does(step_log.FORWARD_END)
        self.backward()
        self.update()

    def marks_steps(self, number: int) -> None:
        self.updates_alone(number)
        self.does(step_log.EXPLICIT_STEP)

    def collects(self, number: int) -> None:
        self.step_with_a_collection()

    def evaluates(self, number: int) -> None:
        self.fetch(loader=1)
        self.forward(EVAL)

    def infers(self, number: int) -> None:
        self.thread = 1 + number % 2
        self.forward(EVAL)
        self.thread = 1
        if number == 50:
            self.log.infer()

    def fetches_twice(self, number: int) -> None:
        for _ in range(self.random.choice((1, 2, 2, 2, 4))):
            self.fetch()
        self.trains(number)

    def checkpoints(self, number: int) -> None:
        self.forward()
        self.does(step_log.BACKWARD_BEGIN)
        for _ in range(number // 40):
            self.backward()
        self.does(step_log.BACKWARD_END)

    def computes_gradients(self, number: int) -> None:
        self.fetch(loader=self.random.choice((0, 0, 0, 2)))
        self.forward()
        kind = self.random.randrange(len(step_log.GRADIENT_CALLS))
        self.does(step_log.GRADIENT_BEGIN, kind)
        self.does(step_log.GRADIENT_END, kind)

    def learns_both_ways(self, number: int) -> None:
        self.computes_gradients(number)
        if number > 50 and number % 8 == 0:
            self.backward()

    def trains_elsewhere(self, number: int) -> None:
        self.thread = 3
        self.trains(number)
        self.thread = 1

    def rests(self, number: int) -> None:
        self.trains(number)
        if self.random.random() < 0.03:
            self.now += 5 * MS
            self.log.rested(20, self.now)

    def run(self) -> tuple[bytes, list[tuple[str, object]], int]:
        """Return its rows, what was found to separate steps, and how many there were."""
        kinds: list[Callable[[int], None]] = [
            *(self.trains, self.updates_alone, self.accumulates, self.raises_now_and_then),
            *(self.marks_steps, self.collects, self.evaluates, self.infers, self.rests),
            *(self.fetches_twice, self.checkpoints),
            *(self.computes_gradients, self.learns_both_ways, self.trains_elsewhere),
        ]
        chosen = self.random.sample(kinds, self.random.randint(1, 4))
        for _ in range(self.random.randint(1, 6)):
            step = self.random.choice(chosen)
            for number in range(self.random.choice(LENGTHS)):
                step(number)
                if self.random.random() < 0.01:
                    self.log.work()
        self.log.end()
        return bytes(self.rows), self.found, self.log.step


def test_a_step_that_is_known_is_what_it_is_event_by_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeat = StepUnderWay.repeat
    repeated = 0

    def counted(step: StepUnderWay, *of_step: Any) -> None:
        nonlocal repeated
        repeated += 1
        repeat(step, *of_step)

    monkeypatch.setattr(StepUnderWay, "repeat", counted)
    for seed in SEEDS:
        at_once = Mixed(monkeypatch, seed).run()
        with monkeypatch.context() as nothing_kept:
            nothing_kept.setattr(RepeatedSteps, "keep", lambda *_: None)
            by_event = Mixed(monkeypatch, seed).run()
        assert at_once == by_event, f"seed {seed}"
    assert repeated > 20 * len(SEEDS), "or nothing was compared"
