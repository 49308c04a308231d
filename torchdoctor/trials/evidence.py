"""Reads an arm's paired differences, and whether training changed, from the log of launches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

from torchdoctor.bench.pair_times import TRIMMED, Estimator, untouched_differences, usable
from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.schema import LaunchTiming, Pair, StepStatistics
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.claims import BlockGain
from torchdoctor.trials.log import Log
from torchdoctor.trials.numerics import Numerics, Untouched, compare_training
from torchdoctor.trials.proof import agree, pooled

_SIZE_ERROR = 0.1  # error of a launch between two untouched launches that followed each other
_ONE_BLOCK = 0.1  # spread of blocks if each arm had a single block
_LEAST_S = 0.4  # of steps on a pair's longer side: in less, one pause looks like 18x


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The paired differences of an arm, and the verdict on its training."""

    arm: Arm
    differences: list[float]
    other: list[float]  # by the mean if the median decides, and the reverse
    by: str  # "patch", "pairs", "sizes", "blocks" of one launch, or "" if nothing was measured
    numerics: Numerics
    patched: int = 0  # of the differences, those of the patch: the last ones
    # Of its pairs: peak memory in bytes, untouched and with the fix.
    memory: list[tuple[int, int]] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Return the mean log speed-up; minus infinity if nothing was paired."""
        return fmean(self.differences) if self.differences else -math.inf


class Evidence:
    """Reads the log, and keeps nothing that the log does not hold."""

    def __init__(self, log: Log, steps: StepStatistics | None, low_precision: bool) -> None:
        self._log = log
        self._steps = steps
        self._low_precision = low_precision
        self._known: dict[tuple[str, int, int, int], Numerics] = {}

    @property
    def baselines(self) -> list[LaunchTiming]:
        """Return the launches of the untouched program that can be used."""
        return self._log.baseline.timings

    @property
    def per_step(self) -> bool:
        """Return True if batches have no size, so that time per step has to do."""
        return any(not timing.samples for timing in self.baselines)

    @property
    def _on_device(self) -> bool:
        return compare.on_device(self.baselines)

    def decided_by(self) -> str:
        """Return "mean" or "median": the figure that decides for all arms, by the baseline."""
        return compare.decided_by(self.baselines, self._steps)

    def estimator(self, by: str, arm: Arm | None = None) -> Estimator:
        """Return the estimator of a time by its blocks, which both sides of a pair share."""
        per_step = self.per_step or (arm is not None and not _has_samples(arm))
        return Estimator(by=by, trimmed=self._trimmed(by), per_step=per_step)

    def _trimmed(self, by: str) -> float:
        """Return the share of blocks left out at either end of a pair's differences."""
        if by == "median":
            return TRIMMED
        # Long steps may lie in a few blocks, which then have to count. On an accelerator means
        # decide for another reason, and a stall of the machine is left out as it is elsewhere.
        return TRIMMED if self._on_device and not compare.blocks_differ(self.baselines) else 0.0

    def noise(self) -> list[float]:
        """Return the differences of the untouched program with itself, in blocks of one launch."""
        how = self.estimator(self.decided_by())
        switched = self._log.switched
        return [
            untouched_difference
            for series in switched
            for untouched_difference in untouched_differences(series.blocks, how)
        ]

    def numerics(self, arm: Arm) -> Numerics:
        """Return the verdict on whether training changed in this arm."""
        baselines = self.baselines
        seeds = self._log.seeds
        # The log only grows, so equal lengths mean that nothing was launched since.
        state = (arm.key, len(arm.timings), len(baselines), len(seeds))
        if state not in self._known:
            self._known[state] = self._compare_training(arm)
        return self._known[state]

    def _compare_training(self, arm: Arm) -> Numerics:
        steps = self._steps
        untouched = Untouched(
            baselines=self.baselines,
            seeds=self._log.seeds,
            warmup_steps=steps.warmup_steps if steps else 0,
            backwards_per_step=steps.backwards_per_step if steps else 1.0,
            low_precision=self._low_precision,
            infers=steps is not None and steps.boundary.infers,
            corrects=arm.facts.corrects,
        )
        facts = arm.facts
        return compare_training(arm.timings, untouched, facts.keeps_results, facts.how)

    def paired(self, arm: Arm) -> list[float]:
        """Return the differences of an arm's own pairs with the untouched program, in order."""
        return self.differences(arm, "pairs")

    def differences(self, arm: Arm, source: str, by: str | None = None) -> list[float]:
        """Return the log speed-ups of an arm by its "pairs", "sizes" or "blocks" of one launch."""
        if not self.can_judge(arm):
            return []
        how = self.estimator(by or self._by(arm), arm)
        if source == "pairs":
            return [log for log in map(how.difference, self._pairs(arm)) if log is not None]
        series = self._log.sizes if source == "sizes" else self._log.switched
        return [log for each in series for log in each.differences(arm.key, how)]

    def _pairs(self, arm: Arm) -> list[Pair]:
        return [pair for pair in self._log.pairs.get(arm.key, []) if _longer_s(pair) >= _LEAST_S]

    def pair_error(self, arm: Arm) -> float:
        """Return the usual error of an arm's pairs by their own rounds; 0: there are none."""
        how = self.estimator(self._by(arm), arm)
        return median([_own_error(pair, how) for pair in self._pairs(arm)] or [0.0])

    def measured_how(self) -> str | None:
        """Return how launches were compared: "side by side" or "in turns"; None: none were."""
        pairs = [pair for of_arm in self._log.pairs.values() for pair in of_arm]
        if any(pair.side_by_side for pair in pairs):
            return "side by side"
        return "in turns" if pairs or self._log.sizes else None

    def can_judge(self, arm: Arm) -> bool:
        """Return False if a fix may change the batch and batches have no known size."""
        return arm.facts.risk < 3 or not (self.per_step or not _has_samples(arm))

    def measured(self, arm: Arm, patched: Arm | None = None) -> Measured:
        """Return the differences that the report shows: fresh ones where there are any.

        `patched`: the arm of the patched program; what was measured of it stands for the fixes.
        """
        if patched is not None and self.paired(patched):
            run_time = self.paired(arm)
            patch = self.paired(patched)
            together = agree(run_time, patch)
            return Measured(
                arm=arm,
                differences=pooled(run_time, patch),
                other=self._other(arm, "pairs") * together + self._other(patched, "pairs"),
                by="patch",
                numerics=self.numerics(patched),
                patched=len(patch),
                memory=[*self._memory(arm), *self._memory(patched)],
            )
        sources = ("pairs", "sizes", "blocks")
        source = next((name for name in sources if self.differences(arm, name)), "")
        return Measured(
            arm=arm,
            differences=self.differences(arm, source) if source else [],
            other=self._other(arm, source) if source else [],
            by=source,
            numerics=self.numerics(arm),
            memory=self._memory(arm),
        )

    def _memory(self, arm: Arm) -> list[tuple[int, int]]:
        """Return the peak memory of both launches of each pair, where both are of one kind."""
        launches = [pair.launches for pair in self._log.pairs.get(arm.key, [])]
        return [
            (untouched.peak_memory_bytes, fixed.peak_memory_bytes)
            for untouched, fixed in launches
            if usable(untouched) and usable(fixed)
            if untouched.gpu_memory == fixed.gpu_memory
            if untouched.peak_memory_bytes and fixed.peak_memory_bytes
        ]

    def _other(self, arm: Arm, source: str) -> list[float]:
        """Return the differences by whichever of mean and median does not decide, if it says any.

        On an accelerator the median step is the host's alone.
        """
        if self._on_device:
            return []
        return self.differences(arm, source, "median" if self._by(arm) == "mean" else "mean")

    def block_gains(self, arms: Sequence[Arm]) -> dict[str, BlockGain]:
        """Return what arms gained in blocks of one launch, or while sizes were searched, by key."""
        gains = {
            arm.key: BlockGain(gain=median(sized), error=_SIZE_ERROR)
            for arm in arms
            if (sized := self.differences(arm, "sizes"))
        }
        blocks = {arm.key: self.differences(arm, "blocks") for arm in arms}
        blocks = {key: rounds for key, rounds in blocks.items() if rounds}
        spread = _spread(list(blocks.values()))
        return gains | {key: BlockGain.of(rounds, spread) for key, rounds in blocks.items()}

    def _by(self, arm: Arm) -> str:
        # A fix can make two kinds of even steps: the median step is a fiction then, on both sides.
        if arm.timings:
            return "mean" if compare.has_two_modes(arm.timings) else self.decided_by()
        # Blocks make untouched steps uneven too: a program ahead of its GPU waits in the last step.
        for key in (arm.key, BASELINE):
            if compare.has_two_modes(
                [block for each in self._log.switched for block in each.of(key)]
            ):
                return "mean"
        return self.decided_by()


def _own_error(pair: Pair, how: Estimator) -> float:
    """Return the error of a difference by the rounds of its pair: a change of load shows."""
    times = filter(None, (how.times([both]) for both in pair.blocks))
    logs = [math.log(first / second) for first, second in times]
    return stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0


def _longer_s(pair: Pair) -> float:
    return max(sum(sum(both[side].step_s) for both in pair.blocks) for side in (0, 1))


def _spread(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of a block, which an outlier does not widen."""
    rest = [abs(log - median(group)) for group in groups for log in group if len(group) > 1]
    if not rest:
        return _ONE_BLOCK
    rounds = max(len(group) for group in groups)
    return 1.4826 * median(rest) * math.sqrt(rounds / (rounds - 1))


def _has_samples(arm: Arm) -> bool:
    return all(timing.samples for timing in arm.timings)
