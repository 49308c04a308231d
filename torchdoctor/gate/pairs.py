"""Pairs of launches -> one time of each version, per pair. Pure.

A pair is two launches, one of each version, and one sample: of launches in turns it holds one
block each, of launches side by side many. Blocks that met somebody else's load are outvoted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from torchdoctor.records import LaunchTiming
from torchdoctor.trials.compare import seconds_per_sample, usable

BlockPair = tuple[LaunchTiming, LaunchTiming]  # reference, new
_TRIMMED = 0.25  # of the block pairs at either end of their differences


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

    def times(self, by: str) -> list[tuple[float, float]]:
        """(reference, new) of each pair: seconds per sample, or per step."""
        found = [pair_times(blocks, by, self.per_step) for blocks in self.blocks]
        return [times for times in found if times is not None]

    def differences(self, by: str) -> list[float]:
        """log(new) - log(reference) of each pair; above 0 is slower."""
        return [math.log(new / old) for old, new in self.times(by)]


def is_per_step(launches: Sequence[LaunchTiming]) -> bool:
    """Whether one that was measured has batches without a size."""
    return any(usable(x) and not x.samples for x in launches)


def pair_times(blocks: Sequence[BlockPair], by: str, per_step: bool) -> tuple[float, float] | None:
    """One time of each version from the blocks of a pair.

    Args:
        blocks: neighbours in time.
        by: "median": geometric means over the middle half of the block pairs, ordered by their
            difference, of each block's median step. "mean": the whole time over all samples, so
            that rare stalls count.
        per_step: leave the samples out.

    Returns:
        Seconds per sample (reference, new); None where nothing was measured.
    """
    if by == "mean":
        sides = [_together([pair[side] for pair in blocks], per_step) for side in (0, 1)]
        return (sides[0], sides[1]) if sides[0] and sides[1] else None
    logs = []
    for reference, new in blocks:
        old_s, new_s = (seconds_per_sample(x, by, per_step) for x in (reference, new))
        if old_s and new_s:
            logs.append((math.log(old_s), math.log(new_s)))
    if not logs:
        return None
    logs.sort(key=lambda pair: pair[1] - pair[0])
    cut = int(_TRIMMED * len(logs))
    kept = logs[cut : len(logs) - cut]
    return math.exp(fmean(x[0] for x in kept)), math.exp(fmean(x[1] for x in kept))


def _together(blocks: Sequence[LaunchTiming], per_step: bool) -> float | None:
    measured = [x for x in blocks if usable(x)]
    per = [float(len(x.step_s)) if per_step else x.samples or 0.0 for x in measured]
    if not sum(per):
        return None
    return sum(x.window_s if x.window_s > 0 else sum(x.step_s) for x in measured) / sum(per)
