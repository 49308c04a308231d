"""Launches of both versions -> the rows of the gate's table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean, median

from torchdoctor.gate.decision import grown, state
from torchdoctor.gate.pairs import Estimator, Pairs
from torchdoctor.trials.compare import as_interval, half_width, usable
from torchdoctor.words import LaunchTiming, StepStatistics
from torchdoctor.words.gate import GateMetric

# Accepted growth by metric; data_loader_share is in shares of the step, not relative.
DEFAULT_TOLERANCES = {"step_time": 0.02, "samples_per_s": 0.02, "peak_memory": 0.10}
METRICS = ("step_time", "samples_per_s", "peak_memory", "data_loader_share")


def metrics(
    pairs: Pairs,
    how: Estimator,
    tolerances: Mapping[str, float],
    verdict: str,
    observed: Sequence[tuple[StepStatistics, StepStatistics]],
) -> list[GateMetric]:
    """One row for each metric.

    Args:
        pairs: launches of both versions.
        how: what makes one time of the blocks of a pair.
        tolerances: accepted growth by metric.
        verdict: of the rule on the pairs' differences.
        observed: statistics of observing launches (reference, new), once for each order.
    """
    times = pairs.times(how)
    # Geometric means over the pairs, so that their quotient is the ratio that decides.
    before, now = ([pair[side] for pair in times] for side in (0, 1))
    differences, ratio = pairs.differences(how), None
    if len(differences) > 1:
        ratio = as_interval(fmean(differences), half_width(differences))
    accepted = tolerances.get("step_time")
    said = state(verdict, ratio, accepted, pairs.mean_ratio(how))
    rows = [
        GateMetric(
            name="step_time",
            reference=_geometric(before),
            new=_geometric(now),
            unit="s/step" if pairs.per_step else "s/sample",
            ratio=ratio,
            tolerance=accepted,
            verdict=said,
        )
    ]
    if not pairs.per_step:
        rows.append(rate(rows[0]))
    memories = (peaks(pairs.reference), peaks(pairs.new))
    return [*rows, memory(*memories, tolerances), waiting(observed, tolerances)]


def rate(time: GateMetric) -> GateMetric:
    """The row of samples/s that belongs to one of seconds per sample."""
    return GateMetric(
        name="samples_per_s",
        reference=_inverse(time.reference),
        new=_inverse(time.new),
        unit="samples/s",
        ratio=time.ratio.inverse if time.ratio is not None else None,
        verdict=time.verdict,
    )


def peaks(launches: Sequence[LaunchTiming]) -> list[float]:
    """Peak memory in bytes of the launches that have one."""
    return [float(x.peak_memory_bytes) for x in launches if usable(x) and x.peak_memory_bytes]


def memory(
    before: Sequence[float], now: Sequence[float], tolerances: Mapping[str, float]
) -> GateMetric:
    """The row of peak memory, from each launch's bytes."""
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
    """The row of the time spent waiting for data: worse only where it grew in each order.

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
