"""Pairs each candidate with the baselines of its round of launches. Pure.

Three shapes, chosen by simulation (docs/decisions/side-by-side.md):

- block: baseline, the candidates in random order, baseline. A candidate is compared with the two
  baselines interpolated at its own time, so that a steady drift cancels. The A/A candidate is the
  closing baseline against the opening one, its sign random, scaled to a candidate's variance.
- abba: one candidate; baseline, candidate, candidate, baseline or the reverse, neighbours paired.
- turns: two launches side by side, which take turns; all their blocks together are one pair. The
  A/A candidate is a pair of two baselines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.pairs.pair_times import Estimator, interpolated, log_s
from torchdoctor.words import Block, LaunchTiming

# Variance of candidate minus interpolated baseline (1.5) over baseline minus baseline (2).
_A_A_SCALE = math.sqrt(1.5 / 2.0)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A launch in its place. Times are of the budget's clock, in seconds."""

    arm: str  # BASELINE, or the key of a candidate
    timing: LaunchTiming
    began_s: float
    ended_s: float
    phase: str

    @property
    def middle_s(self) -> float:
        """Return when the launch was half over."""
        return (self.began_s + self.ended_s) / 2


def as_launch(block: Block) -> LaunchTiming:
    """Return a block as a launch that measured it alone."""
    return LaunchTiming(
        ended="measured", step_s=block.step_s, samples=block.samples, window_s=block.window_s
    )


@dataclass(kw_only=True)
class Round:
    """Launches that are compared with each other, in the order they ran."""

    phase: str  # "screen" | "confirm" | "stack" | "add" | "drop" | "patch"
    shape: str  # "block" | "abba" | "turns": slots are blocks, neighbours side by side
    against: str = BASELINE  # key of the other side, which may be a set of fixes; not in "block"
    flip: bool = False  # random sign of the A/A candidate
    slots: list[Slot] = field(default_factory=list)

    def has(self, arm: str) -> bool:
        """Return True if the arm was launched in this round."""
        return any(slot.arm == arm for slot in self.slots)


def differences(rounds: Sequence[Round], arm: str, how: Estimator) -> list[float]:
    """Return log baseline (or `Round.against`) minus log candidate for every pair of `arm`.

    Args:
        rounds: complete or cut short; a pair that lacks a side is left out.
        arm: key of the candidate.
        how: estimates the time of a launch, or of the blocks of a pair.
    """
    logs: list[float] = []
    for each in rounds:
        if each.shape == "abba":
            logs += _abba_pairs(each, arm, how)
        elif each.shape == "turns":
            logs += _turns(each, arm, how)
        else:
            logs += _in_block(each, arm, how)
    return logs


def a_a_differences(rounds: Sequence[Round], how: Estimator) -> list[float]:
    """Return the differences of the A/A candidate: baseline against baseline in whole rounds."""
    noise: list[float] = []
    for each in rounds:
        if each.shape == "turns":
            noise += [-x if each.flip else x for x in _turns(each, BASELINE, how)]
            continue
        logs = [
            log
            for slot in each.slots
            if slot.arm == BASELINE and (log := _log(slot, how)) is not None
        ]
        if len(logs) < 2:
            continue
        scale = _A_A_SCALE if each.shape == "block" else 1.0
        noise.append((logs[0] - logs[1]) * scale * (-1.0 if each.flip else 1.0))
    return noise


def _log(slot: Slot, how: Estimator) -> float | None:
    return log_s(slot.timing, how)


def _in_block(in_round: Round, arm: str, how: Estimator) -> list[float]:
    baselines = [
        (slot.middle_s, log)
        for slot in in_round.slots
        if slot.arm == BASELINE and (log := _log(slot, how)) is not None
    ]
    logs: list[float] = []
    for slot in in_round.slots:
        log = _log(slot, how) if slot.arm == arm else None
        if log is not None and baselines:
            logs.append(interpolated(baselines, slot.middle_s) - log)
    return logs


def _turns(in_round: Round, arm: str, how: Estimator) -> list[float]:
    """Return the difference of slots in pairs: a block of `against`, a block of the arm."""
    if (in_round.against, arm) != (in_round.slots[0].arm, in_round.slots[1].arm):
        return []
    slots = zip(in_round.slots[0::2], in_round.slots[1::2], strict=True)
    times = how.times([(x.timing.whole, y.timing.whole) for x, y in slots])
    return [] if times is None else [math.log(times[0] / times[1])]


def _abba_pairs(in_round: Round, arm: str, how: Estimator) -> list[float]:
    logs: list[float] = []
    for left, right in zip(in_round.slots[0::2], in_round.slots[1::2], strict=False):
        if {left.arm, right.arm} != {in_round.against, arm}:
            continue
        baseline, candidate = (left, right) if left.arm == in_round.against else (right, left)
        b, c = _log(baseline, how), _log(candidate, how)
        if b is not None and c is not None:
            logs.append(b - c)
    return logs
