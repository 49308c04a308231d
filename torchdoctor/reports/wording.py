"""Sentences and commands that several parts of a report share, and what goes with a patch."""

import re

from torchdoctor.reports import remarks
from torchdoctor.reports.vocabulary import step_of, steps_of
from torchdoctor.schema import (
    Environment,
    ProgramFailure,
    Recommendation,
    RecommendedFix,
    Report,
    Trial,
    WorkloadRecord,
)
from torchdoctor.schema.errors import ProgramFailed, TorchdoctorError
from torchdoctor.schema.figures import (
    clean,
    counted,
    exit_code,
    percent,
    quantity,
    ratio,
    seconds,
)

LONGEST_PLACE = 44  # characters of a path; its end says most
_MEAN_APART = 0.03  # of the median, from where on both are said
_LONGEST_LINE, _LAST_LINES = 200, 40  # of a program's output that is looked at
_PLACES = re.compile(r'File "([^"<>]+)", line (\d+)')
# Behind the rank, where torchrun started it; torchrun's own ends with a colon.
_EXCEPTION = re.compile(r"(\[\w+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: \S.*)?$")
_BELIEVED = {
    "share": "by the time of",
    "replay": "by replay of the trace (a model), which hides a part of",
    "experiment": "by the experiment, in which other work hid a part of",
}


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def failure(report: Report) -> str:
    """Return one sentence on the program's failure; empty where it did not fail."""
    failed = report.failure
    if failed is None:
        return ""
    line = exception_line(failed.output_tail)
    last = _lines(failed.output_tail)[-1:]
    own_frames = [
        frame for frame in _PLACES.findall(failed.output_tail) if "site-packages" not in frame[0]
    ]
    where = (
        f" at {':'.join(own_frames[-1])}".replace(f"{report.workload.cwd}/", "")
        if own_frames
        else ""
    )
    ends = (
        [f" The error{where}: {line}"]
        if line
        else [f" Its output ends: {ending}" for ending in last]
    )
    before = f"{how_it_failed(failed)}: the report is of the steps before"
    todo = clean(_said_besides(failed)) or "Mend this first, then run again."
    return f"{before}. {todo}{''.join(ends)}"


def program_failed(
    failed: ProgramFailure, what_then: str = "the report is of the steps before"
) -> ProgramFailed:
    """Return the error that ends the command, with the program's own traceback."""
    output = failed.output_tail.strip()
    silent = "" if output else "It printed nothing."
    more = " ".join(filter(None, [_said_besides(failed), silent]))
    message = f"{how_it_failed(failed)}; {what_then}. {more}".rstrip()
    return ProgramFailed(message, failed.exit_code, output)


def _said_besides(failed: ProgramFailure) -> str:
    """Return what its end may have to do with, in words."""
    return " ".join(evidence.sentence or remarks.sentence(evidence) for evidence in failed.besides)


def in_one_line(error: TorchdoctorError) -> str:
    """Return what an error says, and of the program's own output its exception or last line."""
    output = error.output_tail
    cause = exception_line(output) or next(reversed(_lines(output)), "")
    return f"{error.message} It says: {cause}" if cause else error.message


def exception_line(output: str) -> str:
    """Return the last exception among the last lines of an output; empty without one."""
    return next((line for line in reversed(_lines(output)) if _EXCEPTION.match(line)), "")


def _lines(output: str) -> list[str]:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return [clean(line[:_LONGEST_LINE]) for line in lines[-_LAST_LINES:]]


def how_it_failed(failed: ProgramFailure) -> str:
    """Return after how many steps it failed, of which the last may be unseen; no full stop."""
    steps = counted(failed.steps, "step")
    how = exit_code(failed.exit_code)
    return f"The program itself failed after at least {steps} ({how})"


def bound_of(fix: RecommendedFix) -> str:
    """Return the most that a fix can gain and what that rests on; "" where it is not known."""
    if fix.bound is None:
        return ""
    rests_on = _BELIEVED.get(fix.bound.by, _BELIEVED["share"])
    works_on = clean(fix.bound.works_on)
    return f"{ratio(fix.bound.speedup)}x at most, {rests_on} what it works on: {works_on}."


