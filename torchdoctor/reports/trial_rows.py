"""Trials as rows of text: verdicts, remarks, and what was not measured and why."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchdoctor.queries.outcomes import is_proven, value_of
from torchdoctor.reports.vocabulary import compared, step_of, steps_of
from torchdoctor.schema import Report, Trial
from torchdoctor.schema.figures import (
    clean,
    counted,
    duration,
    fixes_with_settings,
    percent,
    ratio,
    says_something,
    speedup,
    speedup_parts,
)
from torchdoctor.schema.traced import MATTERS

_VERDICTS = {"same": "no difference", "slower": "slower"}
LOOKS_FASTER = "looks faster, not proven"
CORRECTED = "corrected"  # results were wrong before
_SETUP_WORTH_SAYING_S = 2.0  # below, start-up differs by as much from launch to launch
_MOST_PLACES = 3


def training(numerics: str | None) -> str:
    """Return whether training stayed the same: `Trial.numerics` in words."""
    if numerics in (None, "not-comparable"):
        return "not known"
    return str(numerics).removeprefix("within-").replace("-", " ")


def verdict_of(trial: Trial) -> str:
    """Return the verdict of a trial in words; nothing is faster without enough pairs."""
    looks_faster = trial.verdict in ("faster", "looks-faster")
    if looks_faster and trial.speedup is not None and trial.speedup.low > 1:
        # Older reports call "faster" what one pair has shown.
        proven = trial.verdict == "faster" and is_proven(trial.speedup, trial.pairs)
        return "faster" if proven else LOOKS_FASTER
    return _VERDICTS.get(trial.verdict, "not decided")


def figures_of(trial: Trial) -> str:
    """Return the figures of a trial, however wide: "1.83x (1.79-1.88)", "4.19x in one pair"."""
    interval = trial.speedup
    if interval is not None and trial.pairs == 1 and not says_something(interval):
        return f"{speedup_parts(interval)[0]} in one pair"
    return speedup(interval, trial.pairs)


def not_tried(trial: Trial) -> bool:
    """Return True where time ran out before a trial's first launch."""
    return trial.verdict == "unclear" and trial.pairs == 0 and trial.speedup is None


def measured(report: Report) -> list[Trial]:
    """Return the trials that came to a result, the fastest first."""
    ended_without = ("failed", "refused")
    with_result = [
        trial
        for trial in report.trials
        if trial.verdict not in ended_without and not not_tried(trial)
    ]
    return sorted(with_result, key=value_of, reverse=True)


def candidate_rows(report: Report) -> list[list[str]]:
    """Return fix, speed-up, probability that it helps, and why it was measured or not."""
    believed = [trial for trial in report.trials if trial.p_helps is not None]
    rows = []
    for trial in sorted(believed, key=value_of, reverse=True):
        untried = trial.speedup is None
        because = f"not measured: {trial.because}" if untried else trial.because or ""
        if trial.on_busy_machine and trial.verdict == "unclear":
            because += "; not decided on a busy machine"
        if trial.cut_off_pairs:
            cut_off = counted(trial.cut_off_pairs, "pair")
            because += f"; the end of the budget cut off {cut_off}, which says nothing against it"
        gain = f"{ratio(trial.expected)}x expected" if untried else figures_of(trial)
        name = fixes_with_settings(trial.fixes)
        rows.append([name, gain, percent(trial.p_helps), clean(because)])
    return rows


def not_measured(report: Report) -> dict[tuple[str, str], list[str]]:
    """Return ("not tried", "failed" or "refused"; reason) -> the fixes that were not measured."""
    by_verdict: dict[str, list[Trial]] = {"not tried": [], "failed": [], "refused": []}
    for trial in report.trials:
        verdict = "not tried" if not_tried(trial) else trial.verdict
        if verdict in by_verdict:
            by_verdict[verdict].append(trial)
    rows: dict[tuple[str, str], list[str]] = {}
    for verdict, trials in by_verdict.items():
        for trial in trials:
            text = trial.reason or "no reason was given"
            reason = _sentence(text[:1].upper() + text[1:])
            _add(rows, (verdict, reason), fixes_with_settings(trial.fixes))
    return rows


def _add(rows: dict[Any, list[str]], key: Any, name: str) -> None:
    names = rows.setdefault(key, [])
    if name not in names:
        names.append(name)


