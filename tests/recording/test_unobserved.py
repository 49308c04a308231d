"""A training in phases tells of those that no measured step shows."""

from __future__ import annotations

import pytest
from event_sequences import Script

from torchdoctor.observe.step_finding import StepsFound, find_boundary
from torchdoctor.observe.steps import step_statistics
from torchdoctor.schema import UnobservedPhase


def unobserved(script: Script, window: int | None = None) -> list[UnobservedPhase]:
    events = {1: script.events()}
    found = find_boundary(events, {})
    assert isinstance(found, StepsFound)
    return step_statistics([events[1]], found, window=window).unobserved


def rollout(script: Script, calls: int) -> None:
    for _ in range(calls):
        script.forward(2.0, grad=False)
        script.pause(3.0)  # of the environment


def learn(script: Script, steps: int) -> None:
    for _ in range(steps):
        script.forward()
        script.backward()
        script.optimizer()


def test_a_rollout_before_the_updates_is_told() -> None:
    script = Script()
    rollout(script, 100)
    learn(script, 60)
    (phase,) = unobserved(script)
    assert (phase.kind, phase.times, phase.calls) == ("rollout", 1, 100)
    assert phase.seconds == pytest.approx(0.5)
    assert phase.steps_between is None


def test_how_often_rollouts_come_is_told_where_several_were_seen() -> None:
    script = Script()
    for _ in range(3):
        rollout(script, 100)
        learn(script, 200)
    (phase,) = unobserved(script, window=40)
    assert (phase.times, phase.steps_between) == (3, 200)


def test_a_whole_cycle_within_the_measured_steps_leaves_nothing_to_tell() -> None:
    script = Script()
    for _ in range(6):
        rollout(script, 40)
        learn(script, 16)
    assert unobserved(script) == []


def test_an_evaluation_at_the_start_is_told_and_one_between_is_not() -> None:
    script = Script()
    for _ in range(40):
        script.fetch(1)
        script.forward(grad=False, train=False)
    script.exhaust(1)
    for _ in range(60):
        script.train_step()
    (phase,) = unobserved(script)
    assert (phase.kind, phase.calls) == ("evaluation", 40)
    for _ in range(40):
        script.fetch(1)
        script.forward(grad=False, train=False)
    script.exhaust(1)
    for _ in range(60):
        script.train_step()
    assert unobserved(script) == []


def test_what_acts_in_each_step_is_no_phase_of_its_own() -> None:
    script = Script()
    for _ in range(60):
        rollout(script, 4)
        learn(script, 1)
    assert unobserved(script) == []
