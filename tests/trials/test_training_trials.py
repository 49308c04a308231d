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

from torchdoctor.advice import catalogue
from torchdoctor.trials.log import NO_TIME, Budget, Log
from torchdoctor.trials.training_trials import (
    TrainingResults,
    TrainingTrials,
    advised,
    most_launches,
    training_window,
)
from torchdoctor.words import AppliedFix, LaunchTiming, TrainingTrial
from torchdoctor.words.specs import TrainingAdvice

STEPS = 200
FACTORS = {"lowest_factor": 0.01, "highest_factor": 1e4}
NOT_YET = TrainingTrial(fix="", kind="loss", verdict="not-tried", sentence="")
RANGE = replace(NOT_YET, fix="lr-schedule", kind="range test", settings=FACTORS)
CLIP = replace(NOT_YET, fix="gradient-clipping", settings={"max_norm": 1.0})
ADAMW = replace(NOT_YET, fix="adamw")
LATER = replace(NOT_YET, fix="ema-foreach", sentence="It cannot be.")


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
    falls: bool = True
    now: float = 0.0
    launched: list[tuple[str, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def __call__(
        self, fixes: list[tuple[str, dict[str, Any]]], *, seed_offset: int = 0
    ) -> LaunchTiming:
        name, settings = fixes[0] if fixes else ("untouched", {})
        self.launched.append((name, seed_offset))
        self.now += 5.0
        if len(self.launched) == self.interrupt_at:
            raise KeyboardInterrupt
        state = self.states.get(name, "applied")
        reason = None if state == "applied" else f"It {state}."
        details: dict[str, Any] = {"clipped_steps": 3, "far": math.inf}
        losses = self._losses(name, seed_offset)
        if name == "lr-schedule":
            losses, details = self._range(settings, seed_offset)
        noted = [AppliedFix(fix=name, state=state, reason=reason, details=details)]
        ended = self.ends.get(name, "measured")
        if self.stopped == (name, [x for x, _ in self.launched].count(name)):
            ended, self.now = "timed-out", self.now + 100.0
        return LaunchTiming(
            ended=ended,
            reason=None if ended == "measured" else "It ended with exit code 1.",
            losses=losses,
            step_s=[0.01] * 190,
            window_s=1.9,
            fixes=noted if fixes else [],
        )

    def _losses(self, name: str, seed: int) -> list[float | None]:
        random = np.random.default_rng([seed, len(name)])
        level = 1.0 - self.lower.get(name, 0.0) + 0.02 * np.random.default_rng(seed).normal()
        return list(level + np.exp(-np.arange(STEPS) / 40) + 0.01 * random.normal(size=STEPS))

    def _range(
        self, settings: dict[str, Any], seed: int
    ) -> tuple[list[float | None], dict[str, Any]]:
        count = settings["steps"]
        rates = 1e-3 * 1e-2 * 1e6 ** (np.arange(count) / (count - 1))
        losses = 2.0 - np.clip(np.log10(rates / 1e-3), 0.0, 1.0) * self.falls
        losses += np.clip(rates / 0.5 - 1.0, 0.0, 50.0) * self.falls
        losses += 0.01 * np.random.default_rng(seed).normal(size=count)
        return [None, *losses], {"own_rate": 1e-3, "updates": [0, *range(1, count + 1)]}


def trials(
    program: Program, advice: list[TrainingTrial], seconds: float | None = None, **more: Any
) -> TrainingTrials:
    specs: Any = SimulatedSpecs()
    log = Log(engine_of(program), Budget(seconds, program.clock))
    return TrainingTrials(log, specs, advice, **more)


def tried(
    program: Program, advice: list[TrainingTrial], seconds: float | None = None
) -> TrainingResults:
    found = trials(program, advice, seconds, steps=STEPS).results()
    assert [one.fix for one in found.trials] == [one.fix for one in advice]
    assert all(one.sentence.endswith(".") for one in found.trials)
    return found


def test_launches_are_interleaved_by_seed_and_no_more_than_said() -> None:
    program, advice = Program(lower={"gradient-clipping": 0.4}), [RANGE, CLIP, ADAMW, LATER]
    test, clip, adamw, later = tried(program, advice).trials
    assert len(program.launched) == most_launches(advice) == 11
    assert program.launched[:2] == [("lr-schedule", 0), ("lr-schedule", 1)]
    for seed in range(3):
        round_of = program.launched[2 + 3 * seed : 5 + 3 * seed]
        assert {name for name, _ in round_of} == {"untouched", "gradient-clipping", "adamw"}
        assert {offset for _, offset in round_of} == {seed}
    assert test.verdict == "found"
    assert test.range_test is not None and test.range_test.max_rate is not None
    assert 1e-3 < test.range_test.max_rate < 0.1
    assert test.settings["steps"] == STEPS
    assert (clip.verdict, clip.launches, clip.cost_s) == ("better", 3, 15.0)
    assert clip.details == {"clipped_steps": 3}, "what JSON cannot hold stays out"
    assert adamw.verdict == "no-difference"
    assert (later.verdict, later.sentence, later.launches) == ("not-tried", "It cannot be.", 0)


def test_what_does_not_fit_into_the_time_is_not_begun() -> None:
    program = Program()
    test, clip, adamw = tried(program, [RANGE, CLIP, ADAMW], 45.0).trials
    assert program.now <= 45.0
    assert test.verdict == "found"
    assert clip.comparison is not None and clip.comparison.pairs == 3
    assert adamw.verdict == "not-tried"
    assert NO_TIME.capitalize() in adamw.sentence and "--fixes adamw" in adamw.sentence
    nothing = Program()
    assert {one.verdict for one in tried(nothing, [RANGE, CLIP], 3.0).trials} == {"not-tried"}
    assert nothing.launched == []


def test_a_fix_that_fails_or_is_refused_is_said_to_and_ends_there() -> None:
    program = Program(ends={"gradient-clipping": "failed"}, states={"adamw": "refused"})
    clip, adamw = tried(program, [CLIP, ADAMW]).trials
    assert (clip.verdict, clip.sentence) == ("failed", "It ended with exit code 1.")
    assert (adamw.verdict, adamw.sentence) == ("not-tried", "It refused.")
    assert [name for name, _ in program.launched].count("gradient-clipping") == 1
    broken = tried(Program(states={"lr-schedule": "failed"}), [RANGE]).trials[0]
    assert (broken.verdict, broken.range_test) == ("failed", None)
    assert "It failed" in broken.sentence


def test_a_launch_that_the_budget_stopped_is_no_failure_of_the_fix() -> None:
    """It would read as if AdamW had broken the program."""
    program = Program(stopped=("adamw", 2))
    (adamw,) = tried(program, [ADAMW], 40.0).trials
    assert adamw.verdict == "not-decided"
    assert adamw.sentence == "The budget ended during launch 2 with it."
    hung = tried(Program(stopped=("adamw", 2)), [ADAMW], 900.0).trials[0]
    assert hung.verdict == "failed", "it hangs by itself"
    assert hung.sentence.endswith(", after 1 launch without a failure.")


def test_a_program_that_gives_up_at_the_divergence_has_shown_it() -> None:
    found = tried(Program(ends={"lr-schedule": "failed"}), [RANGE]).trials[0]
    assert found.verdict == "found", found.sentence


def test_a_program_with_few_steps_is_not_launched_for_a_range_test() -> None:
    program = Program()
    few = trials(program, [RANGE], steps=100, updates_per_step=0.3).results()
    assert few.trials[0].verdict == "not-tried"
    assert "30 optimizer steps are too few" in few.trials[0].sentence
    assert program.launched == []


def test_a_loss_that_does_not_follow_the_rate_shows_nothing() -> None:
    found = tried(Program(falls=False), [RANGE]).trials[0]
    assert found.verdict == "shows-nothing"
    assert "fell at none beyond its noise" in found.sentence


@pytest.mark.parametrize("ends", ["failed", "timed-out"])
def test_an_untouched_program_that_fails_is_not_launched_for_ever(ends: str) -> None:
    program = Program(ends={"untouched": ends})
    found = tried(program, [CLIP]).trials[0]
    assert found.verdict == "not-tried"
    assert "The untouched program could not be measured" in found.sentence
    assert len(program.launched) <= 2


def test_an_interrupt_keeps_what_was_measured() -> None:
    results = tried(Program(interrupt_at=3), [RANGE, CLIP])
    assert results.interrupted
    assert [one.verdict for one in results.trials] == ["found", "not-tried"]
    assert "Interrupted" in results.trials[1].sentence


SGD = {"ident": 0, "cls": "torch.optim.sgd.SGD", "lr": 0.01, "first_lr": 0.01, "steps": 60}


def test_only_advice_that_the_program_calls_for_is_tried() -> None:
    fixes = catalogue.fixes()
    assert advised(recording({}), fixes) == []
    norms = [1.0, 1.1, 0.9, 1.0, 50.0]
    process = {"pid": 1, "optimizers": [SGD], "gradient_norms": norms}
    found = advised(recording({"processes": [process]}), fixes)
    assert [one.fix for one in found] == ["lr-schedule", "gradient-clipping"]
    assert found[1].settings == {"max_norm": 1.1}
    scaled = {**process, "flags": {"grad_scaler": True}}
    for one in advised(recording({"processes": [scaled]}), fixes):
        assert "GradScaler" in one.sentence
    deep = {"pid": 1, "analysed_steps": 6, "models": [{"ident": 0, "forwards": 9, "conv2d": 8}]}
    (layers,) = advised(recording({"processes": [deep]}), fixes)
    assert "cannot be put into a program" in layers.sentence


def test_advice_that_no_run_can_show_says_why() -> None:
    training = TrainingAdvice(
        trial="loss", costs="weeks.", untriable=lambda recording: "It takes weeks."
    )
    (found,) = advised(recording({}), {"patience": made_fix("patience", training=training)})
    assert found.sentence == "It takes weeks."
    (trial,) = tried(Program(), [found]).trials
    assert (trial.verdict, trial.sentence) == ("not-tried", "It takes weeks.")


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


def test_a_range_test_is_not_made_where_several_optimizers_train() -> None:
    made = {"cls": "torch.optim.adam.Adam", "lr": 0.01, "first_lr": 0.01, "steps": 9}
    both = {"pid": 1, "optimizers": [{**made, "ident": 0}, {**made, "ident": 1, "lr": 0.01}]}
    modules = {"lr-schedule": catalogue.fixes()["lr-schedule"]}
    [alone] = advised(
        recording({"processes": [{**both, "optimizers": both["optimizers"][:1]}]}), modules
    )
    assert not alone.sentence
    [several] = advised(recording({"processes": [both]}), modules)
    assert "Several optimizers train" in several.sentence


def test_the_rate_that_was_found_is_given_in_the_groups_own_proportion() -> None:
    made = {"cls": "torch.optim.sgd.SGD", "lr": 0.01, "first_lr": 0.01, "steps": 9, "ident": 0}
    instruction = catalogue.fixes()["lr-schedule"].instruction
    one = recording({"processes": [{"pid": 1, "optimizers": [made]}]})
    assert "max_lr=0.3," in instruction({"max_lr": 0.3}, one)
    two = recording({"processes": [{"pid": 1, "optimizers": [{**made, "distinct_lrs": 2}]}]})
    assert 'max_lr=[30 * group["lr"] for group in optimizer' in instruction({"max_lr": 0.3}, two)
