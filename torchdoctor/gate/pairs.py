"""Pairs of launches -> one time of each version, per pair. Pure.

A pair is two launches, one of each version, and one sample: of launches in turns it holds one
block each, of launches side by side many. Blocks that met somebody else's load are outvoted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from torchdoctor.records import LaunchTiming, StepStatistics
from torchdoctor.trials.compare import seconds_per_sample, usable

BlockPair = tuple[LaunchTiming, LaunchTiming]  # reference, new
_TRIMMED = 0.25  # of the block pairs at either end of their differences
_OTHER_LOAD_CPUS = 0.5  # from here on it is others who make steps differ in length


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How blocks become one time.

    by: "median" (the median step of a block) or "mean" (its whole time).
    trimmed: share of the block pairs that is left out at either end of their differences.
    """

    by: str = "median"
    trimmed: float = _TRIMMED


def estimator(observed: Sequence[tuple[StepStatistics, float | None]]) -> Estimator:
    """What suits the program's steps.

    Args:
        observed: of each version its steps, and CPUs that other programs kept busy meanwhile.

    Returns:
        Medians. Means where steps come in two kinds: of blocks that hold whole cycles the middle
        half, else of all blocks, so that rare stalls count; but medians where the machine was
        shared, for then the long steps are those that others interrupted.
    """
    two_kinds = [steps for steps, _ in observed if steps.two_modes]
    if not two_kinds:
        return Estimator()
    if all(steps.cycle_steps for steps in two_kinds):
        return Estimator(by="mean")
    if any((load or 0.0) > _OTHER_LOAD_CPUS for _, load in observed):
        return Estimator()
    return Estimator(by="mean", trimmed=0.0)


@dataclass
class Pairs:
    """Everything that was measured of both versions.

    Attributes:
        reference: whole launches of it, in order, also those that failed.
        new: likewise.
        blocks: of each pair of which both sides were measured.
    """

    reference: list[LaunchTiming] = field(default_factory=list)
    new: list[LaunchTiming] = field(default_factory=list)
    blocks: list[list[BlockPair]] = field(default_factory=list)

    @property
    def per_step(self) -> bool:
        """Whether batches have no size, so that time per step has to do."""
        return is_per_step([*self.reference, *self.new])

    def times(self, how: Estimator) -> list[tuple[float, float]]:
        """(reference, new) of each pair: seconds per sample, or per step."""
        found = [pair_times(blocks, how, self.per_step) for blocks in self.blocks]
        return [times for times in found if times is not None]

    def differences(self, how: Estimator) -> list[float]:
        """log(new) - log(reference) of each pair; above 0 is slower."""
        return [math.log(new / old) for old, new in self.times(how)]


def is_per_step(launches: Sequence[LaunchTiming]) -> bool:
    """Whether one that was measured has batches without a size."""
    return any(usable(x) and not x.samples for x in launches)


def pair_times(
    blocks: Sequence[BlockPair], how: Estimator, per_step: bool
) -> tuple[float, float] | None:
    """One time of each version from the blocks of a pair.

    Args:
        blocks: neighbours in time.
        how: geometric means over the block pairs that are not trimmed.
        per_step: leave the samples out.

    Returns:
        Seconds per sample (reference, new); None where nothing was measured.
    """
    logs = []
    for reference, new in blocks:
        old_s, new_s = (seconds_per_sample(x, how.by, per_step) for x in (reference, new))
        if old_s and new_s:
            logs.append((math.log(old_s), math.log(new_s)))
    if not logs:
        return None
    logs.sort(key=lambda pair: pair[1] - pair[0])
    cut = int(how.trimmed * len(logs))
    kept = logs[cut : len(logs) - cut]
    return math.exp(fmean(x[0] for x in kept)), math.exp(fmean(x[1] for x in kept))