def beyond_its_part(result: Trial | Recommendation) -> str:
    """Return a sentence on a speed-up beyond what the fix was seen to work on; mostly empty."""
    if result.at_most is None or result.speedup is None:
        return ""
    several = isinstance(result, Recommendation) and len(result.fixes) > 1
    works = "these fixes were" if several else "this fix was"
    return (
        f"The part of the step that {works} seen to work on explains {ratio(result.at_most)}x. "
        f"{ratio(result.speedup.estimate)}x was measured, and counts; a part of it may be noise or "
        "another load on the machine."
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


def machine(environment: Environment) -> str:
    """Return the machine in one line."""
    named = {"driver ": environment.driver, "": clean(environment.cpu or "")}
    named |= {"torch ": environment.torch, "Python ": environment.python}
    parts = [short_machine(environment), *(kind + name for kind, name in named.items() if name)]
    return ", ".join(filter(None, parts))


def interpreter(workload: WorkloadRecord) -> str:
    """Return the Python that started the program, and what named it."""
    named_by = f" ({clean(workload.python_from)})" if workload.python_from else ""
    return f"{clean(workload.python or '')}{named_by}"


def short_machine(environment: Environment) -> str:
    """Return what computes, for a heading: "4 usable CPUs, no GPU"."""
    usable = environment.usable_cpus
    parts = [f"{usable:g} usable CPU{'' if usable == 1 else 's'}"] if usable else []
    names = [clean(gpu.name) for gpu in environment.gpus]
    parts += [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
    parts += ["no GPU"] if environment.cpu_cores and not names else []
    return ", ".join(parts)


def step_time(report: Report) -> str:
    """Return the step's time and throughput, and of which launches; or an empty string."""
    time = report.baseline.step_time_s
    if time is None:
        return ""
    launches = ""
    if number := len(report.baseline.launches_s):
        launches = f" of {counted(number, 'timed launch', 'timed launches')}"
    elif report.steps is not None:
        launches = " of the observed launch"
    spread = f"10 to 90 %: {seconds(time.p10)} to {seconds(time.p90)}"
    step = step_of(report)
    steps = f"{time.steps:,} {step if time.steps == 1 else steps_of(report)}"
    parts = [f"Median {step} {seconds(time.median)} ({spread}; {steps}{launches})"]
    of_trace = report.steps is None and report.trace is not None and time.mean is not None
    if of_trace and abs((time.mean or 0.0) - time.median) > _MEAN_APART * time.median:
        parts.append(f"mean {seconds(time.mean)} (shares, findings and bounds are of the mean)")
    elif time.two_modes and not of_trace:
        why = f"speed-ups are of the mean: some {steps_of(report)} take much longer"
        parts.append(f"mean {seconds(time.mean)} ({why})")
    rate = report.baseline.samples_per_s
    if rate is not None:
        samples = quantity(rate * time.deciding, "samples")
        parts.append(f"{samples} a {step}: {quantity(rate, 'samples/s')}")
    if report.steps is not None and report.steps.trainers > 1:
        training = "" if report.kind == "inference" else "training "
        parts.append(f"{report.steps.trainers} {training}processes")
    return ", ".join(parts) + "."


def samples_per_s(report: Report) -> float | None:
    """Return samples per second: of the steps that decide, else of the observed calls."""
    calls = report.steps.calls if report.steps is not None else None
    return report.baseline.samples_per_s or (calls.samples_per_s if calls is not None else None)


def latency(report: Report) -> str:
    """Return what the user of a program that infers waits for, in one sentence; or ""."""
    calls = report.steps.calls if report.steps is not None else None
    if calls is None:
        return ""
    each = f"a {step_of(report)}"
    # Launches that were timed have a median of their own, which the screen names beside this one.
    observed = " as observed" * bool(report.baseline.launches_s)
    text = f"Latency of {each}{observed}: {seconds(calls.latency_median_s)} (median)"
    parts = [f"{text}, {seconds(calls.latency_p95_s)} (95th percentile)"]
    if calls.tokens_per_s is not None:
        parts.append(f"{quantity(calls.tokens_per_s, 'tokens/s')}")
    if calls.first_token_s is not None:
        parts.append(f"first token after {seconds(calls.first_token_s)}")
    if calls.prefill_s is not None and calls.decode_s is not None:
        phases = f"prefill {seconds(calls.prefill_s)}, decode {seconds(calls.decode_s)}"
        parts.append(f"{phases} of {each}")
    return f"{'; '.join(parts)}."


def shares_of(report: Report) -> str:
    """Return which launch the shares are of, where the step's time is of others; or ""."""
    steps = report.steps
    trace = report.trace
    if steps is None or not report.baseline.launches_s:
        return ""
    launch = "observed"
    step_s = steps.mean_s
    if trace is not None and trace.has_device and trace.step_s:
        launch = "profiled"
        step_s = trace.step_s
    step = step_of(report)
    took = f"where a {step} took {seconds(step_s)} on average"
    return f"The shares are of the {launch} launch, {took}."


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
        parts.append(
            f"Observing costs about {cost.probe_us_per_step:.3g} us a {step_of(report)}{share}."
        )
    if cost.profiler_window:
        parts.append(clean(cost.profiler_window.strip().rstrip(".")) + ".")
    return " ".join(parts)
