"""Sentences and commands that several parts of a report share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchdoctor.words import (
    Environment,
    Interval,
    Recommendation,
    RecommendedFix,
    Report,
    StepTime,
    Trial,
)
from torchdoctor.words.figures import (
    clean,
    memory,
    memory_change,
    percent,
    quantity,
    ratio,
    relative,
    seconds,
    speedup,
)

_MEAN_APART = 0.03  # of the median, from where on both are said


def proven_faster(interval: Interval | None) -> bool:
    """Return True if the 95 % interval lies above 1: the only ground to call anything faster."""
    return interval is not None and interval.low > 1


def at_most(result: Trial | Recommendation) -> str:
    """Return a sentence on a speed-up beyond what the fix works on; mostly empty."""
    if result.at_most is None or result.speedup is None:
        return ""
    several = isinstance(result, Recommendation) and len(result.fixes) > 1
    works = "these fixes work on" if several else "this fix works on"
    return (
        f"The part of the step that {works} allows {ratio(result.at_most)}x at most, so part of "
        f"the {ratio(result.speedup.estimate)}x is noise or another load on the machine."
    )


def untried(report: Report) -> str:
    """Return why no fix was tried."""
    if report.no_trials_reason:
        return clean(report.no_trials_reason.strip())
    if report.interrupted:
        return "No fix was measured."
    if any(fix.aim != "training" for fix in report.recommendation.also_offered):
        return "No fix was tried: what applies here is shown as code, not run."
    return "No fix was tried."


def memory_of(report: Report) -> str:
    """Return what the recommended fixes cost in memory: "+48 MB memory"; empty if not known."""
    before, after = report.baseline.peak_memory_bytes, report.recommendation.peak_memory_bytes
    if before is None or after is None:
        return ""
    return f"{memory_change(after - before)} memory"


def together(report: Report, training: str) -> str:
    """Return what the recommended fixes do all together, or that this was not measured."""
    recommended = report.recommendation
    if not recommended.fixes:
        return ""
    if recommended.speedup is None:
        return "Not measured all together." if len(recommended.fixes) > 1 else ""
    parts = [f"{speedup(recommended.speedup)} against the untouched program"]
    if recommended.pairs:
        beside = " side by side" * (report.baseline.measured == "side by side")
        parts.append(f"{recommended.pairs} pairs of launches{beside}")
    parts.append(f"training: {training}")
    if recommended.peak_memory_bytes is not None:
        before = report.baseline.peak_memory_bytes
        change = f" (was {memory(before)})" if before is not None else ""
        parts.append(f"peak memory {memory(recommended.peak_memory_bytes)}{change}")
    return "; ".join(parts) + "."


def patch(report: Report, training: str) -> str:
    """Return what the patched source did by itself, in one line; empty without a patch."""
    trial = report.recommendation.patch_trial
    if trial is None:
        return ""
    if trial.speedup is None:
        return f"Patch not measured: {clean(trial.reason or 'no reason was given').rstrip('.')}."
    parts = [f"Patch measured: {speedup(trial.speedup)}"]
    parts.append(clean(trial.reason or f"{trial.pairs} pairs of launches"))
    parts += [f"training: {training}"] if trial.numerics else []
    recommended = report.recommendation
    if left_out := {fix.fix for fix in recommended.fixes} - set(recommended.patch_fixes):
        parts.append(f"without {', '.join(sorted(left_out))}")
    return "; ".join(parts) + "."


def patch_commands(report: Report, fixes: Sequence[RecommendedFix], folder: str = "") -> list[str]:
    """Return shell commands that apply the edits of these fixes: one for the recommended set.

    Args:
        report: of a run.
        fixes: whose edits are wanted.
        folder: that the reader stands in: the report is named by its path from there.
    """
    if not report.run_folder:
        return []
    path = relative(f"{report.run_folder}/report.json", folder)
    print_it = f"torchdoctor patch {shlex.quote(path)}"
    recommended, cwd = report.recommendation, report.workload.cwd
    if fixes and list(fixes) == recommended.fixes:
        return [f"{print_it}{_applied(recommended.patch_folder, cwd)}"] * bool(recommended.patch)
    joint = [fix for fix in fixes if fix.standing == "together"]
    # Without the one that has no edit the others are not what was measured.
    whole = bool(joint) and all(fix.edit for fix in joint)
    sets = [joint] * whole + [[fix] for fix in fixes if fix.edit and fix not in joint]
    return [
        print_it + "".join(f" --fix {fix.fix}" for fix in some) + _applied(some[0].folder, cwd)
        for some in sets
    ]


def _applied(folder: str | None, cwd: str) -> str:
    """Return the end of a pipe, for a shell in the folder that the program was started in."""
    elsewhere = folder is not None and folder.rstrip("/") != cwd.rstrip("/")
    return f" | git -C {shlex.quote(folder or cwd)} apply" if elsewhere else " | git apply"


def machine(environment: Environment) -> str:
    """Return the machine in one line."""
    parts = [short_machine(environment)]
    parts += [f"driver {environment.driver}"] if environment.driver else []
    parts += [clean(environment.cpu)] if environment.cpu else []
    parts += [f"torch {environment.torch}"] if environment.torch else []
    parts += [f"Python {environment.python}"] if environment.python else []
    return ", ".join(part for part in parts if part)


def short_machine(environment: Environment) -> str:
    """Return what computes, for a heading: "4 usable CPUs, no GPU"."""
    parts = []
    if environment.usable_cpus:
        plural = "s" * (environment.usable_cpus != 1)
        parts.append(f"{environment.usable_cpus:g} usable CPU{plural}")
    names = [clean(gpu.name) for gpu in environment.gpus]
    parts += [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
    parts += ["no GPU"] if environment.cpu_cores and not names else []
    return ", ".join(parts)


def step_time(report: Report) -> str:
    """Return the step's time and throughput, and of which launches; or an empty string."""
    time = report.baseline.step_time_s
    if time is None:
        return ""
    counted = f"{time.steps} step{'s' * (time.steps != 1)}"
    median, *mean = _median_and_mean(report, time)
    parts = [
        f"Median step {median} (10 to 90 %: {seconds(time.p10)} to {seconds(time.p90)}; "
        f"{counted}{_of_launches(report)})",
        *mean,
    ]
    rate = report.baseline.samples_per_s
    if rate is not None:
        parts.append(
            f"{quantity(rate * time.deciding, 'samples')} a step: {quantity(rate, 'samples/s')}"
        )
    if report.steps is not None and report.steps.trainers > 1:
        parts.append(f"{report.steps.trainers} training processes")
    return ", ".join(parts) + "."


