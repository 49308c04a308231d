"""Why it is not known whether training stays the same, each reason once."""

from __future__ import annotations

from torchdoctor.reports.not_measured import not_tried, sentence
from torchdoctor.words import Report
from torchdoctor.words.figures import fix_with_settings


def training_unknown(report: Report) -> list[str]:
    """A line for each reason, with the fixes that it holds for; of all together where it is new."""
    by_reason: dict[str, list[str]] = {}
    for trial in report.trials:
        told = trial.verdict not in ("failed", "refused") and not not_tried(trial)
        if told and trial.numerics == "not-comparable" and trial.numerics_reason:
            names = by_reason.setdefault(sentence(trial.numerics_reason), [])
            name = fix_with_settings(trial.fix, trial.settings)
            names += [name] * (name not in names)
    whole = report.recommendation
    if whole.numerics == "not-comparable" and whole.numerics_reason:
        by_reason.setdefault(sentence(whole.numerics_reason), ["all together"])
    return [
        f"training not known ({', '.join(names)}): {reason}" for reason, names in by_reason.items()
    ]
