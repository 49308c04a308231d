"""Blocks and pairs -> times, and differences of their logarithms. Pure.

A pair is one sample, of one block of each side or of many; those that met another load are
outvoted. A difference is log time of `against` - log time of the arm: above 0 the arm is faster.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from torchdoctor.schema import Block, LaunchTiming, Pair

MEASURED = ("measured", "program-ended")  # `LaunchTiming.ended` of a launch that can be used
# Variance of an arm minus interpolated baselines (1.5) over baseline minus baseline (2).
_SCALE = math.sqrt(1.5 / 2.0)
TRIMMED = 0.25  # share of a pair's blocks left out at either end, where medians of steps decide


def usable(timing: LaunchTiming) -> bool:
    """Return True if the launch measured at least one step."""
    return timing.ended in MEASURED and bool(timing.step_s) and sum(timing.step_s) > 0


def is_per_step(launches: Iterable[LaunchTiming]) -> bool:
    """Return True if batches of a measured launch have no size, so that time per step decides."""
    return any(usable(timing) and not timing.samples for timing in launches)


def seconds_per_sample(
    steps: LaunchTiming | Block, by: str, per_step: bool = False
) -> float | None:
    """Return the time per sample, by "mean" or "median" step; None of a failed launch.

    Per step where batches have no size, or another launch of the run does not know them.
    """
    if isinstance(steps, LaunchTiming) and not usable(steps):
        return None
    if not sum(steps.step_s) > 0:
        return None
    count = len(steps.step_s)
    samples_per_step = steps.samples / count if steps.samples and not per_step else 1.0
    if by == "median":
        return median(steps.step_s) / samples_per_step
    window_s = steps.window_s if steps.window_s > 0 else sum(steps.step_s)
    return window_s / count / samples_per_step


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How blocks become one time."""

    by: str = "median"  # step of a block, or the "mean": its whole time
    trimmed: float = TRIMMED  # share of block pairs left out at either end of their differences
    per_step: bool = False  # leave the samples out

    def seconds(self, steps: LaunchTiming | Block) -> float | None:
        """Return the time per sample of a launch or a block."""
        return seconds_per_sample(steps, self.by, self.per_step)

    def times(self, blocks: Sequence[tuple[Block, Block]]) -> tuple[float, float] | None:
        """Return one time of each side from the blocks of a pair; None where nothing was measured.

        The mean is geometric, or where no block is left out arithmetic: of a few blocks that hold
        the stalls of many, a geometric mean prefers the side that differs more.
        """
        measured = [
            (first_s, second_s, len(first.step_s), len(second.step_s))
            for first, second in blocks
            if (first_s := self.seconds(first)) and (second_s := self.seconds(second))
        ]
        if not measured:
            return None
        if not self.trimmed:
            # Weighted by their steps: a block that held a stall was cut short.
            first_steps = sum(pair[2] for pair in measured)
            second_steps = sum(pair[3] for pair in measured)
            first_s = sum(pair[0] * pair[2] for pair in measured) / first_steps
            second_s = sum(pair[1] * pair[3] for pair in measured) / second_steps
            return first_s, second_s
        logs = sorted(
            ((math.log(pair[0]), math.log(pair[1])) for pair in measured),
            key=lambda pair: pair[1] - pair[0],
        )
        cut = int(self.trimmed * len(logs))
        kept = logs[cut : len(logs) - cut]
        return math.exp(fmean(pair[0] for pair in kept)), math.exp(fmean(pair[1] for pair in kept))

    def difference(self, pair: Pair) -> float | None:
        """Return log time of `against` - log time of the arm: above 0 the arm is faster."""
        times = self.times(pair.blocks)
        return math.log(times[0] / times[1]) if times is not None else None


def switched_differences(blocks: Sequence[Block], arm: int, how: Estimator) -> list[float]:
    """Return the differences of an arm within one launch that switches, one for each block of it.

    By the two untouched blocks of its round, interpolated at its own time, so that a drift cancels;
    where it took turns with them alone (ABBA), by its neighbour. Blocks are in the order they ran.
    """
    differences: list[float] = []
    for in_round in _rounds(block for block in blocks if block.arm in (0, arm)):
        if _is_abba(in_round):
            for neighbours in (in_round[:2], in_round[2:]):
                both = {block.arm: _log_s(block, how) for block in neighbours}
                if (untouched := both[0]) is not None and (switched := both[arm]) is not None:
                    differences.append(untouched - switched)
            continue
        logs = [(block, log) for block in in_round if (log := _log_s(block, how)) is not None]
        untouched_logs = [(_middle_s(block), log) for block, log in logs if block.arm == 0]
        if untouched_logs:
            differences += [
                _interpolated(untouched_logs, _middle_s(block)) - log
                for block, log in logs
                if block.arm == arm
            ]
    return differences


def untouched_differences(blocks: Sequence[Block], how: Estimator) -> list[float]:
    """Return the differences of the untouched program with itself, one for each whole round.

    Their sign changes from round to round, so that a drift is not taken for noise.
    """
    noise: list[float] = []
    for in_round in _rounds(blocks):
        logs = [
            log for block in in_round if block.arm == 0 and (log := _log_s(block, how)) is not None
        ]
        if len(logs) > 1:
            scale = 1.0 if _is_abba(in_round) else _SCALE
            noise.append((logs[0] - logs[1]) * scale * (-1.0 if in_round[0].round % 2 else 1.0))
    return noise


def _rounds(blocks: Iterable[Block]) -> list[list[Block]]:
    return [list(in_round) for _, in_round in itertools.groupby(blocks, lambda block: block.round)]


def _is_abba(in_round: Sequence[Block]) -> bool:
    """Return True where one arm took turns with the untouched program alone."""
    order = [block.arm for block in in_round]
    arm = max(order)
    return order in ([0, arm, arm, 0], [arm, 0, 0, arm])


def _interpolated(untouched: Sequence[tuple[float, float]], at: float) -> float:
    """Return the log time that the untouched program had at some time, by its first and last."""
    (begin, first), (end, last) = untouched[0], untouched[-1]
    weight = (at - begin) / (end - begin) if end > begin else 0.5
    return first * (1.0 - weight) + last * weight


def _log_s(steps: LaunchTiming | Block, how: Estimator) -> float | None:
    value = how.seconds(steps)
    return math.log(value) if value else None


def _middle_s(block: Block) -> float:
    return (block.began_s + block.ended_s) / 2
