"""Launches of both versions -> the rows of the gate's table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean, median

from torchdoctor.gate.decision import grown, state
from torchdoctor.pairs.pair_times import Estimator, is_per_step, usable
from torchdoctor.trials.compare import as_interval, half_width
from torchdoctor.words import Interval, LaunchTiming, Pair, StepStatistics
from torchdoctor.words.gate import GateMetric

_OTHER_LOAD_CPUS = 0.5  # from here on it is others who make steps differ in length


def estimator(observed: Sequence[tuple[StepStatistics, float | None]]) -> Estimator:
    """Return what suits the program's steps.

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
class Measured:
    """Everything that was measured of both versions: pairs of (reference, new).

    how: what makes one time of the blocks of a pair.
    """

    how: Estimator
    pairs: list[Pair] = field(default_factory=list)

    @property
    def per_step(self) -> bool:
        """Return True if batches have no size, so that time per step has to do."""
        return is_per_step(timing for pair in self.pairs for timing in pair.launches)

    def launches(self, side: int) -> list[LaunchTiming]:
        """Return the launches of the reference (0) or of the new version (1)."""
        return [pair.launches[side] for pair in self.pairs]

    def times(self, how: Estimator | None = None) -> list[tuple[float, float]]:
        """Return (reference, new) of each pair: seconds per sample, or per step."""
        how = replace(how or self.how, per_step=self.per_step)
        times = [how.times(pair.blocks) for pair in self.pairs]
        return [both for both in times if both is not None]

    def differences(self, how: Estimator | None = None) -> list[float]:
        """Return log(new) - log(reference) of each pair; above 0 is slower."""
        return [math.log(new / old) for old, new in self.times(how)]

    @property
    def mean_ratio(self) -> Interval | None:
        """Return new / reference of the mean step, every block counted, beside what decides.

        Medians and trimmed means are blind for work that a few steps do: a checkpoint, a log.

        Returns:
            With its 95 % interval; None where it decides itself, and below two pairs.
        """
        every = Estimator(by="mean", trimmed=0.0)
        differences = self.differences(every)
        if self.how == every or len(differences) < 2:
            return None
        return as_interval(fmean(differences), half_width(differences))


def metrics(
    measured: Measured,
    tolerances: Mapping[str, float],
    verdict: str,
    observed: Sequence[tuple[StepStatistics, StepStatistics]],
) -> list[GateMetric]:
    """Return a row for each metric.

    Args:
        measured: pairs of both versions.
        tolerances: accepted growth by metric.
        verdict: of the rule on the pairs' differences.
        observed: statistics of observing launches (reference, new), once for each order.
    """
    times = measured.times()
    # Geometric means over the pairs, so that their quotient is the ratio that decides.
    before, now = ([pair[side] for pair in times] for side in (0, 1))
    differences, ratio = measured.differences(), None
    if len(differences) > 1:
        ratio = as_interval(fmean(differences), half_width(differences))
    accepted = tolerances.get("step_time")
    word = state(verdict, ratio, accepted, measured.mean_ratio)
    rows = [
        GateMetric(
            name="step_time",
            reference=_geometric(before),
            new=_geometric(now),
            unit="s/step" if measured.per_step else "s/sample",
            ratio=ratio,
            tolerance=accepted,
            verdict=word,
        )
    ]
    if not measured.per_step:
        rows.append(rate(rows[0]))
    memories = (peaks(measured.launches(0)), peaks(measured.launches(1)))
    return [*rows, memory(*memories, tolerances), waiting(observed, tolerances)]


def rate(time: GateMetric) -> GateMetric:
    """Return the row of samples/s that belongs to a row of seconds per sample."""
    return GateMetric(
        name="samples_per_s",
        reference=_inverse(time.reference),
        new=_inverse(time.new),
        unit="samples/s",
        ratio=time.ratio.inverse if time.ratio is not None else None,
        verdict=time.verdict,
    )


def peaks(launches: Sequence[LaunchTiming]) -> list[float]:
    """Return the peak memory in bytes of the launches that have one."""
    return [float(x.peak_memory_bytes) for x in launches if usable(x) and x.peak_memory_bytes]


def memory(
    before: Sequence[float], now: Sequence[float], tolerances: Mapping[str, float]
) -> GateMetric:
    """Return the row of peak memory, from each launch's bytes."""
    tolerance = tolerances.get("peak_memory")
    worse = tolerance is not None and grown(before, now, tolerance)
    return GateMetric(
        name="peak_memory",
        reference=_middle(before),
        new=_middle(now),
        unit="bytes",
        tolerance=tolerance,
        verdict="not measured" if not before or not now else "worse" if worse else "ok",
    )


def waiting(
    observed: Sequence[tuple[StepStatistics, StepStatistics]], tolerances: Mapping[str, float]
) -> GateMetric:
    """Return the row of the time spent waiting for data: worse only where it grew in each order.

    Args:
        observed: of launches (reference, new), once for each order; one order judges nothing, as
            who is launched first reads from a cold disk.
        tolerances: accepted growth by metric.
    """
    shares = [(_wait_share(before), _wait_share(now)) for before, now in observed]
    tolerance = tolerances.get("data_loader_share")
    verdict = "ok"
    if tolerance is not None:
        grew = all(now - before > tolerance for before, now in shares)
        verdict = "not measured" if len(shares) < 2 else "worse" if grew else "ok"
    return GateMetric(
        name="data_loader_share",
        reference=fmean(before for before, _ in shares),
        new=fmean(now for _, now in shares),
        unit="share",
        tolerance=tolerance,
        verdict=verdict,
    )


def _wait_share(steps: StepStatistics) -> float:
    return steps.data_wait_s / steps.mean_s if steps.mean_s > 0 else 0.0


def _geometric(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None
