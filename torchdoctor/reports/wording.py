"""Sentences and commands that several parts of a report share, and what goes with a patch."""

import re
import shlex
from collections.abc import Sequence

from torchdoctor.reports.trial_rows import training
from torchdoctor.words import (
    Environment,
    ProgramFailure,
    Recommendation,
    RecommendedFix,
    Report,
    Trial,
)
from torchdoctor.words.errors import ProgramFailed, UsageError
from torchdoctor.words.figures import (
    clean,
    counted,
    fix_with_settings,
    memory,
    percent,
    quantity,
    ratio,
    relative,
    seconds,
    speedup,
)

APPLY = " --apply"  # behind the command that prints a patch
_MEAN_APART = 0.03  # of the median, from where on both are said
_LONGEST_LINE, _LAST_LINES = 200, 40  # of a program's output that is looked at
_PLACES = re.compile(r'File "([^"<>]+)", line (\d+)')
# Behind the rank, where torchrun started it; torchrun's own ends with a colon.
_EXCEPTION = re.compile(r"(\[\w+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: \S.*)?$")


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def failure(report: Report) -> str:
    """Return one sentence on the program's failure; empty where it did not fail."""
    failed = report.failure
    if failed is None:
        return ""
    line, last = exception_line(failed.output_tail), _lines(failed.output_tail)[-1:]
    own = [x for x in _PLACES.findall(failed.output_tail) if "site-packages" not in x[0]]
    where = f" at {':'.join(own[-1])}".replace(f"{report.workload.cwd}/", "") if own else ""
    ends = [f" The error{where}: {line}"] if line else [f" Its output ends: {x}" for x in last]
    before = f"{how_it_failed(failed)}: the report is of the steps before"
    return f"{before}. Mend this first, then run again.{''.join(ends)}"


def program_failed(
    failed: ProgramFailure, what_then: str = "the report is of the steps before"
) -> ProgramFailed:
    """Return the error that ends the command, with the program's own traceback."""
    output = failed.output_tail.strip()
    ending = f"Its own output ends with:\n\n{output}" if output else "It printed nothing."
    return ProgramFailed(f"{how_it_failed(failed)}; {what_then}. {ending}", failed.exit_code)


def exception_line(output: str) -> str:
    """Return the last exception among the last lines of an output; empty without one."""
    return next((line for line in reversed(_lines(output)) if _EXCEPTION.match(line)), "")


def _lines(output: str) -> list[str]:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return [clean(line[:_LONGEST_LINE]) for line in lines[-_LAST_LINES:]]


def how_it_failed(failed: ProgramFailure) -> str:
    """Return after how many steps it failed, of which the last may be unseen; no full stop."""
    code, steps = failed.exit_code, counted(failed.steps, "training step")
    how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
    return f"The program itself failed after at least {steps} ({how})"


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


def together(report: Report) -> list[str]:
    """Return what the recommended fixes do all together, or that this was not measured."""
    recommended = report.recommendation
    names = " + ".join(fix_with_settings(fix.fix, fix.settings) for fix in recommended.fixes)
    more = [at_most(recommended), patch(report)]
    if recommended.speedup is None:
        return [f"{names}: not measured all together."] * (len(recommended.fixes) > 1) + more
    parts = [f"{speedup(recommended.speedup)} against the untouched program"]
    if recommended.pairs:
        beside = " side by side" * (report.baseline.measured == "side by side")
        parts.append(f"{counted(recommended.pairs, 'pair')} of launches{beside}")
    parts.append(f"training: {training(recommended.numerics)}")
    if recommended.peak_memory_bytes is not None:
        before = report.baseline.peak_memory_bytes
        change = f" (was {memory(before)})" if before is not None else ""
        parts.append(f"peak memory {memory(recommended.peak_memory_bytes)}{change}")
    return [f"{names}: {'; '.join(parts)}.", *more]


