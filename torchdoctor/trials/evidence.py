"""What the log of launches says of one arm: paired differences, and whether training changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from torchdoctor.pairs.pair_times import TRIMMED, Estimator
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.beliefs import BlockGain
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.numerics import Numerics, Untouched, compare_training
from torchdoctor.trials.rounds import BASELINE, Round, a_a_differences, differences
from torchdoctor.words import Interval, LaunchTiming, StepStatistics

_SIZE_ERROR = 0.1  # of one launch between two untouched ones, which followed each other
_ONE_BLOCK = 0.1  # spread of blocks where each arm had one alone


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One arm's paired differences, and what became of training."""

    arm: Arm
    differences: list[float]
    other: list[float]  # by the figure that does not decide
    phase: str  # "switch", "screen" (sizes), "confirm", "patch" or "" where nothing was paired
    numerics: Numerics
    by: str

    @property
    def gain(self) -> float:
        """Return the mean log speed-up; minus infinity where nothing was paired."""
        return fmean(self.differences) if self.differences else -math.inf


class Evidence:
    """Reads the launcher's log; nothing is kept that the log does not say.

    Args:
        launcher: what ran.
        steps: of the observed launch.
        low_precision: the untouched program computes in bfloat16, float16 or TF32.
    """

    def __init__(
        self, launcher: Launcher, steps: StepStatistics | None, low_precision: bool
    ) -> None:
        self._launcher, self._steps, self._low_precision = launcher, steps, low_precision
        self._known: dict[tuple[str, int, int, int], Numerics] = {}

    @property
    def baselines(self) -> list[LaunchTiming]:
        """Launches of the untouched program that can be used."""
        return self._launcher.baseline.timings

    @property
    def per_step(self) -> bool:
        """Whether batches have no size, so that time per step has to do."""
        return any(not timing.samples for timing in self.baselines)

    def decided_by(self) -> str:
        """ "mean" or "median", from the baseline, once for all."""
        return compare.decided_by(self.baselines, self._steps)

    def estimator(self, by: str, arm: Arm | None = None) -> Estimator:
        """Return what makes one time of blocks, the same way for both sides of a pair."""
        per_step = self.per_step or (arm is not None and not _has_samples(arm))
        # Where means decide all blocks count: the long steps may lie in a few of them.
        return Estimator(by=by, trimmed=TRIMMED if by == "median" else 0.0, per_step=per_step)

    def noise(self, by: str | None = None) -> list[float]:
        """Differences of the A/A candidate over all rounds of launches; of blocks where none."""
        by, launched = by or self.decided_by(), self._launcher.rounds
        # Pairs side by side see far less noise than launches one after the other.
        beside = [one for one in launched if one.shape == "turns"]
        for rounds in (beside, launched, self._launcher.switched):
            found = a_a_differences(rounds, self.estimator(by))
            if len(found) > 1:
                return found
        return found

    def numerics(self, arm: Arm) -> Numerics:
        """Did training change in this arm?"""
        baselines, seeds = self.baselines, self._launcher.seeds
        # The log only grows: its lengths say whether anything was launched since.
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
        """Deciding differences of one phase."""
        return self._differences(arm, phase, self._by(arm))

    def _differences(self, arm: Arm, phase: str, by: str) -> list[float]:
        if not self.can_judge(arm):
            return []
        return differences(self._rounds(phase), arm.key, self.estimator(by, arm))

    def paired_by_the_other_figure(self, arm: Arm, phase: str) -> list[float]:
        """The same by the median where the mean decides, or the other way."""
        return self._differences(arm, phase, _other(self._by(arm)))

    def ceiling(self, arm: Arm) -> Interval | None:
        """What an arm that takes a branch's cost away gave within one launch."""
        return None if arm.refused else compare.interval(self.paired(arm, "switch"))

    def measured_how(self) -> str | None:
        """ "side by side" or "in turns": how launches were compared; None: none were."""
        shapes = {one.shape for one in self._launcher.rounds if one.slots}
        return None if not shapes else "side by side" if "turns" in shapes else "in turns"

    def can_judge(self, arm: Arm) -> bool:
        """False for a fix that may change the batch where batches have no known size."""
        return arm.facts.risk < 3 or not (self.per_step or not _has_samples(arm))

    def measured(self, arm: Arm) -> Measured:
        """Return the differences that the report shows: fresh ones where there are any."""
        by = self._by(arm)
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
            by=by,
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
        # In blocks the untouched steps too: one that is ahead of its GPU waits in the last of them.
        sides = [self._in_blocks(key) for key in (arm.key, BASELINE)]
        two_modes = any(compare.has_two_modes(timings) for timings in sides)
        return "mean" if two_modes else self.decided_by()

    def _in_blocks(self, key: str) -> list[LaunchTiming]:
        slots = [slot for one in self._launcher.switched for slot in one.slots]
        return [slot.timing for slot in slots if slot.arm == key]

    def _rounds(self, phase: str) -> list[Round]:
        log = [*self._launcher.rounds, *self._launcher.switched]
        return [one for one in log if one.phase == phase]


def _spread(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of one block, which a far one does not widen."""
    rest = [abs(log - median(group)) for group in groups for log in group if len(group) > 1]
    if not rest:
        return _ONE_BLOCK
    rounds = max(len(group) for group in groups)
    return 1.4826 * median(rest) * math.sqrt(rounds / (rounds - 1))


def _other(by: str) -> str:
    return "median" if by == "mean" else "mean"


def _has_samples(arm: Arm) -> bool:
    return all(timing.samples for timing in arm.timings)
