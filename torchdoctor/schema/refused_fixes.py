"""Fixes that were refused: in files grouped by their reason, in Python a row of the trials each."""

from dataclasses import replace

from torchdoctor.schema.fix_sets import FixSet
from torchdoctor.schema.report import Report
from torchdoctor.schema.trials import RefusedFixes, Trial


def grouped(report: Report) -> Report:
    """Return the report with those rows as groups that say nothing but why a fix was refused."""
    groups: list[RefusedFixes] = []
    kept = []
    for trial in report.trials:
        fix = trial.fixes.only
        alone = RefusedFixes(reason=trial.reason, why=trial.why, risk=trial.risk)
        if fix is None or trial != _row(fix, alone):
            kept.append(trial)
            continue
        group = next((group for group in groups if replace(group, fixes=[]) == alone), None)
        if group is None:
            group = alone
            groups.append(group)
        group.fixes.append(fix)
    return replace(report, trials=kept, refused=[*report.refused, *groups])


def as_trials(report: Report) -> Report:
    """Return the report with a row for each refused fix, behind the others."""
    rows = [_row(fix, group) for group in report.refused for fix in group.fixes]
    return replace(report, trials=[*report.trials, *rows], refused=[])


def _row(fix: str, group: RefusedFixes) -> Trial:
    return Trial(
        fixes=FixSet.of(fix),
        verdict="refused",
        reason=group.reason,
        why=group.why,
        risk=group.risk,
    )
