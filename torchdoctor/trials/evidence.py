"""What the log of launches says of one arm: paired differences, and whether training changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

from torchdoctor.pairs.pair_times import TRIMMED, Estimator
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.numerics import Numerics, Untouched, compare_training
from torchdoctor.trials.rounds import BASELINE, Round, a_a_differences, differences
from torchdoctor.words import Interval, LaunchTiming, StepStatistics

BOUND_KNOWN_TO = 0.05  # logarithm: phases are of another launch than the trials'
_REST_KNOWN_TO = math.log(3.0)  # cores that slept through a wait compute that much slower after it


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One arm's paired differences, and what they are worth."""

    arm: Arm
    differences: list[float]
    other: list[float]  # by the figure that does not decide
    phase: str  # "switch", "screen", "confirm", "stack" or "" where nothing was paired
    numerics: Numerics
    by: str
    looked: list[float] = field(default_factory=list)  # `compare.half_width`
    other_looked: list[float] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Mean log speed-up; minus infinity where nothing was paired."""
        return fmean(self.differences) if self.differences else -math.inf

    def verdict(
        self, delta: float = compare.SMALLEST_DELTA, adjusted_p: float | None = None
    ) -> str:
        """As `compare.verdict`."""
        return compare.verdict(self.differences, delta, adjusted_p, self.looked)

    @property
    def bound(self) -> float | None:
        """The most that the time of the step it works on allows, as a speed-up; None: unknown."""
        return self.arm.candidate.bound if self.arm.candidate is not None else None

    @property
    def beyond_bound(self) -> bool:
        """Whether it gained more than the time of the step that it works on allows."""
        return exceeds(self.gain, self.bound)


def exceeds(gain: float, bound: float | None) -> bool:
    """Whether a log speed-up lies above a bound by more than the bound is known to.

    Of a fix that works on nearly all of the step, the bound hangs on the little that is left, and
    that gets faster too: 13.6x was measured of a step that waits for seven eighths of its time.
    """
    if bound is None:
        return False
    known_to = BOUND_KNOWN_TO + _REST_KNOWN_TO * (1.0 - 1.0 / bound) ** 3
    return gain > math.log(bound) + known_to


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

    def _differences(self, arm: Arm, phase: str, by: str, *, ranking: bool = False) -> list[float]:
        if not self.can_judge(arm):
            return []
        return differences(
            self._rounds(phase),
            arm.key,
            self.estimator(by, arm),
            ranking=ranking,
        )

    def ranked(self, arm: Arm, phase: str) -> tuple[list[float], list[float]]:
        """Differences to rank candidates by: by the deciding figure, and by the other one."""
        if phase == "switch":  # many short blocks: the faster of two would be a biased baseline
            return self.paired(arm, phase), self.paired_by_the_other_figure(arm, phase)
        by = self._by(arm)
        first, second = (
            self._differences(arm, phase, figure, ranking=True) for figure in (by, _other(by))
        )
        return first, second

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
        """The differences that the report shows: fresh ones where there are any."""
        by = self._by(arm)
        for phase in ("patch", "stack", "confirm", "screen", "switch"):
            found = self.paired(arm, phase)
            # One fresh pair has no interval; two screening pairs may have.
            if len(found) > 1 or (found and phase != "confirm"):
                break
        else:
            found, phase = self.paired(arm, "confirm"), "confirm"
        return Measured(
            arm=arm,
            differences=found,
            other=self.paired_by_the_other_figure(arm, phase) if found else [],
            phase=phase if found else "",
            numerics=self.numerics(arm),
            by=by,
            looked=self._looked(arm, phase, by),
            other_looked=self._looked(arm, phase, _other(by)),
        )

    def _looked(self, arm: Arm, phase: str, by: str) -> list[float]:
        """Of the look that chose it, where that and all fresh pairs were taken side by side."""
        phases = ("screen", phase)
        pairs = [one for one in self._launcher.rounds if one.phase in phases and one.has(arm.key)]
        if phase != "confirm" or any(one.shape != "turns" for one in pairs):
            return []
        return self._differences(arm, "screen", by)

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


def _other(by: str) -> str:
    return "median" if by == "mean" else "mean"


def _has_samples(arm: Arm) -> bool:
    return all(timing.samples for timing in arm.timings)