def _sentence(text: str) -> str:
    """Return text of a fix's own, ended like a sentence."""
    text = clean(text.strip())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def trial_remarks(report: Report) -> list[str]:
    """Return what the table of trials cannot hold: "fix, other fix: remark", each remark once."""
    names: dict[str, list[str]] = {}
    for trial in measured(report):
        for remark in _remarks(trial, report):
            _add(names, remark, fixes_with_settings(trial.fixes))
    together = report.recommendation
    if together.numerics == "not-comparable" and together.numerics_reason:
        _add(names, _unknown(report, together.numerics_reason), "all together")
    return [f"{', '.join(fixes)}: {remark}" for remark, fixes in names.items()]


def _unknown(report: Report, reason: str) -> str:
    stay = "stay" if report.kind == "inference" else "stays"
    same = f"whether {compared(report)} {stay} the same"
    return f"{same} is not known, because {_sentence(reason)}"


def _remarks(trial: Trial, report: Report) -> Iterator[str]:
    if trial.reason:
        yield _sentence(trial.reason)
    if trial.numerics in ("changed", "same-decisions") and trial.numerics_reason:
        yield _sentence(trial.numerics_reason)
    if trial.numerics == "not-comparable" and trial.numerics_reason:
        yield _unknown(report, trial.numerics_reason)
    setup_s = trial.setup_s or 0.0
    paid_back = trial.break_even_steps
    if setup_s >= _SETUP_WORTH_SAYING_S and paid_back is not None:
        steps = steps_of(report)
        yield f"one-time cost {duration(setup_s)}, paid back after {paid_back:,} {steps}."
    skipped = trial.details.get("skipped_steps")
    if skipped:
        yield f"{counted(skipped, step_of(report))} left out: scaled gradients overflowed there."
    compiled = compilation(trial, report.workload.cwd)
    if compiled:
        yield clean(" ".join(compiled))


def compilation(trial: Trial, cwd: str) -> list[str]:
    """Return sentences on what torch.compile did in a trial; paths are relative to `cwd`."""
    details = trial.details
    if "compile_s" not in details:
        return []
    graphs = counted(details.get("graphs", 0), "graph")
    breaks = details.get("breaks")
    lines = [f"Compiling took {details['compile_s']:.3g} s for {graphs}."]
    if breaks:
        lines.append(f"The graph breaks at {counted(len(breaks), 'place')}: {_places(breaks)}.")
    times = details.get("recompiles")
    reasons = details.get("recompile_reasons")
    if times and reasons:
        again = "once" if times == 1 else f"{times} times"
        remedy = "; where sizes vary, dynamic=True or torch._dynamo.mark_dynamic suits them all"
        if details.get("dynamic"):
            remedy = ""
        lines.append(f"It compiled again {again}, because of {_places(reasons)}{remedy}.")
    given_up = details.get("gave_up") or []
    for row in given_up[:_MOST_PLACES]:
        lines.append(
            f"torch then gave up compiling {row['function']} for new inputs, and runs it as before "
            f"({row['reason']})."
        )
    folder = cwd.rstrip(os.sep) + os.sep
    return [line.replace(folder, "") for line in lines]


def _places(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return reasons with the user's lines, the most frequent first."""
    texts = []
    for row in rows[:_MOST_PLACES]:
        where = f" ({row['file']}:{row['line']})" if row.get("file") else ""
        texts.append(str(row["reason"]).rstrip(".") + where)
    more = len(rows) - _MOST_PLACES
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def may_gain_more(report: Report) -> bool:
    """Return True if a trial that time may still decide can gain what is worth it.

    Bounds are what was measured, and for what was not tried the part of the step that it treats.
    Where no bound is known, it may.
    """
    if not report.trials:
        return True
    for trial in report.trials:
        if not _is_open(trial):
            continue
        most = _at_most(report, trial)
        if most is None or most >= MATTERS:
            return True
    return False


def _is_open(trial: Trial) -> bool:
    """Return True if more time may still decide a trial."""
    if not_tried(trial):
        return not trial.not_worth_its_time
    return trial.speedup is not None and verdict_of(trial) in ("not decided", LOOKS_FASTER)


def _at_most(report: Report, trial: Trial) -> float | None:
    """Return the most that a trial may gain; None: not known."""
    if trial.speedup is not None:
        return trial.upper_bound or trial.speedup.high
    treated = [
        finding
        for finding in report.diagnosis.findings
        if not trial.fixes.keys().isdisjoint(finding.fixes)
    ]
    shares = [finding.share_of_step for finding in treated]
    known_shares = [share for share in shares if share is not None]
    bounds = [trial.upper_bound] if trial.upper_bound is not None else []
    if known_shares and len(known_shares) == len(shares):
        bounds.append(1.0 / max(1.0 - max(known_shares), 1e-3))
    return min(bounds, default=None)
