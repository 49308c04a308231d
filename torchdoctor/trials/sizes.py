"""Searches a setting by trying values: how large a batch may be before memory ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torchdoctor.pairs.pair_times import seconds_per_sample, usable
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.launches import Launcher, Plan
from torchdoctor.trials.rounds import Round

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


def search_sizes(launcher: Launcher, arms: list[Arm], first: Arm, following: NextSettings) -> None:
    """Launch `first`, then each setting that `following` names, once each.

    A launch that runs out of memory is a failed trial of its size, and the search goes on below.
    Afterwards `arms` holds an arm for each size tried.

    Raises:
        Stopped, Interrupted, KeyboardInterrupt: as `Launcher.run`.
    """
    least_s = (1.0 - _SHARE) * launcher.budget.left()
    sizes = Round(phase=PHASE, shape="block")

    def affords(arm: Arm) -> bool:
        expected_s = launcher.expected_s(arm) + launcher.expected_s(launcher.baseline)
        return launcher.budget.left() - expected_s >= least_s

    if not affords(first) or first.candidate is None:
        return
    launcher.rounds.append(sizes)
    sides = [launcher.baseline, first]
    launcher.plan = Plan(phase=PHASE, most=_MOST_LAUNCHES + 2, arms=sides)
    sizes.slots.append(launcher.run(launcher.baseline, PHASE))
    tried = [_tried({}, launcher.baseline)]
    arm: Arm | None = first
    while arm is not None and len(tried) <= _MOST_LAUNCHES and affords(arm):
        sizes.slots.append(launcher.run(arm, PHASE))
        tried.append(_tried(dict(arm.fixes[0][1]), arm))
        ended = sizes.slots[-1].timing.ended
        # After any other failure than memory, a smaller size would fail as well.
        goes_on = arm.alive or (arm.failed is not None and ended == "out-of-memory")
        settings = following(tried) if goes_on else None
        arm = None
        if settings is not None:
            arm = first.with_settings(f"{first.key}-{len(tried)}", settings)
        if arm is not None:
            arms.insert(arms.index(first) + len(tried) - 1, arm)
    if arm is not None and not arm.slots and arm is not first:
        arms.remove(arm)  # no time was left for it
    sizes.slots.append(launcher.run(launcher.baseline, PHASE))


def best_sizes(arms: Sequence[Arm], per_step: bool) -> list[Arm]:
    """Return the sizes that took least time per sample."""
    timed = [(_seconds(arm, per_step), number) for number, arm in enumerate(arms) if arm.alive]
    known = sorted((s, n) for s, n in timed if s is not None)
    return [arms[number] for _, number in known[:_KEPT]]


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
        for slot in arm.slots
        if usable(slot.timing) and (slot.timing.samples or per_step)
        if (seconds := seconds_per_sample(slot.timing, "mean", per_step)) is not None
    ]
    return median(times) if times else None
