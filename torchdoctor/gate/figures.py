"""Launches of both versions -> the rows of the gate's table. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean, median

from torchdoctor.bench.pair_times import Estimator, is_per_step, usable
from torchdoctor.gate.decision import grown, ratio_of, state
from torchdoctor.schema import Interval, LaunchTiming, Pair, StepStatistics
from torchdoctor.schema.gate import GateMetric

_OTHER_LOAD_CPUS = 0.5  # from here on it is others who make steps differ in length


def estimator(
    observed: Sequence[tuple[StepStatistics, float | None]], *, on_device: bool = False
) -> Estimator:
    """Return what suits the program's steps: medians, or means where steps come in two kinds.

    Means are of the middle half of blocks that hold whole cycles, else of all blocks, so that rare
    stalls count; but where the machine was shared the long steps are those that others interrupted.
    Each version's steps come with the CPUs that other programs kept busy meanwhile.
    `on_device`: on an accelerator, where a step's stamps are the host's, blocks alone are whole.
    """
    if on_device:
        return Estimator(by="mean")
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
    """Pairs of (reference, new), and what makes one time of the blocks of a pair."""

    how: Estimator
    pairs: list[Pair] = field(default_factory=list)

    @property
    def per_step(self) -> bool:
        """Return True if batches have no size, so that time per step has to do."""
        return is_per_step(timing for pair in self.pairs for timing in pair.launches)

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
        """Return new / reference of the mean step, rare long ones included; None if it decides."""
        every = Estimator(by="mean", trimmed=0.0)
        return None if self.how == every else ratio_of(self.differences(every))


def metrics(
    measured: Measured,
    tolerances: Mapping[str, float],
    verdict: str,
    observed: Sequence[tuple[StepStatistics, StepStatistics]],
    told_memory: float | None = None,
) -> list[GateMetric]:
    """Return a row for each metric; `observed`: steps of (reference, new), once for each order.

    `told_memory`: as `GateSettings` has it.
    """
    times = measured.times()
    ratio = ratio_of(measured.differences())
    accepted = tolerances.get("step_time")
    word = state(verdict, ratio, accepted, measured.mean_ratio)
    # Geometric means over the pairs, so that their quotient is the ratio that decides.
    before, now = ([pair[side] for pair in times] for side in (0, 1))
    old, new = (peaks([pair.launches[side] for pair in measured.pairs]) for side in (0, 1))
    return [
        *time_rows(before, now, measured.per_step, ratio, accepted, word),
        memory(old, new, tolerances, told_memory),
        waiting(observed, tolerances),
    ]


def time_rows(
    before: Sequence[float],
    now: Sequence[float],
    per_step: bool,
    ratio: Interval | None,
    tolerance: float | None,
    verdict: str,
) -> list[GateMetric]:
    """Return the row of the step time in seconds, and of samples/s where batches have a size."""
    old, new = (geometric_mean(times) if times else None for times in (before, now))
    unit = "s/step" if per_step else "s/sample"
    inverse = ratio.inverse if ratio is not None else None
    row = GateMetric(name="step_time", unit=unit, ratio=ratio, tolerance=tolerance, verdict=verdict)
    rate = GateMetric(name="samples_per_s", unit="samples/s", ratio=inverse, verdict=verdict)
    rate = replace(rate, reference=1.0 / old if old else None, new=1.0 / new if new else None)
    row = replace(row, reference=old, new=new)
    return [row] if per_step else [row, rate]


def peaks(launches: Sequence[LaunchTiming]) -> list[float]:
    """Return the peak memory in bytes of the launches that have one."""
    return [
        float(launch.peak_memory_bytes)
        for launch in launches
        if usable(launch) and launch.peak_memory_bytes
    ]


def memory(
    before: Sequence[float],
    now: Sequence[float],
    tolerances: Mapping[str, float],
    told_growth: float | None = None,
) -> GateMetric:
    """Return the row of peak memory, from each launch's bytes."""
    row = GateMetric(
        name="peak_memory",
        reference=median(before) if before else None,
        new=median(now) if now else None,
        unit="bytes",
        tolerance=tolerances.get("peak_memory"),
        told=told_growth,
    )
    if not before or not now:
        return row
    worse = row.allowed is not None and grown(before, now, row.allowed)
    return replace(row, verdict="worse" if worse else "ok")


def waiting(
    observed: Sequence[tuple[StepStatistics, StepStatistics]], tolerances: Mapping[str, float]
) -> GateMetric:
    """Return the row of the wait for data; of one order, the first reads from a cold disk."""
    shares = [
        [steps.data_wait_s / steps.mean_s if steps.mean_s > 0 else 0.0 for steps in both]
        for both in observed
    ]
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
