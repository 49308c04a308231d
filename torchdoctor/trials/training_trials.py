"""Tries the advice on training in short launches: after the fixes, and apart from speed.

docs/decisions/training.md says what is compared and when it shows something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchdoctor.observe.window import Window
from torchdoctor.pairs.failures import failure, refusal
from torchdoctor.pairs.pair_times import usable
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.launches import Launcher, Stopped
from torchdoctor.trials.loss_pairs import ENOUGH_PAIRS, compare_losses
from torchdoctor.trials.range_test import FEWEST_RATES, RateLosses, agreed, range_test, words
from torchdoctor.trials.schedule import NO_TIME, BudgetEnded
from torchdoctor.words import (
    LaunchTiming,
    RangeTest,
    Recording,
    StepStatistics,
    TrainingTrial,
)
from torchdoctor.words.errors import Interrupted
from torchdoctor.words.specs import FixSpec

PHASE = "training"
RANGE_LAUNCHES = 2
STEPS = 200  # of a launch, as far as program and budget allow
FEWEST_STEPS = 60
MOST_LAUNCH_S = 30.0  # for the steps of a launch
_WARMUP_SHARE = 0.25
_STEPS_SHARE = 0.2  # least time for steps, as a part of the launch's start
_ORDINALS = {1: "first", 2: "second", 3: "third"}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A piece of advice to be tried; `untried`: the reason why it is not, as a sentence."""

    fix: str
    kind: str  # "range test" | "loss"
    settings: dict[str, Any] = field(default_factory=dict)
    untried: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingResults:
    """The trials in the order of `Advice`; valid at whatever moment they ended."""

    trials: list[TrainingTrial]
    interrupted: bool = False


def advised(recording: Recording, modules: Mapping[str, FixSpec]) -> list[Advice]:
    """Return the advice on training that applies; range tests first, they cost least."""
    scaled = "The loss is multiplied by a factor that changes (GradScaler)."
    advice = []
    for ident, module in modules.items():
        if module.training is None or module.refuses(recording):
            continue
        reason = module.training.untriable(recording)
        if reason is None and recording.main.flags.grad_scaler:
            reason = scaled
        values: dict[str, Any] = {} if reason else next(iter(module.settings(recording)), {})
        kind = module.training.trial
        advice.append(Advice(fix=ident, kind=kind, settings=values, untried=reason))
    return sorted(advice, key=lambda piece: piece.kind != "range test")


def most_launches(advice: Sequence[Advice]) -> int:
    """Return how many launches these pieces of advice take at most."""
    tried = [piece for piece in advice if piece.untried is None]
    compared = sum(piece.kind == "loss" for piece in tried)
    tests = len(tried) - compared
    return RANGE_LAUNCHES * tests + (ENOUGH_PAIRS * (1 + compared) if compared else 0)


def training_window(
    observed: StepStatistics, start_s: float, launches: int, left_s: float
) -> Window:
    """Return the steps of each launch: up to 200, fewer if time or data are short.

    Args:
        observed: steps of the observed launch.
        start_s: seconds until its first step.
        launches: how many share the time left.
        left_s: seconds of the budget.
    """
    step_s = max(observed.mean_s, 1e-6)
    # If starting takes long, more steps cost little of a launch.
    free_s = max(left_s / max(launches, 1) - start_s, _STEPS_SHARE * start_s)
    each_s = min(free_s, MOST_LAUNCH_S)
    steps = min(STEPS, max(FEWEST_STEPS, int(each_s / step_s)))
    if observed.program_ended:
        steps = min(steps, observed.total_steps_seen)
    warmup = max(1, min(10, int(steps * _WARMUP_SHARE)))
    return Window(
        warmup_steps=warmup, measure_steps=max(steps - warmup, 1), max_window_s=2 * MOST_LAUNCH_S
    )


