"""The step time of both sides on the same footing, and whether it differs."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, geometric_mean

from torchdoctor.trials.compare import SMALLEST_DELTA, delta, welch_interval
from torchdoctor.words import Interval, Report, StepTime
from torchdoctor.words.comparison import ComparedSide
from torchdoctor.words.errors import Inconclusive
from torchdoctor.words.figures import seconds

OTHER_LOAD = 0.2  # of the usable CPUs: a difference that can make a program slower by itself
_PER_STEP = (2 / 3, 3 / 2)  # launch time / step time: within this the launch's is a step's


def is_trace(report: Report) -> bool:
    """Return True if it was diagnosed from traces: nothing was run."""
    return report.workload.command[:2] == ["torchdoctor", "diagnose"]


def sides(
    a: Report, b: Report, names: tuple[str, str]
) -> tuple[ComparedSide, ComparedSide, Interval | None]:
    """Both sides with comparable step times, and the speed-up where launches give an interval.

    Raises:
        Inconclusive: one has no step time.
    """
    profiled = is_trace(a) != is_trace(b)
    times = [_time(report, name, profiled) for report, name in zip((a, b), names, strict=True)]
    # What a trace says (shares, operators, counts) are means over the same steps.
    by_mean = is_trace(a) or is_trace(b) or any(time.two_modes for time in times)
    by_mean = by_mean or "mean" in (launches_are(a), launches_are(b))
    compared = [
        _side(report, name, time, by_mean)
        for report, name, time in zip((a, b), names, times, strict=True)
    ]
    if profiled or launches_are(a) != launches_are(b):
        return compared[0], compared[1], None
    return _by_launches(a, b, compared[0], compared[1])


def launches_are(report: Report) -> str:
    """ "mean" or "median": which of their steps' times its launches are told by."""
    if report.baseline.launches_by in ("mean", "median"):
        return report.baseline.launches_by
    known = report.steps, report.baseline.step_time_s
    return "mean" if any(times is not None and times.two_modes for times in known) else "median"


def parts_s(side: ComparedSide) -> float:
    """Return the step time that shares are of: that of the launch which they were observed in."""
    return side.parts_s or side.step_s


def samples_per_step(report: Report) -> float | None:
    """Samples that one step trains on; None: not known."""
    if report.steps is not None and report.steps.samples_per_step:
        return report.steps.samples_per_step
    time, rate = report.baseline.step_time_s, report.baseline.samples_per_s
    return rate * time.deciding if time is not None and rate else None


def verdict(
    sides: tuple[ComparedSide, ComparedSide],
    interval: Interval | None,
    a: Report,
    b: Report,
    load: str | None,
) -> str:
    """ "slower", "faster", "same" or "unclear" of B.

    Args:
        sides: their step times.
        interval: the speed-up of B with its interval, where there is one.
        a: for its noise floor.
        b: as a.
        load: from `other_load`.
    """
    ratio = sides[1].step_s / sides[0].step_s
    least = max(delta(a.noise_floor), delta(b.noise_floor))
    if interval is None:
        # Without several launches only the size of the change speaks.
        if max(ratio, 1 / ratio) < 1 + SMALLEST_DELTA:
            return "same"
        if load is not None or within_spreads(*sides):
            return "unclear"
        return "slower" if ratio > 1 else "faster"
    within = 1 / (1 + least) <= interval.low and interval.high <= 1 + least
    if within or a.baseline.launches_s == b.baseline.launches_s:
        return "same"
    if load is not None:
        return "unclear"
    if interval.high < 1:
        return "slower"
    return "faster" if interval.low > 1 else "unclear"


def within_spreads(*sides: ComparedSide) -> bool:
    """Return True if each side's step time lies within the other's spread."""
    both = [*sides, sides[0]]
    return sides[0].step_s != sides[1].step_s and all(
        side.low_s is not None
        and side.high_s is not None
        and side.low_s <= next_side.step_s <= side.high_s
        for side, next_side in pairwise(both)
    )


