"""The launches of `training_trials`: windows of their own, in the scratch layer like all others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from torchdoctor.observe.observation import Observation
from torchdoctor.pairs.record import Recorder
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.schedule import Budget
from torchdoctor.trials.timed_launch import TimedLaunch, launches_of
from torchdoctor.trials.training_trials import (
    TrainingResults,
    advised,
    most_launches,
    run_training_trials,
    training_window,
)
from torchdoctor.words import ProgressEvent, Recording
from torchdoctor.words.specs import FixSpec


def try_advice(
    recorder: Recorder,
    observed: Observation,
    modules: Mapping[str, FixSpec],
    recording: Recording,
    left: Callable[[], float],
    progress: Callable[[ProgressEvent], None],
) -> TrainingResults:
    """Try the advice on training that this program calls for, with the time that is left.

    Args:
        recorder: starts the program.
        observed: the untouched program.
        modules: fixes by id, those that the user wants.
        recording: what was observed.
        left: seconds of the budget.
        progress: told before and after each launch.
    """
    advice = advised(recording, modules)
    window = training_window(observed.steps, observed.start_s, most_launches(advice), left())
    iterations = window.warmup_steps + window.measure_steps
    stepping = sum(x.steps > 0 for x in recording.main.optimizers)
    launch = TimedLaunch(
        launches_of(recorder, observed, window),
        ArmSpecs(modules, recording, kind="training-"),
        left,
        recording,
    )
    launcher = Launcher(
        launch,
        Budget(left()),
        progress=progress,
        order=random.Random(recorder.seed),
        expected_launch_s=observed.start_s + iterations * observed.steps.mean_s,
    )
    return run_training_trials(
        launcher,
        advice,
        steps=iterations,
        backwards_per_step=observed.steps.backwards_per_step,
        updates_per_step=observed.steps.optimizer_steps_per_step / max(stepping, 1),
    )
