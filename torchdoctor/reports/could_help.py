"""What could help and was not measured, for the first screen: fixes with their bounds, and advice.

Of a trace and of a run without trials it is the whole answer; beside measured trials it is what
only the user can change.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchdoctor.advice import catalogue
from torchdoctor.reports import own_code, wording
from torchdoctor.reports.bounds_shown import by_hand_at_most, worth_of
from torchdoctor.reports.document import Block, KeyFigures, sentences
from torchdoctor.reports.screen_room import MOST_FIXES, short_name
from torchdoctor.reports.vocabulary import step_of
from torchdoctor.reports.wording import LONGEST_PLACE
from torchdoctor.schema import Bound, Diagnosis, RecommendedFix, Report, Trial
from torchdoctor.schema.figures import percent, place, ratio
from torchdoctor.schema.report import Finding
from torchdoctor.schema.traced import MATTERS

COULD_HELP = "WHAT COULD HELP, not measured"
TO_CHANGE = "TO CHANGE BY HAND, not measured"


class _Lead(NamedTuple):
    """Something that could help: a change by hand, or a fix."""

    name: str
    title: str
    treats: list[Finding]
    bound: Bound | None  # the most that it gains; None: not known


def offered(report: Report, trial: Trial | None = None) -> list[RecommendedFix]:
    """Return the fixes for speed that are offered; of a trial only those in it."""
    fixes = [fix for fix in report.recommendation.also_offered if fix.aim != "training"]
    if trial is None:
        return fixes
    return [fix for fix in fixes if fix.fix in trial.fixes]


def about_the_cause(report: Report) -> list[Block]:
    """Return what only the user can do about the cause, and the most that it gains, after trials.

    Where a recommended fix treats the cause, general advice would only mislead.
    """
    if not report.trials or report.no_trials_reason or own_code.is_cured(report):
        return []
    to_do = own_code.to_do(report)
    if not to_do:
        return []
    most = own_code.most_gain_of_cause(report)
    bound = f" ({most})" if most else ""
    return sentences(f"By hand{bound}: {to_do}")


def by_hand(report: Report) -> list[Block]:
    """Return what only the user can change, where the cause or a severe finding calls for it."""
    findings = _calling_for_a_change(report.diagnosis)
    rows = []
    for fix in offered(report):
        shares = [
            finding.share_of_step
            for finding in findings
            if fix.fix in finding.fixes and finding.share_of_step
        ]
        if fix.standing == "offered" and shares and not own_code.is_told(report, fix.location):
            where = place(fix.location, report.workload.cwd, LONGEST_PLACE)
            about = f"{where}   it is about {percent(max(shares))} of the {step_of(report)}"
            rows.append((max(shares), (short_name(fix.as_set), about)))
    if not rows:
        return []
    rows.sort(key=lambda row: -row[0])
    shown = [row for _, row in rows[:MOST_FIXES]]
    return [KeyFigures(TO_CHANGE, "", shown)]


def _calling_for_a_change(diagnosis: Diagnosis) -> list[Finding]:
    """Return the severe findings, the cause, and what was found at the cause's own line."""
    causes = [finding for finding in diagnosis.findings if finding.check == diagnosis.detail]
    lines = {(cause.location.file, cause.location.line) for cause in causes if cause.location}
    calling = []
    for finding in diagnosis.findings:
        at = finding.location
        is_there = at is not None and (at.file, at.line) in lines
        if finding.severity == "high" or finding in causes or is_there:
            calling.append(finding)
    return calling


def not_measured(report: Report) -> list[Block]:
    """Return what could help where no fix was tried: of a trace, and of `--no-fixes`."""
    reason = wording.untried(report)
    leads = [*_lead_by_hand(report), *_leads_of_fixes(report)]
    if not leads:
        is_unknown = report.steps is None and report.diagnosis.bottleneck != "none"
        unknown = "torchdoctor knows no fix for this. " if is_unknown else ""
        return sentences(f"{unknown}{reason}")
    shown = _worth_showing(report, leads)[:MOST_FIXES]
    rows = []
    for lead in shown:
        most = f"{ratio(lead.bound.speedup)}x at most   " if lead.bound else ""
        rows.append((lead.name, f"{most}{lead.title}"))
    worth = worth_of([lead.bound for lead in leads])
    rest = len(leads) - len(shown)
    code = f"{rest} more, and the code of each: --details." if rest else "Their code: --details."
    return [
        KeyFigures(COULD_HELP, worth, rows),
        *sentences(_do_not_add_up(report, shown), code if offered(report) else "", reason),
    ]


def _lead_by_hand(report: Report) -> Iterator[_Lead]:
    """Yield the advice on the cause, if there is any."""
    to_do = own_code.to_do(report)
    if to_do:
        diagnosis = report.diagnosis
        treats = [finding for finding in diagnosis.findings if finding.check == diagnosis.detail]
        yield _Lead("by hand", to_do, treats, by_hand_at_most(report, treats))


def _leads_of_fixes(report: Report) -> Iterator[_Lead]:
    for fix in offered(report):
        spec = catalogue.fixes().get(fix.fix)  # a report may name a fix of another version
        title = (spec.says(fix.settings) or spec.title) if spec is not None else ""
        treats = [finding for finding in report.diagnosis.findings if fix.fix in finding.fixes]
        yield _Lead(short_name(fix.as_set), title, treats, fix.bound)


def _worth_showing(report: Report, leads: Sequence[_Lead]) -> list[_Lead]:
    """Return the leads without those that save nothing by themselves and do not treat the cause."""
    checks = catalogue.checks()
    best = max((lead.bound.speedup for lead in leads if lead.bound), default=0.0)
    shown = []
    for lead in leads:
        branches = {checks[finding.check].branch for finding in lead.treats}
        gains = lead.bound is None or lead.bound.speedup >= min(best, MATTERS)
        if gains or report.diagnosis.bottleneck in branches:
            shown.append(lead)
    return shown


def _do_not_add_up(report: Report, leads: Sequence[_Lead]) -> str:
    """Return that gains do not add up, where two leads work on the same part."""
    parts = [lead.bound.works_on for lead in leads if lead.bound]
    if len(set(parts)) == len(parts):
        return ""
    return f"Fixes that work on the same part of the {step_of(report)} do not add up."