def run_training_trials(
    launcher: Launcher,
    advice: Sequence[Advice],
    *,
    steps: int,
    backwards_per_step: float = 1.0,
    updates_per_step: float = 1.0,
) -> TrainingResults:
    """Try each piece of advice, within the budget.

    Args:
        launcher: starts the program, for `steps` iterations each time.
        advice: those with `untried` come back as they are.
        steps: iterations of a launch.
        backwards_per_step: of one iteration.
        updates_per_step: steps of one optimizer in an iteration.
    """
    run = _Run(launcher, advice, steps, backwards_per_step, updates_per_step)
    interrupted = run.all()
    return TrainingResults(trials=[run.result(piece) for piece in advice], interrupted=interrupted)


class _Run:
    """The launches of all advice, and their timings so far."""

    def __init__(
        self,
        launcher: Launcher,
        advice: Sequence[Advice],
        steps: int,
        backwards_per_step: float,
        updates_per_step: float,
    ) -> None:
        self._launcher, self._per_step = launcher, backwards_per_step
        rates = max(2, round(steps * updates_per_step))
        self._arms = {
            piece.fix: Arm(key=piece.fix, fixes=[(piece.fix, _with_steps(piece, rates))])
            for piece in advice
            if piece.untried is None
        }
        self._advice = {piece.fix: piece for piece in advice}
        self._timings: dict[str, list[LaunchTiming]] = {fix: [] for fix in self._arms}
        self._pairs: dict[str, list[tuple[LaunchTiming, LaunchTiming]]] = {
            fix: [] for fix in self._arms
        }
        self._cut_short: dict[str, int] = {}  # number of the launch that the budget's end stopped
        self._ended = NO_TIME

    def all(self) -> bool:
        """Run the range tests, then rounds of losses; return True if Ctrl-C ended them."""
        try:
            for fix, arm in self._arms.items():
                if self._advice[fix].kind == "range test":
                    self._range_test(fix, arm)
            compared = [fix for fix in self._arms if self._advice[fix].kind == "loss"]
            compared = compared[: self._affordable(len(compared))]
            for offset in range(ENOUGH_PAIRS):
                self._round(compared, offset)
        except BudgetEnded:
            pass
        except (KeyboardInterrupt, Interrupted):
            self._ended = "interrupted"
            return True
        except Stopped as stop:
            self._ended = str(stop).rstrip(".")
        return False

    def _affordable(self, compared: int) -> int:
        """Return how many fixes get all their pairs; the first is begun in any case."""
        launches = self._launcher.budget.left() / ENOUGH_PAIRS
        launches /= max(self._launcher.expected_s(self._launcher.baseline), 1e-3)
        return compared if math.isinf(launches) else min(compared, max(int(launches) - 1, 1))

    def _range_test(self, fix: str, arm: Arm) -> None:
        rates = arm.fixes[0][1]["steps"]
        if rates < FEWEST_RATES:
            arm.refused = f"{rates} optimizer steps are too few for a range test"
            return
        for offset in range(RANGE_LAUNCHES):
            timing = self._launcher.run(arm, PHASE, offset).timing
            arm.refused = refusal(arm.ids, timing)
            # The test leads to a NaN: a program that fails there has shown its rate.
            tested = RateLosses.of(timing, arm.fixes[0][1])
            shows = tested is not None and not isinstance(range_test(tested), str)
            arm.failed = None if shows else failure(timing, arm.usable_before)
            if not arm.alive:
                self._note_cut(arm, timing)
                return
            self._timings[fix].append(timing)

    def _round(self, compared: Sequence[str], offset: int) -> None:
        """Launch the untouched program and each fix once, with one seed, in random order."""
        launcher = self._launcher
        alive = [self._arms[fix] for fix in compared if self._arms[fix].alive]
        if not alive:
            return
        order = launcher.order.sample([launcher.baseline, *alive], len(alive) + 1)
        timings: dict[str, LaunchTiming] = {}
        try:
            for arm in order:
                timings[arm.key] = timing = launcher.run(arm, PHASE, offset).timing
                if arm is not launcher.baseline:
                    self._judge(arm, timing)
                elif not usable(timing):
                    why = timing.reason or timing.ended
                    raise Stopped(f"The untouched program could not be measured ({why})")
        finally:
            without = timings.get(launcher.baseline.key)
            for arm in alive:
                both = without is not None and usable(without) and arm.key in timings
                if without is not None and both and arm.alive:
                    self._pairs[arm.key].append((without, timings[arm.key]))

    def _judge(self, arm: Arm, timing: LaunchTiming) -> None:
        arm.refused = refusal(arm.ids, timing)
        arm.failed = failure(timing, arm.usable_before)
        if arm.alive:
            self._timings[arm.key].append(timing)
        else:
            self._note_cut(arm, timing)

    def _note_cut(self, arm: Arm, timing: LaunchTiming) -> None:
        """Note that the budget's end stopped a launch, which says nothing against the fix."""
        if timing.ended == "timed-out" and self._launcher.budget.left() <= 0:
            self._cut_short[arm.key] = len(self._timings[arm.key]) + 1

    def result(self, advice: Advice) -> TrainingTrial:
        """Return the trial of a piece of advice as the report shows it."""
        blank = TrainingTrial(fix=advice.fix, kind=advice.kind, verdict="not-tried", sentence="")
        if advice.untried is not None:
            return replace(blank, sentence=advice.untried)
        arm = self._arms[advice.fix]
        timings = self._timings[advice.fix]
        blank = replace(
            blank,
            settings=arm.fixes[0][1],
            launches=len(timings),
            cost_s=arm.cost_s,
            details=_details(advice.fix, timings),
        )
        measured = self._pairs[advice.fix] if advice.kind == "loss" else timings
        if not measured or not arm.alive:
            return self._without(blank, arm)
        if advice.kind == "range test":
            return self._tested(blank, timings)
        shown = compare_losses(self._pairs[advice.fix], self._per_step)
        sentence = shown.sentence[0].upper() + shown.sentence[1:]
        return replace(blank, verdict=shown.verdict, sentence=sentence, comparison=shown.comparison)

    def _without(self, blank: TrainingTrial, arm: Arm) -> TrainingTrial:
        if arm.refused is not None:
            return replace(blank, sentence=_whole(arm.refused))
        if arm.key in self._cut_short:
            number = self._cut_short[arm.key]
            sentence = f"The budget ended during its {_ORDINALS.get(number, f'{number}th')} launch."
            return replace(blank, verdict="not-decided", sentence=sentence)
        if arm.failed is not None:
            return replace(blank, verdict="failed", sentence=_whole(arm.failed))
        sentence = _whole(self._ended)
        if self._ended == NO_TIME:
            sentence += f" With --fixes {blank.fix} the whole budget is for it."
        return replace(blank, sentence=sentence)

    def _tested(self, blank: TrainingTrial, timings: Sequence[LaunchTiming]) -> TrainingTrial:
        nothing = replace(blank, verdict="shows-nothing")
        agreed_test: RangeTest | None = None
        for timing in timings:
            losses = RateLosses.of(timing, blank.settings)
            test = range_test(losses) if losses is not None else "no optimizer stepped"
            both = test
            if agreed_test is not None and not isinstance(test, str):
                both = agreed(agreed_test, test)
            if isinstance(both, str):
                sentence = _whole(f"The range test shows nothing: {both}")
                before = None if isinstance(test, str) else agreed_test
                return replace(nothing, sentence=sentence, range_test=before)
            agreed_test = both
        assert agreed_test is not None
        verdict = "found" if agreed_test.max_rate is not None else "shows-nothing"
        return replace(blank, verdict=verdict, sentence=words(agreed_test), range_test=agreed_test)


def _with_steps(advice: Advice, rates: int) -> dict[str, Any]:
    if advice.kind != "range test":
        return dict(advice.settings)
    return {**advice.settings, "steps": rates}


def _details(fix: str, timings: Sequence[LaunchTiming]) -> dict[str, Any]:
    """Return the details that a fix noted last, without its columns."""
    noted = [x.details for timing in timings for x in timing.fixes if x.fix == fix]
    last = noted[-1] if noted else {}
    return {
        name: value
        for name, value in last.items()
        if isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))
    }


def _whole(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
