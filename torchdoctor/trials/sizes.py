"""Searches a setting by trying values: how large a batch may be before memory ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from torchdoctor.bench.pair_times import seconds_per_sample, usable
from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.schema import LaunchTiming
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.log import Log, Series

PHASE = "screen"  # each size is launched once, between two baselines
_SHARE = 0.4  # part of the budget left that the whole search may take
_MOST_LAUNCHES = 10
_KEPT = 2  # sizes that go on


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A launch with a setting; `seconds`: per sample, None if it is not known or did not fit."""

    settings: dict[str, Any]
    fits: bool
    seconds: float | None = None
    peak_memory_bytes: float | None = None


# Takes the launches so far, the untouched program first; returns the next setting, None at the end.
NextSettings = Callable[[Sequence[Tried]], dict[str, Any] | None]


def search_sizes(
    log: Log, specs: ArmSpecs, arms: list[Arm], first: Arm, following: NextSettings
) -> None:
    """Launch `first`, then each setting that `following` names; `arms` gets an arm for each.

    A launch that runs out of memory is a failed trial of its size, and the search goes on below.
    """
    least_s = (1.0 - _SHARE) * log.budget.left()
    sizes = Series(keys=[BASELINE], blocks=[])

    def affords(arm: Arm) -> bool:
        expected_s = log.expected_s(arm) + log.expected_s(log.baseline)
        return log.budget.left() - expected_s >= least_s

    def launch(arm: Arm) -> LaunchTiming:
        began_s = log.budget.clock()
        timing = log.launch(arm, PHASE)
        if usable(timing):
            block = replace(timing.whole, arm=sizes.keys.index(arm.key), began_s=began_s)
            sizes.blocks.append(replace(block, ended_s=log.budget.clock()))
        return timing

    if not affords(first):
        return
    log.sizes.append(sizes)
    log.why = "The best setting is found by trying"
    launch(log.baseline)
    tried, arm = [_tried({}, log.baseline)], first
    while True:
        sizes.keys.append(arm.key)
        timing = launch(arm)
        tried.append(_tried(arm.fixes[arm.fixes.first], arm))
        # After any other failure than memory, a smaller size would fail as well.
        goes_on = arm.alive or (arm.failed is not None and timing.ended == "out-of-memory")
        settings = following(tried) if goes_on and len(tried) <= _MOST_LAUNCHES else None
        if settings is None:
            break
        following_arm = first.with_settings(specs, f"{first.key}-{len(tried)}", settings)
        if not affords(following_arm):
            break
        arms.insert(arms.index(arm) + 1, following_arm)
        arm = following_arm
    launch(log.baseline)


def best_sizes(arms: Sequence[Arm], per_step: bool) -> list[Arm]:
    """Return the sizes that took least time per sample."""
    timed = [(_seconds(arm, per_step), number) for number, arm in enumerate(arms) if arm.alive]
    by_seconds = sorted((s, n) for s, n in timed if s is not None)
    return [arms[number] for _, number in by_seconds[:_KEPT]]


def _tried(settings: dict[str, Any], arm: Arm) -> Tried:
    memory = [t.peak_memory_bytes for t in arm.timings if t.peak_memory_bytes is not None]
    return Tried(
        settings=settings,
        fits=arm.alive,
        seconds=_seconds(arm, per_step=False),
        peak_memory_bytes=max(memory, default=None),
    )


def _seconds(arm: Arm, per_step: bool) -> float | None:
    times = [
        seconds
        for timing in arm.timings
        if timing.samples or per_step
        if (seconds := seconds_per_sample(timing, "mean", per_step)) is not None
    ]
    return median(times) if times else None
