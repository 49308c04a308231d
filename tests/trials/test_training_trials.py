"""Advice on training in short launches: which ones, within what, and what comes of failures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from made_specs import made_fix
from partial_recordings import recording
from simulated_program import SimulatedSpecs, engine_of
from told_facts import quoted, why

from torchdoctor.advice import catalogue
from torchdoctor.schema import AppliedFix, LaunchTiming, TrainingTrial, fact, message
from torchdoctor.schema.specs import TrainingAdvice
from torchdoctor.trials.log import NO_TIME, Budget, Log
from torchdoctor.trials.training_trials import (
    TrainingResults,
    TrainingTrials,
    advised,
    most_launches,
    training_window,
)

STEPS = 200
NOT_YET = TrainingTrial(fix="", verdict="not-tried")
CLIP = replace(NOT_YET, fix="gradient-clipping", settings={"max_norm": 1.0})
ADAMW = replace(NOT_YET, fix="adamw")
LATER = replace(NOT_YET, fix="ema-foreach", why=[fact("impossible")])


@dataclass
class Program:
    """Launches that are not made: each takes 5 s of a clock of its own.

    lower: fix id to what it takes off the loss; ends, states: as in the simulated program.
    """

    lower: dict[str, float] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    interrupt_at: int | None = None
    stopped: tuple[str, int] | None = None  # fix and number of a launch that never ends
    now: float = 0.0
    launched: list[tuple[str, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def __call__(
        self, fixes: list[tuple[str, dict[str, Any]]], *, seed_offset: int = 0
    ) -> LaunchTiming:
        name = fixes[0][0] if fixes else "untouched"
        self.launched.append((name, seed_offset))
        self.now += 5.0
        if len(self.launched) == self.interrupt_at:
            raise KeyboardInterrupt
        state = self.states.get(name, "applied")
        reason = None if state == "applied" else fact("it-did-not", state=state)
        details: dict[str, Any] = {"clipped_steps": 3, "far": math.inf}
        losses = self._losses(name, seed_offset)
        noted = [AppliedFix(fix=name, state=state, why=reason, details=details)]
        ended = self.ends.get(name, "measured")
        if self.stopped == (name, [x for x, _ in self.launched].count(name)):
            ended, self.now = "timed-out", self.now + 100.0
        return LaunchTiming(
            ended=ended,
            why=None if ended == "measured" else message("It ended with exit code 1."),
            losses=losses,
            step_s=[0.01] * 190,
            window_s=1.9,
            fixes=noted if fixes else [],
        )

    def _losses(self, name: str, seed: int) -> list[float | None]:
        random = np.random.default_rng([seed, len(name)])
        level = 1.0 - self.lower.get(name, 0.0) + 0.02 * np.random.default_rng(seed).normal()
        return list(level + np.exp(-np.arange(STEPS) / 40) + 0.01 * random.normal(size=STEPS))


def trials(
    program: Program, advice: list[TrainingTrial], seconds: float | None = None, **more: Any
) -> TrainingTrials:
    specs: Any = SimulatedSpecs()
    log = Log(engine_of(program), Budget(seconds, program.clock))
    return TrainingTrials(log, specs, advice, **more)


def tried(
    program: Program, advice: list[TrainingTrial], seconds: float | None = None
) -> TrainingResults:
    found = trials(program, advice, seconds).results()
    assert [one.fix for one in found.trials] == [one.fix for one in advice]
    assert all(one.why for one in found.trials)
    return found


def test_launches_are_interleaved_by_seed_and_no_more_than_said() -> None:
    program, advice = Program(lower={"gradient-clipping": 0.4}), [CLIP, ADAMW, LATER]
    clip, adamw, later = tried(program, advice).trials
    assert len(program.launched) == most_launches(advice) == 9
    for seed in range(3):
        round_of = program.launched[3 * seed : 3 + 3 * seed]
        assert {name for name, _ in round_of} == {"untouched", "gradient-clipping", "adamw"}
        assert {offset for _, offset in round_of} == {seed}
    assert (clip.verdict, clip.launches, clip.cost_s) == ("better", 3, 15.0)
    assert clip.details == {"clipped_steps": 3}, "what JSON cannot hold stays out"
    assert adamw.verdict == "no-difference"
    assert (later.verdict, why(later), later.launches) == ("not-tried", ["impossible"], 0)


def test_what_does_not_fit_into_the_time_is_not_begun() -> None:
    program = Program()
    clip, adamw = tried(program, [CLIP, ADAMW], 35.0).trials
    assert program.now <= 35.0
    assert clip.comparison is not None and clip.comparison.pairs == 3
    assert adamw.verdict == "not-tried"
    assert adamw.why == [NO_TIME, fact("whole-budget", fix="adamw")]
    nothing = Program()
    assert {one.verdict for one in tried(nothing, [ADAMW, CLIP], 3.0).trials} == {"not-tried"}
    assert nothing.launched == []


def test_a_fix_that_fails_or_is_refused_is_said_to_and_ends_there() -> None:
    program = Program(ends={"gradient-clipping": "failed"}, states={"adamw": "refused"})
    clip, adamw = tried(program, [CLIP, ADAMW]).trials
    assert (clip.verdict, quoted(clip)) == ("failed", ["It ended with exit code 1."])
    assert adamw.verdict == "not-tried" and why(adamw) == ["it-did-not"]
    assert [name for name, _ in program.launched].count("gradient-clipping") == 1
    broken = tried(Program(states={"adamw": "failed"}), [ADAMW]).trials[0]
    assert broken.verdict == "failed"
    assert why(broken) == ["could-not-apply"]


def test_a_launch_that_the_budget_stopped_is_no_failure_of_the_fix() -> None:
    """It would read as if AdamW had broken the program."""
    program = Program(stopped=("adamw", 2))
    (adamw,) = tried(program, [ADAMW], 40.0).trials
    assert adamw.verdict == "not-decided"
    assert adamw.why == [fact("budget-ended-during", launch=2)]
    hung = tried(Program(stopped=("adamw", 2)), [ADAMW], 900.0).trials[0]
    assert hung.verdict == "failed", "it hangs by itself"
    assert why(hung) == ["failed-after-launches"] and hung.why[0].values["launches"] == 1


@pytest.mark.parametrize("ends", ["failed", "timed-out"])
def test_an_untouched_program_that_fails_is_not_launched_for_ever(ends: str) -> None:
    program = Program(ends={"untouched": ends})
    found = tried(program, [CLIP]).trials[0]
    assert found.verdict == "not-tried"
    assert why(found) == ["untouched-unmeasured"]
    assert len(program.launched) <= 2


def test_an_interrupt_keeps_what_was_measured() -> None:
    results = tried(Program(interrupt_at=3), [CLIP])
    assert results.interrupted
    (clip,) = results.trials
    assert clip.comparison is not None and clip.comparison.pairs == 1


ADAM = {"ident": 0, "cls": "torch.optim.adam.Adam", "weight_decay": 0.1, "steps": 60}


def test_only_advice_that_the_program_calls_for_and_a_run_can_apply_is_tried() -> None:
    fixes = catalogue.fixes()
    assert advised(recording({}), fixes) == []
    spikes = [1.0, 1.1, 0.9, 1.0, 50.0]
    process = {"pid": 1, "optimizers": [ADAM], "gradient_norms": spikes}
    advice = advised(recording({"processes": [process]}), fixes)
    assert [piece.fix for piece in advice] == ["adamw"], "clipping is advice as code"
    scaled = {**process, "flags": {"grad_scaler": True}}
    for piece in advised(recording({"processes": [scaled]}), fixes):
        assert why(piece) == ["loss-scaled"]


def test_advice_that_no_run_can_show_says_why() -> None:
    training = TrainingAdvice(costs="weeks.", untriable=lambda recording: fact("takes-weeks"))
    (found,) = advised(recording({}), {"patience": made_fix("patience", training=training)})
    assert why(found) == ["takes-weeks"]
    (trial,) = tried(Program(), [found]).trials
    assert (trial.verdict, why(trial)) == ("not-tried", ["takes-weeks"])


def test_a_launch_is_as_long_as_time_and_data_allow() -> None:
    seen = recording({"steps": {"mean_s": 0.1, "program_ended": False}}).steps
    assert seen is not None
    whole = training_window(seen, 2.0, 5, 1000.0)
    assert whole.warmup_steps + whole.measure_steps == 200
    short = training_window(seen, 2.0, 5, 60.0)
    assert short.warmup_steps + short.measure_steps == 100
    ended = recording({"steps": {"program_ended": True, "total_steps_seen": 25}}).steps
    assert ended is not None
    few = training_window(ended, 2.0, 5, 1000.0)
    assert few.warmup_steps + few.measure_steps == 25