def patch(report: Report) -> str:
    """Return what the patched source did by itself, in one line; empty without a patch."""
    recommended, trial = report.recommendation, report.recommendation.patch_trial
    if trial is None:
        return ""
    if trial.speedup is None:
        return f"Patch not measured: {clean(trial.reason or 'no reason was given').rstrip('.')}."
    parts = [f"Patch measured: {speedup(trial.speedup)}"]
    parts.append(clean(trial.reason or f"{counted(trial.pairs, 'pair')} of launches"))
    if trial.numerics:
        parts.append(f"training: {training(trial.numerics)}")
    if left_out := {fix.fix for fix in recommended.fixes} - set(recommended.patch_fixes):
        parts.append(f"without {', '.join(sorted(left_out))}")
    return "; ".join(parts) + "."


def patch_commands(report: Report, fixes: Sequence[RecommendedFix], folder: str = "") -> list[str]:
    """Return shell commands that apply the edits of these fixes, from the reader's folder."""
    if not report.run_folder:
        return []
    print_it = f"torchdoctor patch {shlex.quote(relative(report.run_folder, folder))}"
    recommended = report.recommendation
    if fixes and list(fixes) == recommended.fixes:
        trial = recommended.patch_trial
        slower = trial is not None and trial.speedup is not None and trial.speedup.high < 1
        return [f"{print_it}{APPLY}"] * (bool(recommended.patch) and not slower)
    joint = [fix for fix in fixes if fix.standing == "together"]
    # Without the one that has no edit the others are not what was measured.
    whole = bool(joint) and all(fix.edit for fix in joint)
    sets = [joint] * whole + [[fix] for fix in fixes if fix.edit and fix not in joint]
    return [print_it + "".join(f" --fix {fix.fix}" for fix in some) + APPLY for some in sets]


def machine(environment: Environment) -> str:
    """Return the machine in one line."""
    named = {"driver ": environment.driver, "": clean(environment.cpu or "")}
    named |= {"torch ": environment.torch, "Python ": environment.python}
    parts = [short_machine(environment), *(kind + name for kind, name in named.items() if name)]
    return ", ".join(filter(None, parts))


def short_machine(environment: Environment) -> str:
    """Return what computes, for a heading: "4 usable CPUs, no GPU"."""
    usable = environment.usable_cpus
    parts = [f"{usable:g} usable CPU{'s' * (usable != 1)}"] if usable else []
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
    steps = counted(time.steps, "step")
    parts = [f"Median step {seconds(time.median)} ({spread}; {steps}{launches})"]
    of_trace = report.steps is None and report.trace is not None and time.mean is not None
    if of_trace and abs((time.mean or 0.0) - time.median) > _MEAN_APART * time.median:
        parts.append(f"mean {seconds(time.mean)} (shares, findings and bounds are of the mean)")
    elif time.two_modes and not of_trace:
        why = "speed-ups are of the mean: some steps take much longer"
        parts.append(f"mean {seconds(time.mean)} ({why})")
    rate = report.baseline.samples_per_s
    if rate is not None:
        samples = quantity(rate * time.deciding, "samples")
        parts.append(f"{samples} a step: {quantity(rate, 'samples/s')}")
    if report.steps is not None and report.steps.trainers > 1:
        parts.append(f"{report.steps.trainers} training processes")
    return ", ".join(parts) + "."


def shares_of(report: Report) -> str:
    """Return which launch the shares are of, where the step's time is of others; or ""."""
    steps, trace = report.steps, report.trace
    if steps is None or not report.baseline.launches_s:
        return ""
    launch, step_s = "observed", steps.mean_s
    if trace is not None and trace.has_device and trace.step_s:
        launch, step_s = "profiled", trace.step_s
    return f"The shares are of the {launch} launch, where a step took {seconds(step_s)} on average."


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


_APPLY = "Apply it in {}: git apply, or patch -p1."
_GIT = 'A "git apply" behind this pipe ends with "No valid patches in input": that is all it means.'


