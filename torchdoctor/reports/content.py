"""A report as rows of text: what the formats show, before any of them lays it out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace

from torchdoctor.advice import catalogue
from torchdoctor.facts.lookup import exposed_python
from torchdoctor.reports.ceilings import ceiling_text
from torchdoctor.reports.not_measured import not_tried
from torchdoctor.reports.wording import TRAINING, proven_faster
from torchdoctor.words import Finding, RecommendedFix, Report, Shares, Trial
from torchdoctor.words.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    clean,
    fix_with_settings,
    memory_change,
    percent,
    place,
    settings,
    speedup,
)

A_A = "no change (A/A)"
_PHASE_COLOURS = ("data_loader", "memcpy", "gpu", "runtime", "cpu", "other")  # those of branches


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """One part of the step's time. `key` names its colour; `share` is 0 to 1.

    `ceiling`: what the step gains without it, where that was tried; else empty.
    """

    key: str
    label: str
    share: float
    text: str
    ceiling: str = ""


def time_rows(report: Report) -> list[TimeRow]:
    """Where a step's time goes, the largest first: by the trace, else by phase; no zeros."""
    shares = _as_asked(report)
    parts = [(key, label, getattr(shares, key)) for key, label in SHARE_LABELS.items()]
    if shares == Shares():
        parts = _phases(report)
    rows = [
        TimeRow(
            key=key,
            label=label,
            share=share,
            text=percent(share),
            ceiling=ceiling_text(report, key),
        )
        for key, label, share in parts
        if share
    ]
    return sorted(rows, key=lambda row: -row.share)


def _as_asked(report: Report) -> Shares:
    """With Python between operators where the tree asks for it, so that both agree."""
    shares = report.baseline.shares
    python = exposed_python(report.trace, shares)
    if not python or shares.other is None or shares.cpu is None:
        return shares
    return replace(shares, cpu=shares.cpu + python, other=max(shares.other - python, 0.0))


def phase_line(report: Report) -> str:
    """The step's time by phase in one line; empty where the time rows already say it."""
    if report.baseline.shares == Shares():
        return ""
    parts = [f"{label} {percent(share)}" for _, label, share in _phases(report) if share]
    return ", ".join(parts)