def _median_and_mean(report: Report, time: StepTime) -> list[str]:
    """Return a step's median time and, where other figures are of another mean, that too."""
    of_trace = report.steps is None and report.trace is not None
    if time.mean is not None and of_trace:
        if abs(time.mean - time.median) <= _MEAN_APART * time.median:
            return [seconds(time.median)]
        of_mean = f"mean {seconds(time.mean)} (shares, findings and bounds are of the mean)"
        return [seconds(time.median), of_mean]
    if not time.two_modes:
        return [seconds(time.median)]
    of_mean = f"mean {seconds(time.mean)} (speed-ups are of the mean: some steps take much longer)"
    return [seconds(time.median), of_mean]


def _of_launches(report: Report) -> str:
    launches = len(report.baseline.launches_s)
    if launches:
        return f" of {launches} timed launch{'es' * (launches != 1)}"
    return " of the observed launch" if report.steps is not None else ""


def shares_of(report: Report) -> str:
    """Return which launch the shares are of, where the step's time is of others; or ""."""
    steps, trace = report.steps, report.trace
    if steps is None or not report.baseline.launches_s:
        return ""
    if trace is not None and trace.has_device and trace.step_s:
        launch, step_s = "the profiled launch", trace.step_s
    else:
        launch, step_s = "the observed launch", steps.mean_s
    return f"The shares are of {launch}, where a step took {seconds(step_s)} on average."


def how_steps_were_found(report: Report) -> str:
    """Return what one iteration is, as a sentence; paths relative to the program's folder."""
    if report.steps is None:
        return ""
    text = clean(report.steps.how_found)
    cwd = report.workload.cwd.rstrip("/")
    text = text.replace(f"{cwd}/", "") if cwd else text
    return text[:1].upper() + text[1:]


def overhead(report: Report) -> str:
    """Return what observing cost, in one sentence, or an empty string."""
    cost = report.overhead
    parts = []
    if cost.probe_us_per_step is not None:
        share = f" ({percent(cost.probe_share)})" if cost.probe_share is not None else ""
        parts.append(f"Observing costs about {cost.probe_us_per_step:.3g} us a step{share}.")
    if cost.profiler_window:
        parts.append(clean(cost.profiler_window.strip().rstrip(".")) + ".")
    return " ".join(parts)
