"""What the table of trials cannot hold, each remark once for all trials that it is about."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.reports import compilation
from torchdoctor.reports.not_measured import not_tried, sentence
from torchdoctor.words import Report, Trial
from torchdoctor.words.figures import clean, duration, fix_with_settings

_SETUP_WORTH_SAYING_S = 2.0  # below, start-up differs by as much from launch to launch


def trial_remarks(report: Report) -> list[str]:
    """One-time costs, why training changed or a trial is unclear: "fix, other fix: remark"."""
    names: dict[str, list[str]] = {}
    for trial in report.trials:
        name = fix_with_settings(trial.fix, trial.settings)
        for remark in _remarks(trial, report.workload.cwd):
            known = names.setdefault(remark, [])
            if name not in known:
                known.append(name)
    return [f"{', '.join(of)}: {remark}" for remark, of in names.items()]


def _remarks(trial: Trial, cwd: str) -> Iterator[str]:
    told_elsewhere = trial.verdict in ("failed", "refused") or not_tried(trial)
    if trial.reason and not told_elsewhere:
        yield sentence(trial.reason)
    if trial.numerics == "changed" and trial.numerics_reason:
        yield sentence(trial.numerics_reason)
    worth_saying = trial.setup_s is not None and trial.setup_s >= _SETUP_WORTH_SAYING_S
    if worth_saying and trial.setup_s and trial.break_even_steps is not None:
        cost, steps = duration(trial.setup_s), f"{trial.break_even_steps:,}"
        yield f"one-time cost {cost}, paid back after {steps} steps."
    if left_out := trial.details.get("skipped_steps"):
        times = "1 step was" if left_out == 1 else f"{left_out} steps were"
        yield f"{times} left out because scaled gradients overflowed."
    if said := compilation.said(trial, cwd):
        yield clean(" ".join(said))