def _phases(report: Report) -> list[tuple[str, str, float | None]]:
    steps = report.steps
    if steps is None or steps.mean_s <= 0:
        return []
    return [
        (colour, label, getattr(steps, f"{phase}_s") / steps.mean_s)
        for colour, (phase, label) in zip(_PHASE_COLOURS, PHASE_LABELS.items(), strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """One finding; `share` and `where` may be empty."""

    check: str
    severity: str
    share: str
    where: str
    evidence: list[str]
    fixes: list[str]


def finding_rows(report: Report) -> list[FindingRow]:
    """All findings, in the report's order."""
    return [
        FindingRow(
            check=clean(found.check),
            severity=found.severity,
            share=_share_words(found),
            where=place(found.location, report.workload.cwd),
            evidence=[clean(sentence) for sentence in found.evidence],
            fixes=found.fixes,
        )
        for found in report.diagnosis.findings
    ]


def _share_words(found: Finding) -> str:
    if found.share_of_step is None:
        return ""
    check = catalogue.checks().get(found.check)  # a report may name a check of another version
    return (check.share_prefix if check else "") + percent(found.share_of_step)


def findings_order(report: Report) -> str:
    """What several shares beside each other mean; empty where there is one at most."""
    shares = [found for found in report.diagnosis.findings if found.share_of_step is not None]
    return "Most severe first; shares overlap, so they do not add up." if len(shares) > 1 else ""


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One line of the ranked table."""

    fix: str
    settings: str
    speedup: str
    training: str
    memory: str
    risk: str


@dataclass(frozen=True, kw_only=True)
class TrialGroup:
    """Trials with the same verdict, the fastest first. `key`: faster, changed, or the verdict."""

    key: str
    title: str
    rows: list[TrialRow] = field(default_factory=list)


_GROUPS = {
    "faster": "Faster",
    "changed": "Training changes",
    "unclear": "Unclear",
    "same": "No difference",
    "slower": "Slower",
}


def trial_groups(report: Report) -> list[TrialGroup]:
    """All measured trials by verdict, and the A/A candidate last; empty groups left out."""
    groups: dict[str, list[Trial]] = {key: [] for key in _GROUPS}
    for trial in report.trials:
        if trial.verdict in ("failed", "refused") or not_tried(trial):
            continue
        groups[_group_of(trial)].append(trial)
    result = []
    for key, trials in groups.items():
        trials.sort(key=lambda t: -(t.speedup.estimate if t.speedup else 0.0))
        if trials:
            rows = [_trial_row(trial) for trial in trials]
            result.append(TrialGroup(key=key, title=_GROUPS[key], rows=rows))
    if report.noise_floor is not None:
        floor = TrialRow(
            fix=A_A,
            settings="",
            speedup=speedup(report.noise_floor),
            training="",
            memory="",
            risk="",
        )
        result.append(TrialGroup(key="noise", title="Noise floor", rows=[floor]))
    return result


def _group_of(trial: Trial) -> str:
    if trial.verdict == "faster":
        if not proven_faster(trial.speedup):
            return "unclear"  # nothing is called faster without an interval above 1
        return "changed" if trial.numerics == "changed" else "faster"
    return trial.verdict if trial.verdict in _GROUPS else "unclear"


def _trial_row(trial: Trial) -> TrialRow:
    return TrialRow(
        fix=clean(trial.fix),
        settings=settings(trial.settings),
        speedup=speedup(trial.speedup, trial.pairs),
        training=TRAINING.get(trial.numerics, trial.numerics),
        memory=memory_change(trial.memory_change_bytes),
        risk=str(trial.risk),
    )


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change to make: `code` is a unified diff where `is_diff`, else what to write."""

    title: str
    where: str
    code: str
    is_diff: bool
    notes: list[str] = field(default_factory=list)  # what else it changes; what came of advice


_STANDINGS = {
    "untried": " (not measured)",
    "undecided": " (measured, not decided)",
    "together": " (measured together with the other here, not decided)",
}


def changes(report: Report, fixes: list[RecommendedFix]) -> list[Change]:
    """What to change for each of the fixes, in order."""
    return [
        Change(
            title=fix_with_settings(fix.fix, fix.settings) + _STANDINGS.get(fix.standing, ""),
            where=place(fix.location, report.workload.cwd),
            code=clean((fix.edit or fix.instruction or "").strip("\n")),
            is_diff=bool(fix.edit),
            notes=[*map(clean, fix.also_changes), *_training_notes(report, fix)],
        )
        for fix in fixes
    ]


_TRIED = {"failed": "Failed", "not-tried": "Not tried", "not-decided": "Not decided"}


def _training_notes(report: Report, fix: RecommendedFix) -> list[str]:
    """Why one would, what short launches showed of advice on training, and what it may cost."""
    if fix.aim != "training":
        return []
    tried = [trial for trial in report.training_trials if trial.fix == fix.fix]
    why = catalogue.why(fix.fix)
    notes = [f"Why: {why} More: torchdoctor explain {fix.fix}"] if why else []
    notes += [f"{_TRIED.get(one.verdict, 'Tried')}: {clean(one.sentence)}" for one in tried]
    return [*notes, *([f"What it may cost: {clean(fix.warning)}"] if fix.warning else [])]


def patch_commands(report: Report, fixes: list[RecommendedFix]) -> list[str]:
    """Shell commands that print the edits of these fixes whole, to be applied: one for the set."""
    if not report.run_folder:
        return []
    print_it = f"torchdoctor patch {shlex.quote(f'{report.run_folder}/report.json')}"
    recommended, cwd = report.recommendation, report.workload.cwd
    if fixes == recommended.fixes:
        return [f"{print_it}{_applied(recommended.patch_folder, cwd)}"] * bool(recommended.patch)
    joint = [fix for fix in fixes if fix.standing == "together"]
    # Without the one that has no edit the others are not what was measured.
    whole = bool(joint) and all(fix.edit for fix in joint)
    sets = [joint] * whole + [[fix] for fix in fixes if fix.edit and fix not in joint]
    return [
        print_it + "".join(f" --fix {fix.fix}" for fix in some) + _applied(some[0].folder, cwd)
        for some in sets
    ]


def _applied(folder: str | None, cwd: str) -> str:
    """The end of a pipe, for a shell in the folder that the program was started in."""
    elsewhere = folder is not None and folder.rstrip("/") != cwd.rstrip("/")
    return f" | git -C {shlex.quote(folder or cwd)} apply" if elsewhere else " | git apply"


CONFIRMED = "worth doing, measured by itself"
UNDECIDED = "What could help, not confirmed"
UNTRIED = "What could help, not tried"
OFFERED = "worth doing, not measured"
ADVICE = "Advice on training itself, not on speed"
_WORTH = (CONFIRMED, OFFERED)


def offered(report: Report) -> list[tuple[str, list[RecommendedFix]]]:
    """What is offered beside the recommended set, under its title; empty parts left out."""
    fixes = report.recommendation.also_offered
    speed = [fix for fix in fixes if fix.aim != "training"]
    # Where no trial could begin, "worth doing" would be more than anybody knows.
    untried = ("untried", *(["offered"] if report.no_trials_reason else []))
    named = {*_STANDINGS, "confirmed", *untried}
    parts = [
        (CONFIRMED, [fix for fix in speed if fix.standing == "confirmed"]),
        (UNDECIDED, [fix for fix in speed if fix.standing in ("undecided", "together")]),
        (UNTRIED, [fix for fix in speed if fix.standing in untried]),
        (OFFERED, [fix for fix in speed if fix.standing not in named]),
        (ADVICE, [fix for fix in fixes if fix.aim == "training"]),
    ]
    told, found = bool(report.recommendation.fixes), []
    for title, some in parts:
        if some:
            found.append((f"Also {title}" if told and title in _WORTH else _capital(title), some))
            told = True
    return found


def _capital(title: str) -> str:
    return title[0].upper() + title[1:]