def other_load(a: Report, b: Report, ratio: float) -> str | None:
    """Return how much of the machine other programs used, if far more in the slower run.

    Launches of one run agree with each other under a steady load, so no interval shows it.

    Args:
        a: a run.
        b: another.
        ratio: B's step time / A's.
    """
    usable = min(a.environment.usable_cpus or 0.0, b.environment.usable_cpus or 0.0)
    old, new = a.sensors.other_load_cpus, b.sensors.other_load_cpus
    if not usable or old is None or new is None or abs(old - new) < OTHER_LOAD * usable:
        return None
    if (new > old) != (ratio > 1):
        return None  # who is slower on a calmer machine would be slower still beside others
    return f"other programs kept {old:.1f} of {usable:g} CPUs busy in A and {new:.1f} in B"


def _time(report: Report, name: str, profiled: bool) -> StepTime:
    """Return the step's time; for a run beside a trace that of its profiled steps."""
    trace = report.trace
    if profiled and not is_trace(report) and trace is not None and trace.step_times_s:
        time: StepTime | None = StepTime.of(trace.step_times_s)
    else:
        time = report.baseline.step_time_s
    if time is None or not (math.isfinite(time.median) and time.median > 0):
        why = (
            "A trace has one where torch.profiler had a `schedule` and profiler.step() was called."
            if is_trace(report)
            else "Its run ended before steps were measured: run it again."
        )
        raise Inconclusive(f"{name} holds no step time, so the two cannot be compared. {why}")
    return time


def _side(report: Report, name: str, time: StepTime, by_mean: bool) -> ComparedSide:
    counted = f"{time.steps} step{'s' * (time.steps != 1)}"
    median = f" (median {seconds(time.median)})" if by_mean else ""
    return ComparedSide(
        name=name,
        kind="trace" if is_trace(report) else "run",
        step_s=(time.mean or time.median) if by_mean else time.median,
        low_s=time.p10,
        high_s=time.p90,
        basis=f"{'mean' if by_mean else 'median'} of {counted}{median}, spread their 10 to 90 %",
        parts_s=_observed_s(report, time),
        samples_per_step=samples_per_step(report),
        command=report.workload.command,
        created=report.created,
    )


def _observed_s(report: Report, time: StepTime) -> float:
    """Return the mean step that shares are of: the observed or the profiled one."""
    observed = report.steps is not None and time is report.baseline.step_time_s
    if observed and report.steps is not None and report.steps.mean_s > 0:
        return report.steps.mean_s
    return time.mean or time.median


def _by_launches(
    a: Report, b: Report, first: ComparedSide, second: ComparedSide
) -> tuple[ComparedSide, ComparedSide, Interval | None]:
    """Return the sides by launches, where both have two, each per the same thing."""
    launches = [[s for s in report.baseline.launches_s if s > 0] for report in (a, b)]
    interval = welch_interval(launches[0], launches[1])
    per_step = [
        _PER_STEP[0] < fmean(times) / side.step_s < _PER_STEP[1]
        for times, side in zip(launches, (first, second), strict=True)
        if times
    ]
    if interval is None or per_step[0] != per_step[1]:
        return first, second, None
    samples = 1.0
    if not per_step[0]:
        # A launch's time is per sample: only with equal batches is its ratio the steps' too.
        if first.samples_per_step is None or not same_batch(first, second):
            return first, second, None
        samples = first.samples_per_step
    old, new = (
        _launched(side, times, samples)
        for side, times in zip((first, second), launches, strict=True)
    )
    return old, new, interval


def _launched(side: ComparedSide, times: list[float], samples: float) -> ComparedSide:
    return replace(
        side,
        step_s=geometric_mean(times) * samples,
        low_s=min(times) * samples,
        high_s=max(times) * samples,
        basis=f"mean of {len(times)} launches, spread their range",
    )


def same_batch(a: ComparedSide, b: ComparedSide) -> bool:
    """Return True if their steps train on as many samples, as far as is known.

    A mean over the steps: the last batch of each epoch may be short.
    """
    if a.samples_per_step is None or b.samples_per_step is None:
        return True
    return 0.97 < a.samples_per_step / b.samples_per_step < 1.03
