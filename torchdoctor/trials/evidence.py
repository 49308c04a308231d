"""Reads an arm's paired differences, and whether training changed, from the log of launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.pairs.pair_times import TRIMMED, Estimator
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.beliefs import BlockGain
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.numerics import Numerics, Untouched, compare_training
from torchdoctor.trials.rounds import Round, a_a_differences, differences
from torchdoctor.words import Interval, LaunchTiming, StepStatistics

_SIZE_ERROR = 0.1  # error of a launch between two untouched launches that followed each other
_ONE_BLOCK = 0.1  # spread of blocks if each arm had a single block


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The paired differences of an arm, and the verdict on its training."""

    arm: Arm
    differences: list[float]
    other: list[float]  # by the mean if the median decides, and the reverse
    phase: str  # "switch", "screen" (sizes), "confirm", "patch" or "" if nothing was paired
    numerics: Numerics

    @property
    def gain(self) -> float:
        """Return the mean log speed-up; minus infinity if nothing was paired."""
        return fmean(self.differences) if self.differences else -math.inf


class Evidence:
    """Reads the launcher's log, and keeps nothing that the log does not hold.

    Args:
        launcher: holds the log.
        steps: steps of the observed launch.
        low_precision: the untouched program computes in bfloat16, float16 or TF32.
    """

    def __init__(
        self, launcher: Launcher, steps: StepStatistics | None, low_precision: bool
    ) -> None:
        self._launcher, self._steps, self._low_precision = launcher, steps, low_precision
        self._known: dict[tuple[str, int, int, int], Numerics] = {}

    @property
    def baselines(self) -> list[LaunchTiming]:
        """Return the launches of the untouched program that can be used."""
        return self._launcher.baseline.timings

    @property
    def per_step(self) -> bool:
        """Return True if batches have no size, so that time per step has to do."""
        return any(not timing.samples for timing in self.baselines)

    def decided_by(self) -> str:
        """Return "mean" or "median": the figure that decides for all arms, by the baseline."""
        return compare.decided_by(self.baselines, self._steps)

    def estimator(self, by: str, arm: Arm | None = None) -> Estimator:
        """Return the estimator of a time by its blocks, which both sides of a pair share."""
        per_step = self.per_step or (arm is not None and not _has_samples(arm))
        # If means decide, all blocks count: the long steps may lie in a few of them.
        return Estimator(by=by, trimmed=TRIMMED if by == "median" else 0.0, per_step=per_step)

    def noise(self, by: str | None = None) -> list[float]:
        """Return the differences of the A/A candidate by launches, or else by blocks."""
        by, launched = by or self.decided_by(), self._launcher.rounds
        # Pairs side by side see far less noise than launches one after the other.
        beside = [each for each in launched if each.shape == "turns"]
        for rounds in (beside, launched, self._launcher.switched):
            noise = a_a_differences(rounds, self.estimator(by))
            if len(noise) > 1:
                return noise
        return noise

    def numerics(self, arm: Arm) -> Numerics:
        """Return the verdict on whether training changed in this arm."""
        baselines, seeds = self.baselines, self._launcher.seeds
        # The log only grows, so equal lengths mean that nothing was launched since.
        state = (arm.key, len(arm.timings), len(baselines), len(seeds))
        if state not in self._known:
            self._known[state] = self._compare_training(arm)
        return self._known[state]

    def _compare_training(self, arm: Arm) -> Numerics:
        steps = self._steps
        untouched = Untouched(
            baselines=self.baselines,
            seeds=self._launcher.seeds,
            warmup_steps=steps.warmup_steps if steps else 0,
            backwards_per_step=steps.backwards_per_step if steps else 1.0,
            low_precision=self._low_precision,
        )
        facts = arm.facts
        return compare_training(arm.timings, untouched, facts.keeps_results, facts.how)

    def paired(self, arm: Arm, phase: str) -> list[float]:
        """Return the deciding differences of a phase."""
        return self._differences(arm, phase, self._by(arm))

    def _differences(self, arm: Arm, phase: str, by: str) -> list[float]:
        if not self.can_judge(arm):
            return []
        return differences(self._rounds(phase), arm.key, self.estimator(by, arm))

    def paired_by_the_other_figure(self, arm: Arm, phase: str) -> list[float]:
        """Return the differences by the median if the mean decides, and the reverse."""
        return self._differences(arm, phase, _other(self._by(arm)))

    def ceiling(self, arm: Arm) -> Interval | None:
        """Return the speed-up within one launch of an arm that takes a cost away."""
        return None if arm.refused else compare.interval(self.paired(arm, "switch"))

    def measured_how(self) -> str | None:
        """Return how launches were compared: "side by side" or "in turns"; None: none were."""
        shapes = {each.shape for each in self._launcher.rounds if each.slots}
        return None if not shapes else "side by side" if "turns" in shapes else "in turns"

    def can_judge(self, arm: Arm) -> bool:
        """Return False if a fix may change the batch and batches have no known size."""
        return arm.facts.risk < 3 or not (self.per_step or not _has_samples(arm))

    def measured(self, arm: Arm) -> Measured:
        """Return the differences that the report shows: fresh ones where there are any."""
        for phase in ("patch", "confirm", "screen", "switch"):
            paired = self.paired(arm, phase)
            if paired:
                break
        return Measured(
            arm=arm,
            differences=paired,
            other=self.paired_by_the_other_figure(arm, phase) if paired else [],
            phase=phase if paired else "",
            numerics=self.numerics(arm),
        )

    def block_gains(self, arms: Sequence[Arm]) -> dict[str, BlockGain]:
        """Return what arms gained in blocks of one launch, or while sizes were searched, by key."""
        gains = {
            arm.key: BlockGain(gain=median(sized), error=_SIZE_ERROR)
            for arm in arms
            if (sized := self.paired(arm, "screen"))
        }
        blocks = {arm.key: self.paired(arm, "switch") for arm in arms}
        blocks = {key: rounds for key, rounds in blocks.items() if rounds}
        spread = _spread(list(blocks.values()))
        return gains | {key: BlockGain.of(rounds, spread) for key, rounds in blocks.items()}

    def _by(self, arm: Arm) -> str:
        # A fix can turn even steps into two kinds (batches that arrive four at a time): then the
        # median step is a fiction, on both sides of the comparison.
        if arm.timings:
            return "mean" if compare.has_two_modes(arm.timings) else self.decided_by()
        # Blocks make untouched steps uneven too: a program ahead of its GPU waits in the last step.
        sides = [self._in_blocks(key) for key in (arm.key, BASELINE)]
        two_modes = any(compare.has_two_modes(timings) for timings in sides)
        return "mean" if two_modes else self.decided_by()

    def _in_blocks(self, key: str) -> list[LaunchTiming]:
        slots = [slot for each in self._launcher.switched for slot in each.slots]
        return [slot.timing for slot in slots if slot.arm == key]

    def _rounds(self, phase: str) -> list[Round]:
        log = [*self._launcher.rounds, *self._launcher.switched]
        return [each for each in log if each.phase == phase]


def _spread(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of a block, which an outlier does not widen."""
    rest = [abs(log - median(group)) for group in groups for log in group if len(group) > 1]
    if not rest:
        return _ONE_BLOCK
    rounds = max(len(group) for group in groups)
    return 1.4826 * median(rest) * math.sqrt(rounds / (rounds - 1))


def _other(by: str) -> str:
    return "median" if by == "mean" else "mean"


def _has_samples(arm: Arm) -> bool:
    return all(timing.samples for timing in arm.timings)
