"""Tries the advice on training in short launches: after the fixes, and apart from speed.

docs/decisions/training.md says what is compared and when it shows something.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.failures import failure, refusal
from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.bench.pair_times import usable
from torchdoctor.bench.record import Recorder
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.schema import (
    Evidence,
    FixSet,
    LaunchTiming,
    ProgressEvent,
    Recording,
    StepStatistics,
    TrainingTrial,
    fact,
    message,
    within,
)
from torchdoctor.schema.specs import FixSpec
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.log import NO_TIME, Budget, BudgetEnded, Log, Stopped
from torchdoctor.trials.loss_pairs import ENOUGH_PAIRS, compare_losses

PHASE = "training"
STEPS = 200  # of a launch, as far as program and budget allow
FEWEST_STEPS = 60
MOST_LAUNCH_S = 30.0  # for the steps of a launch
_WARMUP_SHARE = 0.25
_STEPS_SHARE = 0.2  # least time for steps, as a part of the launch's start


@dataclass(frozen=True, kw_only=True)
class TrainingResults:
    """The trials in the order of the advice; valid at whatever moment they ended."""

    trials: list[TrainingTrial]
    interrupted: bool = False


def advised(recording: Recording, modules: Mapping[str, FixSpec]) -> list[TrainingTrial]:
    """Return the advice that applies and can be tried; `why` tells of what is not tried."""
    advice = []
    for ident, module in modules.items():
        if module.training is None or module.untried or module.refusal(recording):
            continue
        reason = module.training.untriable(recording)
        if reason is None and recording.main.flags.grad_scaler:
            reason = fact("loss-scaled")
        values: dict[str, Any] = {} if reason else next(iter(module.settings(recording)), {})
        trial = TrainingTrial(
            fix=ident,
            verdict="not-tried",
            why=[] if reason is None else [reason],
            settings=values,
        )
        advice.append(trial)
    return advice


def most_launches(advice: Sequence[TrainingTrial]) -> int:
    """Return how many launches these pieces of advice take at most."""
    compared = sum(1 for piece in advice if not piece.why)
    return ENOUGH_PAIRS * (1 + compared) if compared else 0


def training_window(
    observed: StepStatistics, start_s: float, launches: int, left_s: float
) -> Window:
    """Return the steps of each of so many launches: up to 200, fewer if time or data are short.

    `start_s`: seconds until a launch's first step.
    """
    step_s = max(observed.mean_s, 1e-6)
    # If starting takes long, more steps cost little of a launch.
    each_s = min(max(left_s / max(launches, 1) - start_s, _STEPS_SHARE * start_s), MOST_LAUNCH_S)
    steps = min(STEPS, max(FEWEST_STEPS, int(each_s / step_s)))
    if observed.program_ended:
        steps = min(steps, observed.total_steps_seen)
    warmup = max(1, min(10, int(steps * _WARMUP_SHARE)))
    most_s = 2 * MOST_LAUNCH_S
    return Window(warmup_steps=warmup, measure_steps=max(steps - warmup, 1), max_window_s=most_s)


def try_advice(
    recorder: Recorder,
    observed: Observation,
    fixes: Mapping[str, FixSpec],
    recording: Recording,
    left: Callable[[], float],
    progress: Callable[[ProgressEvent], None],
) -> TrainingResults:
    """Try the advice on training that this program calls for, of the fixes that the user wants."""
    advice = advised(recording, fixes)
    window = training_window(observed.steps, observed.start_s, most_launches(advice), left())
    launches = ProgramLaunches.of_trials(recorder, observed, window)
    run = TrainingTrials(
        Log(Engine(launches, random.Random(recorder.seed)), Budget(left()), progress),
        ArmSpecs(fixes, recording, kind="training-"),
        advice,
        backwards_per_step=observed.steps.backwards_per_step,
    )
    return run.results()


@dataclass
class _Tried:
    """What was measured of a piece of advice."""

    advice: TrainingTrial
    arm: Arm
    timings: list[LaunchTiming] = field(default_factory=list)
    # Without and with the fix, with the same seed.
    pairs: list[tuple[LaunchTiming, LaunchTiming]] = field(default_factory=list)
    cut_short: bool = False  # the budget's end stopped its last launch


class TrainingTrials:
    """Tries each piece of advice in launches with the same seeds, within the log's budget."""

    def __init__(
        self,
        log: Log,
        specs: ArmSpecs,
        advice: Sequence[TrainingTrial],
        *,
        backwards_per_step: float = 1.0,
    ) -> None:
        self._log = log
        self._advice = advice
        self._per_step = backwards_per_step
        self._tried = {}
        for piece in advice:
            if not piece.why:
                spec = specs.of(FixSet.of(piece.fix, piece.settings))
                self._tried[piece.fix] = _Tried(piece, Arm(key=piece.fix, spec=spec))
        self._ended: Evidence = NO_TIME
        log.why = "The time that is left shows what advice on training does to the losses"

    def results(self) -> TrainingResults:
        """Run rounds of launches; Ctrl-C keeps what was measured."""
        interrupted = False
        try:
            compared = list(self._tried.values())
            compared = compared[: self._affordable(len(compared))]
            for offset in range(ENOUGH_PAIRS):
                self._round(compared, offset)
        except BudgetEnded:
            pass
        except KeyboardInterrupt:
            self._ended = fact("interrupted")
            interrupted = True
        except Stopped as stop:
            self._ended = stop.why
        trials = [self._result(piece) for piece in self._advice]
        return TrainingResults(trials=trials, interrupted=interrupted)

    def _affordable(self, compared: int) -> int:
        """Return how many fixes get all their pairs; the first is begun in any case."""
        launches = self._log.budget.left() / ENOUGH_PAIRS
        launches /= max(self._log.expected_s(self._log.baseline), 1e-3)
        return compared if math.isinf(launches) else min(compared, max(int(launches) - 1, 1))

    def _round(self, compared: Sequence[_Tried], offset: int) -> None:
        """Launch the untouched program and each fix once, with one seed, in changing order."""
        alive = [tried for tried in compared if tried.arm.alive]
        if not alive:
            return
        sides = [None, *alive]
        first = offset % len(sides)
        without = None
        timings = []
        try:
            for tried in sides[first:] + sides[:first]:
                if tried is None:
                    without = self._log.launch(self._log.baseline, PHASE, offset)
                    if not usable(without):
                        why = within(without.why or message(without.ended))
                        without = None
                        raise Stopped(fact("untouched-unmeasured", why=why))
                else:
                    timing = self._log.launch(tried.arm, PHASE, offset)
                    self._judge(tried, timing)
                    timings.append((tried, timing))
        finally:
            for tried, timing in timings:
                if without is not None and tried.arm.alive:
                    tried.pairs.append((without, timing))

    def _judge(self, tried: _Tried, timing: LaunchTiming) -> None:
        arm = tried.arm
        arm.refused = refusal(arm.fixes, timing)
        arm.failed = failure(timing, len(tried.timings))
        if arm.alive:
            tried.timings.append(timing)
        else:  # that the budget's end stopped a launch says nothing against the fix
            tried.cut_short = timing.ended == "timed-out" and self._log.budget.left() <= 0

    def _result(self, advice: TrainingTrial) -> TrainingTrial:
        if advice.why:
            return advice
        tried = self._tried[advice.fix]
        blank = replace(
            advice,
            settings=tried.arm.fixes[advice.fix],
            launches=len(tried.timings),
            cost_s=tried.arm.cost_s,
            details=_details(advice.fix, tried.timings),
        )
        if not tried.arm.alive or not tried.pairs:
            return self._without(blank, tried)
        shown = compare_losses(tried.pairs, self._per_step)
        return replace(blank, verdict=shown.verdict, why=[shown.why], comparison=shown.comparison)

    def _without(self, blank: TrainingTrial, tried: _Tried) -> TrainingTrial:
        arm = tried.arm
        if arm.refused is not None:
            return replace(blank, why=[arm.refused])
        if tried.cut_short:
            cut_off = fact("budget-ended-during", launch=len(tried.timings) + 1)
            return replace(blank, verdict="not-decided", why=[cut_off])
        if arm.failed is not None:
            return replace(blank, verdict="failed", why=[arm.failed])
        why = [self._ended]
        if self._ended == NO_TIME:
            why.append(fact("whole-budget", fix=blank.fix))
        return replace(blank, why=why)


def _details(fix: str, timings: Sequence[LaunchTiming]) -> dict[str, Any]:
    """Return the details that a fix noted last, without its columns."""
    noted = [
        applied.details for timing in timings for applied in timing.fixes if applied.fix == fix
    ]
    last = noted[-1] if noted else {}
    finite = {
        name: value
        for name, value in last.items()
        if not isinstance(value, float) or math.isfinite(value)
    }
    return {name: value for name, value in finite.items() if isinstance(value, (int, str, float))}
