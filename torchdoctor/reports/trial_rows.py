"""Trials as rows of text: verdicts, remarks, and what was not measured and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdoctor.words import Report, Trial
from torchdoctor.words.figures import clean, duration, fix_with_settings, says_something, speedup
from torchdoctor.words.program import on_sizes

# Whether training stayed the same, for a table.
TRAINING = {
    "identical": "identical",
    "within-rounding": "rounding",
    "within-seed-noise": "seed noise",
    "changed": "CHANGED",
    "not-comparable": "not known",
}
_VERDICTS = {"same": "no difference", "slower": "slower"}
_SETUP_WORTH_SAYING_S = 2.0  # below, start-up differs by as much from launch to launch
_MOST_PLACES = 3


def verdict_of(trial: Trial) -> str:
    """Return "faster", "no difference", "slower" or "not decided" for a trial.

    Nothing is called faster without an interval above 1.
    """
    if trial.verdict == "faster":
        proven = trial.speedup is not None and trial.speedup.low > 1
        return "faster" if proven else "not decided"
    return _VERDICTS.get(trial.verdict, "not decided")


def figures_of(trial: Trial) -> str:
    """Return the figures of a trial, however wide: "1.83x (1.79-1.88)", "4.19x in one pair"."""
    interval = trial.speedup
    if interval is not None and trial.pairs == 1 and not says_something(interval):
        return f"{speedup(interval).partition(' ')[0]} in one pair"
    return speedup(interval, trial.pairs)


def not_tried(trial: Trial) -> bool:
    """Return True where time ran out before a trial's first launch."""
    return trial.verdict == "unclear" and trial.pairs == 0 and trial.speedup is None


def measured(report: Report) -> list[Trial]:
    """Return the trials that came to a result, the fastest first."""
    trials = [t for t in report.trials if t.verdict not in ("failed", "refused")]
    trials = [trial for trial in trials if not not_tried(trial)]
    return sorted(trials, key=lambda t: -(t.speedup.estimate if t.speedup else 0.0))


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """Fixes that were not tried, refused, or failed, for one and the same reason."""

    verdict: str  # "not tried" | "refused" | "failed"
    reason: str
    fixes: list[str]


def not_measured(report: Report) -> list[NotMeasured]:
    """Return every trial without a measurement and its reason; each reason once."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for verdict in ("not tried", "failed", "refused"):
        for trial in report.trials:
            if ("not tried" if not_tried(trial) else trial.verdict) == verdict:
                text = (trial.reason or "no reason was given").removeprefix("not tried: ")
                reason = sentence(text[:1].upper() + text[1:])
                names = by_reason.setdefault((verdict, reason), [])
                name = fix_with_settings(trial.fix, trial.settings)
                names += [name] * (name not in names)
    return [
        NotMeasured(verdict=verdict, reason=reason, fixes=names)
        for (verdict, reason), names in by_reason.items()
    ]


def sentence(text: str) -> str:
    """Return text of a fix's own, ended like a sentence."""
    text = clean(text.strip())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def trial_remarks(report: Report) -> list[str]:
    """Return what the table of trials cannot hold: "fix, other fix: remark", each remark once."""
    names: dict[str, list[str]] = {}
    for trial in measured(report):
        name = fix_with_settings(trial.fix, trial.settings)
        for remark in _remarks(trial, report.workload.cwd):
            known = names.setdefault(remark, [])
            known += [name] * (name not in known)
    together = report.recommendation
    if together.numerics == "not-comparable" and together.numerics_reason:
        names.setdefault(_unknown_training(together.numerics_reason), ["all together"])
    return [f"{', '.join(fixes)}: {remark}" for remark, fixes in names.items()]


def _unknown_training(reason: str) -> str:
    return f"whether training stays the same is not known, because {sentence(reason)}"


def _remarks(trial: Trial, cwd: str) -> Iterator[str]:
    if trial.reason:
        yield sentence(trial.reason)
    if trial.numerics == "changed" and trial.numerics_reason:
        yield sentence(trial.numerics_reason)
    if trial.numerics == "not-comparable" and trial.numerics_reason:
        yield _unknown_training(trial.numerics_reason)
    worth_saying = trial.setup_s is not None and trial.setup_s >= _SETUP_WORTH_SAYING_S
    if worth_saying and trial.setup_s and trial.break_even_steps is not None:
        cost, steps = duration(trial.setup_s), f"{trial.break_even_steps:,}"
        yield f"one-time cost {cost}, paid back after {steps} steps."
    if left_out := trial.details.get("skipped_steps"):
        times = "1 step was" if left_out == 1 else f"{left_out} steps were"
        yield f"{times} left out because scaled gradients overflowed."
    if lines := compilation(trial, cwd):
        yield clean(" ".join(lines))


def compilation(trial: Trial, cwd: str) -> list[str]:
    """Return sentences on what torch.compile did in a trial; none where nothing was compiled.

    Args:
        trial: with the details of its first launch.
        cwd: files below it are named by their path from there.
    """
    details = trial.details
    if "compile_s" not in details:
        return []
    graphs, breaks = details.get("graphs", 0), details.get("breaks") or []
    counted = "1 graph" if graphs == 1 else f"{graphs} graphs"
    lines = [f"Compiling took {details['compile_s']:.3g} s for {counted}."]
    if breaks:
        places = "1 place" if len(breaks) == 1 else f"{len(breaks)} places"
        lines.append(f"The graph breaks at {places}: {_places(breaks, cwd)}.")
    lines += _recompiled(details, cwd)
    if trial.verdict in ("slower", "same"):
        lines.append("It does not pay for itself: the steps are not faster.")
    return lines


def _recompiled(details: Mapping[str, Any], cwd: str) -> list[str]:
    reasons, gave_up = details.get("recompile_reasons") or [], details.get("gave_up") or []
    at, passes = details.get("compiled_at") or [], details.get("passes", 0)
    times, lines = details.get("recompiles", 0), []
    if reasons and times:
        often = "once" if times == 1 else f"{times} times"
        if len(at) > _MOST_PLACES and at[-1] - at[0] + 1 <= 2 * len(at):
            often += f" (in {len(at)} of the first {at[-1]} steps)"
        lines.append(f"It compiled again {often}, because of {_places(reasons, cwd)}.")
    lines += [
        f"torch then gave up compiling {_relative(row['function'], cwd)} for new inputs, and runs "
        f"it as before ({row['reason']})."
        for row in gave_up[:_MOST_PLACES]
    ]
    if times and not details.get("dynamic") and any(on_sizes(row["reason"]) for row in reasons):
        lines.append("Sizes vary: dynamic=True or torch._dynamo.mark_dynamic suits them all.")
    if at and passes > 2 * _MOST_PLACES and at[-1] >= passes - 1:
        lines.append("It was still compiling when its first launch ended.")
    return lines


def _places(rows: Sequence[Mapping[str, Any]], cwd: str) -> str:
    """Return reasons with the user's lines, the most frequent first."""
    texts = []
    for row in rows[:_MOST_PLACES]:
        reason = str(row["reason"]).rstrip(".")
        where = f" ({_relative(row['file'], cwd)}:{row['line']})" if row.get("file") else ""
        texts.append(reason + where)
    more = len(rows) - _MOST_PLACES
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def _relative(text: str, cwd: str) -> str:
    return text.replace(cwd.rstrip(os.sep) + os.sep, "")
