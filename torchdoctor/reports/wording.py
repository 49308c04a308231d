"""The sentences of a report, the same in every format."""

from __future__ import annotations

from torchdoctor.reports.traced import median_and_mean
from torchdoctor.words import Environment, Interval, Recommendation, Report, Trial
from torchdoctor.words.figures import clean, memory, percent, quantity, ratio, seconds, speedup

RISKS = ("same result", "rounding or order", "lower precision", "changes training")

# For the table: whether training stayed the same.
TRAINING = {
    "identical": "identical",
    "within-rounding": "rounding",
    "within-seed-noise": "seed noise",
    "changed": "CHANGED",
    "not-comparable": "not known",
}
TRAINING_LEGEND = (
    "training: identical = same losses; rounding = same but for rounding; "
    "seed noise = within what another seed changes; CHANGED = it learns something else"
)
RISK_LEGEND = "risk: " + ", ".join(f"{number} {risk}" for number, risk in enumerate(RISKS))


def proven_faster(interval: Interval | None) -> bool:
    """Whether the 95 % interval lies above 1: the only ground to call anything faster."""
    return interval is not None and interval.low > 1


def at_most(measured: Trial | Recommendation) -> str:
    """What of an impossible speed-up can be the fix's, to follow the figures; mostly empty."""
    if measured.at_most is None:
        return ""
    several = isinstance(measured, Recommendation) and len(measured.fixes) > 1
    owner = "the fixes'" if several else "the fix's"
    return f", of which {ratio(measured.at_most)}x at most can be {owner}"


def untried(report: Report) -> str:
    """Why no fix was tried."""
    if report.no_trials_reason:
        return clean(report.no_trials_reason.strip())
    if report.interrupted:
        return "No fix was measured."
    if any(fix.aim != "training" for fix in report.recommendation.also_offered):
        return "No fix was tried: what applies here is shown as code, not run."
    return "No fix was tried."


def together(report: Report) -> str:
    """What the recommended fixes do all together, or that this was not measured; may be empty."""
    recommended = report.recommendation
    if not recommended.fixes:
        return ""
    if recommended.speedup is None:
        return "Not measured all together." if len(recommended.fixes) > 1 else ""
    share = at_most(recommended)
    versus = f"{share}, against" if share else " against"
    parts = [f"{speedup(recommended.speedup)}{versus} the untouched program"]
    if recommended.pairs:
        beside = " side by side" * (report.baseline.measured == "side by side")
        parts.append(f"{recommended.pairs} pairs of launches{beside}")
    if recommended.numerics:
        parts.append(f"training: {TRAINING.get(recommended.numerics, recommended.numerics)}")
    if recommended.peak_memory_bytes is not None:
        before = report.baseline.peak_memory_bytes
        change = f" (was {memory(before)})" if before is not None else ""
        parts.append(f"peak memory {memory(recommended.peak_memory_bytes)}{change}")
    return "; ".join(parts) + "."


def patch(report: Report) -> str:
    """What the patched source did by itself, in one line; empty where there is no patch."""
    trial = report.recommendation.patch_trial
    if trial is None:
        return ""
    if trial.speedup is None:
        return f"Patch not measured: {clean(trial.reason or 'no reason was given').rstrip('.')}."
    parts = [f"patch measured: {speedup(trial.speedup)}"]
    parts.append(clean(trial.reason or f"{trial.pairs} pairs of launches"))
    if trial.numerics:
        parts.append(f"training: {TRAINING.get(trial.numerics, trial.numerics)}")
    recommended = report.recommendation
    if left_out := {fix.fix for fix in recommended.fixes} - set(recommended.patch_fixes):
        parts.append(f"without {', '.join(sorted(left_out))}")
    return "; ".join(parts) + "."


def tried(report: Report) -> str:
    """The title above the trials, which says how launches were compared."""
    how = report.baseline.measured
    return f"What was tried, measured {how}" if how else "What was tried"


def noise_floor(report: Report) -> str:
    """What the A/A candidate says of the machine, or an empty string."""
    floor = report.noise_floor
    if floor is None:
        return ""
    if floor.low > 1 or floor.high < 1:
        return "excludes 1: the machine was too noisy, so trust no small difference"
    return "the untouched program against itself"


def machine(environment: Environment) -> str:
    """The machine in one line."""
    parts = []
    if environment.gpus:
        names = [clean(gpu.name) for gpu in environment.gpus]
        parts += [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
        parts += [f"driver {environment.driver}"] if environment.driver else []
    elif environment.cpu_cores:
        parts.append("no GPU")
    if environment.cpu:
        parts.append(clean(environment.cpu))
    if environment.usable_cpus:
        plural = "s" * (environment.usable_cpus != 1)
        parts.append(f"{environment.usable_cpus:g} usable CPU{plural}")
    if environment.torch:
        parts.append(f"torch {environment.torch}")
    if environment.python:
        parts.append(f"Python {environment.python}")
    return ", ".join(parts)


def step_time(report: Report) -> str:
    """The step's time and throughput, and of which launches; or an empty string."""
    time = report.baseline.step_time_s
    if time is None:
        return ""
    counted = f"{time.steps} step{'s' * (time.steps != 1)}"
    median, *mean = median_and_mean(report, time)
    parts = [
        f"median step {median} (10 to 90 %: {seconds(time.p10)} to {seconds(time.p90)}; "
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
    return ", ".join(parts)


def _of_launches(report: Report) -> str:
    launches = len(report.baseline.launches_s)
    if launches:
        return f" of {launches} timed launch{'es' * (launches != 1)}"
    return " of the observed launch" if report.steps is not None else ""


def shares_of(report: Report) -> str:
    """Of which launch the shares are, where the step's time is of others; else an empty string."""
    steps, trace = report.steps, report.trace
    if steps is None or not report.baseline.launches_s:
        return ""
    if trace is not None and trace.has_device and trace.step_s:
        launch, step_s = "the profiled launch", trace.step_s
    else:
        launch, step_s = "the observed launch", steps.mean_s
    return f"The shares are of {launch}, where a step took {seconds(step_s)} on average."


def how_steps_were_found(report: Report) -> str:
    """What one iteration is, as a sentence; paths relative to the program's folder."""
    if report.steps is None:
        return ""
    text = clean(report.steps.how_found)
    cwd = report.workload.cwd.rstrip("/")
    if cwd:
        text = text.replace(f"{cwd}/", "")
    return text[:1].upper() + text[1:]


def overhead(report: Report) -> str:
    """What observing cost, in one sentence, or an empty string."""
    cost = report.overhead
    parts = []
    if cost.probe_us_per_step is not None:
        share = f" ({percent(cost.probe_share)})" if cost.probe_share is not None else ""
        parts.append(f"Observing costs about {cost.probe_us_per_step:.3g} us a step{share}.")
    if cost.profiler_window:
        parts.append(clean(cost.profiler_window.strip().rstrip(".")) + ".")
    return " ".join(parts)
