"""Launches of both versions -> the rows of the gate's table, and its sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from torchdoctor.gate.decision import grown
from torchdoctor.records import Interval, LaunchTiming, StepStatistics
from torchdoctor.records.gate import GateMetric
from torchdoctor.trials.compare import as_interval, half_width, seconds_per_sample, usable

# Accepted growth by metric; data_loader_share is in shares of the step, not relative.
DEFAULT_TOLERANCES = {"step_time": 0.02, "samples_per_s": 0.02, "peak_memory": 0.10}
_BLIND = 0.10  # a slow-down that a gate should have seen
METRICS = ("step_time", "samples_per_s", "peak_memory", "data_loader_share")


@dataclass
class SideTimings:
    """All launches of one version, in order; one that failed keeps its place."""

    launches: list[LaunchTiming] = field(default_factory=list)

    def add(self, timing: LaunchTiming) -> None:
        """The next launch."""
        self.launches.append(timing)

    @property
    def per_step(self) -> bool:
        """Whether batches have no size, so that time per step has to do."""
        return any(usable(x) and not x.samples for x in self.launches)

    def seconds(self, by: str, per_step: bool) -> list[float | None]:
        """Time per sample of each launch, None where it failed."""
        return [seconds_per_sample(x, by, per_step) for x in self.launches]

    def paired_with(self, reference: SideTimings, by: str) -> list[float]:
        """log(own time) - log(reference's) of every pair of which both sides were measured."""
        per_step = self.per_step or reference.per_step
        pairs = zip(self.seconds(by, per_step), reference.seconds(by, per_step), strict=False)
        return [math.log(new) - math.log(old) for new, old in pairs if new and old]


def metrics(
    reference: SideTimings,
    new: SideTimings,
    by: str,
    differences: Sequence[float],
    tolerances: Mapping[str, float],
    verdict: str,
    observed: tuple[StepStatistics, StepStatistics],
) -> list[GateMetric]:
    """One row for each metric.

    Args:
        reference: launches of the reference.
        new: launches of the new version.
        by: "mean" or "median".
        differences: of the pairs, as `decision.look` takes them.
        tolerances: accepted growth by metric.
        verdict: of the rule on the differences.
        observed: statistics of the observing launches (reference, new).
    """
    per_step = new.per_step or reference.per_step
    before, now = (_known(x.seconds(by, per_step)) for x in (reference, new))
    ratio = None
    if len(differences) > 1:
        ratio = as_interval(fmean(differences), half_width(differences))
    state = {"slower": "worse", "not slower": "ok"}.get(verdict, "not measured")
    rows = [
        GateMetric(
            name="step_time",
            reference=_middle(before),
            new=_middle(now),
            unit="s/step" if per_step else "s/sample",
            ratio=ratio,
            tolerance=tolerances.get("step_time"),
            verdict=state,
        )
    ]
    if not per_step:
        rows.append(
            GateMetric(
                name="samples_per_s",
                reference=_inverse(_middle(before)),
                new=_inverse(_middle(now)),
                unit="samples/s",
                ratio=_inverted(ratio),
                verdict=state,
            )
        )
    return [*rows, _memory(reference, new, tolerances), _waiting(observed, tolerances)]


def _memory(
    reference: SideTimings, new: SideTimings, tolerances: Mapping[str, float]
) -> GateMetric:
    before, now = (
        [float(x.peak_memory_bytes) for x in side.launches if usable(x) and x.peak_memory_bytes]
        for side in (reference, new)
    )
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


def _waiting(
    observed: tuple[StepStatistics, StepStatistics], tolerances: Mapping[str, float]
) -> GateMetric:
    before, now = (x.data_wait_s / x.mean_s if x.mean_s > 0 else 0.0 for x in observed)
    tolerance = tolerances.get("data_loader_share")
    worse = tolerance is not None and now - before > tolerance
    return GateMetric(
        name="data_loader_share",
        reference=before,
        new=now,
        unit="share",
        tolerance=tolerance,
        verdict="worse" if worse else "ok",
    )


def sentence(
    rows: Sequence[GateMetric], verdict: str, reference: str, doubts: Sequence[str]
) -> str:
    """The verdict in one sentence."""
    time = rows[0]
    figure = ""
    if time.ratio is not None:
        figure = (
            f"{time.ratio.estimate:.3f} times the step time "
            f"(95 % interval {time.ratio.low:.3f} to {time.ratio.high:.3f})"
        )
    if verdict == "inconclusive":
        why = f": {doubts[-1]}" if doubts else "."
        return f"Not decided against {reference}{why}" + (f" So far: {figure}." if figure else "")
    worse = [row.name for row in rows if row.verdict == "worse"]
    if worse:
        named = ", ".join(name.replace("_", " ") for name in worse)
        return f"Worse than {reference} in {named}: {figure}."
    if time.ratio is not None and time.ratio.high > 1 + max(_BLIND, 2 * (time.tolerance or 0.0)):
        most = f"{100 * (time.ratio.high - 1):.0f} %"
        return (
            f"No slow-down against {reference} is proven, but the launches vary so much that one "
            f"of up to {most} would not have been seen: {figure}."
        )
    return f"Not slower than {reference} beyond the tolerance: {figure}."


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _inverse(value: float | None) -> float | None:
    return 1.0 / value if value else None


def _inverted(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    return Interval(estimate=1 / interval.estimate, low=1 / interval.high, high=1 / interval.low)