def remarks(report: Report, applied: bool = False) -> list[str]:
    """Return lines for the user, in order; never part of the diff, which may be `applied`."""
    recommended = report.recommendation
    beside = [fix.fix for fix in recommended.also_offered if fix.edit]
    elsewhere = [f"Other edits, one with each --fix ID: {', '.join(beside)}."] if beside else []
    if not recommended.fixes:
        nothing = "The report recommends no fix: there is no diff, and nothing to apply."
        return [nothing if applied else f"{nothing} {_GIT}", *elsewhere]
    folder = recommended.patch_folder or report.workload.cwd
    apply = "No edit could be made for certain: there is nothing to apply."
    if recommended.patch:
        apply = "" if applied else _APPLY.format(clean(folder))
    elif not applied:
        apply = f"{apply} {_GIT}"
    rest = _rest(recommended.fixes, recommended.patch_fixes)
    return [*filter(None, (apply, patch(report))), *rest, *elsewhere]


def remarks_on(
    report: Report, fixes: list[RecommendedFix], made: list[str], folder: str | None
) -> list[str]:
    """Return what was measured of fixes, where to apply their diff, and what it lacks."""
    lines = [_APPLY.format(clean(folder))] if folder is not None else []
    lines += _measured(report, fixes)
    if clashing := [fix.fix for fix in fixes if fix.edit and fix.fix not in made]:
        lines.append(
            f"Without {', '.join(clashing)}: no edit can be made any more, or none that goes "
            "with the others'."
        )
    return lines + _rest(fixes, made)


def edit_of(report: Report, ident: str) -> RecommendedFix:
    """Return the fix of this id, recommended or offered. Raises UsageError where none is shown."""
    recommended = report.recommendation
    shown: dict[str, RecommendedFix] = {}
    for fix in (*recommended.fixes, *recommended.also_offered):
        shown.setdefault(fix.fix, fix)
    if ident in shown:
        return shown[ident]
    known = ", ".join(shown) or "none"
    trials = [trial for trial in report.trials if trial.fix == ident]
    # Of several values the one that was measured best speaks for the fix.
    tried = max(trials, key=lambda trial: trial.pairs, default=None)
    if tried is None:
        raise UsageError(f"The report offers no fix {ident!r}; it offers: {known}.")
    reason = clean(tried.reason or "").rstrip(".")
    subject = fix_with_settings(ident, tried.settings) if tried.pairs else "it"
    became = f"{subject} came out {tried.verdict}{f': {reason}' if reason else ''}"
    if reason.startswith("not tried"):
        became = f"it was {reason}"
    raise UsageError(
        f"The report holds no edit of {ident!r}: {became}. "
        f"It holds edits or advice of: {known}. For another: run again with --fixes."
    )


def _measured(report: Report, fixes: list[RecommendedFix]) -> list[str]:
    """Return what was measured of just these fixes with these settings, else of each alone."""
    names = " + ".join(fix_with_settings(fix.fix, fix.settings) for fix in fixes)
    first, several = fixes[0], len(fixes) > 1
    wanted = {fix.fix: fix.settings for fix in fixes} if several else first.settings
    trials = [trial for trial in report.trials if trial.speedup is not None]
    for trial in trials:
        of_these = " + " in trial.fix if several else trial.fix == first.fix
        if of_these and trial.settings == wanted:
            how = f"{'together' if several else 'by itself'}, applied at run time"
            return [f"{names} {how}: {speedup(trial.speedup)}, {trial.verdict}."]
    if several:
        alone = [line for fix in fixes for line in _measured(report, [fix])]
        return [*alone, "They were not measured together."]
    in_a_set = any(first.fix in trial.fix.split(" + ") for trial in trials)
    tried = [trial for trial in trials if trial.fix == first.fix]
    values = (f"{fix_with_settings(x.fix, x.settings)}: {speedup(x.speedup)}" for x in tried)
    other = f" Other values were: {'; '.join(values)}." if tried else ""
    return [f"{names} was not measured{' by itself' * in_a_set}.{other}"]


def _rest(fixes: list[RecommendedFix], made: list[str]) -> list[str]:
    """Return what the edits change beside what they are for, and what has none."""
    edited = [fix for fix in fixes if fix.fix in made]
    lines = list(dict.fromkeys(clean(text) for fix in edited for text in fix.also_changes))
    by_hand = [fix for fix in fixes if fix not in edited]
    lines += ["To be changed by hand:"] if by_hand else []
    for fix in by_hand:
        lines.append(f"  {fix_with_settings(fix.fix, fix.settings)}")
        lines += [f"    {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines
