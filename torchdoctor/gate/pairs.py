"""Pairs of launches -> one time of each version, per pair. Pure.

A pair is two launches, one of each version, and one sample: of launches in turns it holds one
block each, of launches side by side many. Blocks that met somebody else's load are outvoted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from torchdoctor.trials.compare import (
    TRIMMED,
    as_interval,
    half_width,
    pair_times,
    seconds_per_sample,
    usable,
)
from torchdoctor.trials.rounds import Seconds
from torchdoctor.words import Interval, LaunchTiming, StepStatistics

BlockPair = tuple[LaunchTiming, LaunchTiming]  # reference, new
_OTHER_LOAD_CPUS = 0.5  # from here on it is others who make steps differ in length


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How blocks become one time.

    by: "median" (the median step of a block) or "mean" (its whole time).
    trimmed: share of the block pairs that is left out at either end of their differences.
    """

    by: str = "median"
    trimmed: float = TRIMMED

    def seconds(self, per_step: bool) -> Seconds:
        """Of a block, per sample; `per_step`: leave the samples out."""
        return lambda timing: seconds_per_sample(timing, self.by, per_step)


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
        seconds = how.seconds(self.per_step)
        found = [pair_times(blocks, seconds, how.trimmed) for blocks in self.blocks]
        return [times for times in found if times is not None]

    def differences(self, how: Estimator) -> list[float]:
        """log(new) - log(reference) of each pair; above 0 is slower."""
        return [math.log(new / old) for old, new in self.times(how)]

    def mean_ratio(self, how: Estimator) -> Interval | None:
        """New / reference of the mean step, every block counted, beside what decides.

        Medians and trimmed means are blind for work that a few steps do: a checkpoint, a log.

        Returns:
            With its 95 % interval; None where it decides itself, and below two pairs.
        """
        every = Estimator(by="mean", trimmed=0.0)
        differences = self.differences(every)
        if how == every or len(differences) < 2:
            return None
        return as_interval(fmean(differences), half_width(differences))


def is_per_step(launches: Sequence[LaunchTiming]) -> bool:
    """Whether one that was measured has batches without a size."""
    return any(usable(x) and not x.samples for x in launches)
