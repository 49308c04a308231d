"""Fixes that were refused: in files grouped by their reason, in Python a row of the trials each."""

from dataclasses import replace

from torchdoctor.schema.fix_sets import FixSet
from torchdoctor.schema.report import Report
from torchdoctor.schema.trials import RefusedFixes, Trial


def grouped(report: Report) -> Report:
    """Return the report with those rows as groups that say nothing but why a fix was refused."""
    groups: dict[tuple[str | None, int], list[str]] = {}
    kept = []
    for trial in report.trials:
        fix = trial.fixes.only
        if fix is not None and trial == _row(fix, trial.reason, trial.risk):
            groups.setdefault((trial.reason, trial.risk), []).append(fix)
        else:
            kept.append(trial)
    refused = [
        RefusedFixes(reason=reason, risk=risk, fixes=fixes)
        for (reason, risk), fixes in groups.items()
    ]
    return replace(report, trials=kept, refused=[*report.refused, *refused])


def as_trials(report: Report) -> Report:
    """Return the report with a row for each refused fix, behind the others."""
    rows = [_row(fix, group.reason, group.risk) for group in report.refused for fix in group.fixes]
    return replace(report, trials=[*report.trials, *rows], refused=[])


def _row(fix: str, reason: str | None, risk: int) -> Trial:
    return Trial(fixes=FixSet.of(fix), verdict="refused", reason=reason, risk=risk)
