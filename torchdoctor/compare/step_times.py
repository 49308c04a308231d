"""The step time of both sides on the same footing, and whether it differs."""

import math
from dataclasses import dataclass, replace
from statistics import geometric_mean

from torchdoctor.schema import Interval, Report, StepTime, fact
from torchdoctor.schema.comparison import ComparedSide
from torchdoctor.schema.errors import Inconclusive
from torchdoctor.trials.compare import SMALLEST_DELTA, delta, welch_interval

OTHER_LOAD = 0.2  # of the usable CPUs: a difference that can make a program slower by itself


@dataclass(frozen=True)
class Side:
    """One of the two reports, with the step time by which it is compared."""

    report: Report
    time: ComparedSide

    @property
    def is_trace(self) -> bool:
        """Return True if it was diagnosed from traces: nothing was run."""
        return is_trace(self.report)

    @property
    def unit(self) -> str:
        """Return what a step of it is called."""
        return self.report.steps.boundary.unit if self.report.steps is not None else "step"

    @property
    def parts_s(self) -> float:
        """Return the step time that shares are of: that of the launch they were observed in."""
        return self.time.parts_s or self.time.step_s

    @property
    def samples_per_s(self) -> float | None:
        """Return the rate that its step time comes to."""
        samples = self.time.samples_per_step
        return None if samples is None else samples / self.time.step_s

    def cost_s(self, share: float | None) -> float | None:
        """Return the seconds of a share of the observed step."""
        return None if share is None else share * self.parts_s


def unit_of_both(a: Side, b: Side) -> str:
    """Return what a step of the two is called."""
    return a.unit if a.unit == b.unit else "step"


def is_trace(report: Report) -> bool:
    """Return True if a report was diagnosed from traces: nothing was run."""
    return report.workload.command[:2] == ["torchdoctor", "diagnose"]


def sides(a: Report, b: Report, names: tuple[str, str]) -> tuple[Side, Side, Interval | None]:
    """Return both sides with comparable times, and B's speed-up where launches give an interval."""
    reports = (a, b)
    profiled = is_trace(a) != is_trace(b)
    times = [_time(report, name, profiled) for report, name in zip(reports, names, strict=True)]
    ways = [report.baseline.launches_by for report in reports]
    # What a trace says (shares, operators, counts) are means over the same steps.
    by_mean = any(map(is_trace, reports)) or any(time.two_modes for time in times)
    by_mean = by_mean or "mean" in ways
    first, second = (
        _side(report, name, time, by_mean)
        for report, name, time in zip(reports, names, times, strict=True)
    )
    if profiled or ways[0] != ways[1]:
        return first, second, None
    return _by_launches(first, second)


def verdict(a: Side, b: Side, interval: Interval | None, load: dict[str, float] | None) -> str:
    """Return "slower", "faster", "same" or "unclear" of B; `load` is from `other_load`."""
    ratio = b.time.step_s / a.time.step_s
    if interval is None:
        # Without several launches only the size of the change speaks.
        if max(ratio, 1 / ratio) < 1 + SMALLEST_DELTA:
            return "same"
        if load is not None or (_within_spread(a, b) and _within_spread(b, a)):
            return "unclear"
        return "slower" if ratio > 1 else "faster"
    least = max(delta(side.report.noise_floor) for side in (a, b))
    within = 1 / (1 + least) <= interval.low and interval.high <= 1 + least
    if within or a.report.baseline.launches_s == b.report.baseline.launches_s:
        return "same"
    if load is not None or interval.low <= 1 <= interval.high:
        return "unclear"
    return "slower" if interval.high < 1 else "faster"


def _within_spread(side: Side, other: Side) -> bool:
    low_s = other.time.low_s
    high_s = other.time.high_s
    return low_s is not None and high_s is not None and low_s <= side.time.step_s <= high_s


def other_load(a: Side, b: Side) -> dict[str, float] | None:
    """Return how many CPUs others used, if that explains the change; or None."""
    usable = min(side.report.environment.usable_cpus or 0.0 for side in (a, b))
    old, new = (side.report.sensors.other_load_cpus for side in (a, b))
    if not usable or old is None or new is None or abs(old - new) < OTHER_LOAD * usable:
        return None
    if (new > old) != (b.time.step_s > a.time.step_s):
        return None  # a program that is slower on a calmer machine stays slower beside others
    return {"usable": usable, "a_busy": old, "b_busy": new}


def _time(report: Report, name: str, profiled: bool) -> StepTime:
    """Return the step's time; for a run beside a trace that of its profiled steps."""
    trace = report.trace
    time = report.baseline.step_time_s
    if profiled and not is_trace(report) and trace is not None and trace.step_times_s:
        time = StepTime.of(trace.step_times_s)
    if time is None or not (math.isfinite(time.median) and time.median > 0):
        why = (
            "A trace has one if torch.profiler had a `schedule` and profiler.step() was called."
            if is_trace(report)
            else "Its run ended before steps were measured: run it again."
        )
        raise Inconclusive(f"{name} holds no step time, so the two cannot be compared. {why}")
    return time


def _side(report: Report, name: str, time: StepTime, by_mean: bool) -> Side:
    steps = report.steps
    unit = steps.boundary.unit if steps is not None else "step"
    measured_as = fact("median-of-steps", unit=unit, steps=time.steps)
    if by_mean:
        measured_as = fact("mean-of-steps", unit=unit, steps=time.steps, median_s=time.median)
    mean_s = time.mean or time.median
    rate = report.baseline.samples_per_s
    samples = steps.samples_per_step if steps is not None else None
    if not samples and rate and report.baseline.step_time_s is not None:
        samples = rate * report.baseline.step_time_s.deciding
    observed = steps is not None and time is report.baseline.step_time_s and steps.mean_s > 0
    shown = ComparedSide(
        name=name,
        kind="trace" if is_trace(report) else "run",
        step_s=mean_s if by_mean else time.median,
        low_s=time.p10,
        high_s=time.p90,
        measured_as=measured_as,
        parts_s=steps.mean_s if observed and steps is not None else mean_s,
        samples_per_step=samples,
        command=report.workload.command,
        created=report.created,
    )
    return Side(report, shown)


def _by_launches(a: Side, b: Side) -> tuple[Side, Side, Interval | None]:
    """Return the sides by launches, where both have two, each per the same thing."""
    units = {side.report.baseline.launches_per for side in (a, b)}
    launches = [[s for s in side.report.baseline.launches_s if s > 0] for side in (a, b)]
    interval = welch_interval(*launches)
    samples = a.time.samples_per_step if units == {"sample"} else 1.0
    # Of times per sample the ratio is that of steps only with equal batches.
    alike = samples is not None and (units != {"sample"} or same_batch(a, b))
    if interval is None or samples is None or len(units) > 1 or not alike:
        return a, b, None
    old, new = (
        replace(
            side,
            time=replace(
                side.time,
                step_s=geometric_mean(times) * samples,
                low_s=min(times) * samples,
                high_s=max(times) * samples,
                measured_as=fact("mean-of-launches", launches=len(times)),
            ),
        )
        for side, times in zip((a, b), launches, strict=True)
    )
    return old, new, interval


def same_batch(a: Side, b: Side) -> bool:
    """Return True if steps train on as many samples, but for short last batches, or unknown."""
    old = a.time.samples_per_step
    new = b.time.samples_per_step
    return old is None or new is None or 0.97 < old / new < 1.03
