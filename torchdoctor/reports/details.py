"""The details of a report: the tree, findings, operators, trials, code, conditions."""

import shlex
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.reports import (
    document,
    handed_out,
    network,
    steps_found,
    time_parts,
    traced,
    wording,
)
from torchdoctor.reports.trial_rows import (
    candidate_rows,
    measured,
    not_measured,
    training,
    trial_remarks,
    verdict_of,
)
from torchdoctor.reports.vocabulary import compared, step_of
from torchdoctor.schema import Finding, RecommendedFix, Report
from torchdoctor.schema.figures import (
    clean,
    fix_with_settings,
    fixes_alone,
    fixes_with_settings,
    memory_change,
    percent,
    place,
    quantity,
    settings_of_all,
    speedup,
    visible,
)

A_A = "no change (A/A)"
_CANDIDATE_COLUMNS = ["fix", "speed-up", "helps", "why it was measured, or was not"]
_LEGENDS = {  # of the column that says what is compared
    "training": "training: identical = same losses; rounding = same but for rounding; seed noise = "
    "no more than another seed changes; changed = it learns something else",
    "outputs": "outputs: identical = bit by bit; rounding = same but for rounding; changed = other "
    "results",
}
_RISK_LEGEND = "risk: 0 same result, 1 rounding or order, 2 lower precision, 3 changes {}"
_TONES = {"faster": "good", "slower": "soft", "no difference": "soft"}
_REPLACED = (
    "The first yes would name the bottleneck; what was tried says that the time is elsewhere."
)
_RULE = "The first yes names the bottleneck, because what comes later may hide behind it."
_LARGEST = "The largest of the waits of the GPU that say yes names the bottleneck."
_OVERLAP = "Most severe first; shares overlap, so they do not add up."
# Titles of what is offered beside the recommended set, in their order, by standing.
_OFFERED = {
    "confirmed": "Also faster, measured by itself",
    "undecided": "What could help, not decided",
    "together": "What could help, measured together and not decided",
    "untried": "What could help, not measured",
    "training": "Advice on training itself, not on speed",
}
_TRIED = {"failed": "Failed", "not-tried": "Not tried", "not-decided": "Not decided"}


def details(report: Report) -> list[document.Section]:
    """Return every section behind the first screen."""
    how = report.baseline.measured
    tried = f"What was tried, measured {how}" if how else "What was tried"
    offered: dict[str, list[RecommendedFix]] = {title: [] for title in _OFFERED.values()}
    for fix in report.recommendation.also_offered:
        standing = "training" if fix.aim == "training" else fix.standing
        offered[_OFFERED.get(standing, _OFFERED["untried"])].append(fix)
    unmeasured = [[", ".join(fixes), *why] for why, fixes in not_measured(report).items()]
    doubts = [*steps_found.unobserved(report), *report.doubts]
    return document.sections(
        ("Why: the path through the decision tree", _path(report)),
        (f"Where a {step_of(report)}'s time goes", _time(report)),
        ("What was found", _findings(report)),
        *((title, document.notes(lines)) for title, lines in traced.lines(report)),
        (time_parts.BOUNDS_TITLE, document.notes(time_parts.bound_lines(report))),
        (time_parts.REPLAY_TITLE, document.notes(time_parts.replay_lines(report))),
        (tried, _trials(report)),
        (
            "Candidates, by what they are worth",
            document.table(_CANDIDATE_COLUMNS, candidate_rows(report)),
        ),
        ("What to change", _changes(report, report.recommendation.fixes)),
        (
            "All together" if report.recommendation.fixes else "Patches that were rejected",
            document.sentences(*handed_out.together(report)),
        ),
        *((title, _changes(report, fixes)) for title, fixes in offered.items()),
        ("Not measured", document.table(["fix", "", "reason"], unmeasured)),
        ("Other machines that launches connected to", network.contacts(report.network)),
        ("Doubts", document.notes([clean(doubt) for doubt in doubts])),
        (
            "How to reproduce",
            [document.Code(clean(command), "shell") for command in report.reproduce],
        ),
        ("Measured on" if report.steps or not report.trace else "Recorded on", _machine(report)),
    )


def _path(report: Report) -> list[document.Block]:
    rows = []
    for asked in report.diagnosis.path:
        figure = quantity(asked.value, asked.unit, asked.threshold)
        if asked.threshold is not None:
            figure += f", threshold {quantity(asked.threshold, asked.unit)}"
        basis = f"{asked.metric}; threshold: {asked.source}" if asked.source else asked.metric
        has_figure = asked.answer not in ("no GPU", "not measured")
        rows.append(
            [clean(asked.question), asked.answer, figure if has_figure else "", clean(basis)]
        )
    blocks = document.table(["question", "answer", "figure", "what it is"], rows)
    return [*blocks, *document.sentences(path_rule(report))]


def path_rule(report: Report) -> str:
    """Return how the tree chooses, where several of its questions were answered yes; or ""."""
    yes = [asked for asked in report.diagnosis.path if asked.answer == "yes"]
    checks = catalogue.checks().values()
    under = {check.question.text: check.branch for check in checks if check.question}
    named = under.get(yes[0].question) if yes else None
    if named is not None and named != report.diagnosis.bottleneck:
        return _REPLACED if report.ceiling_trials else _LARGEST
    return _RULE if len(yes) > 1 else ""


def _time(report: Report) -> list[document.Block]:
    bars = time_parts.time_bars(report)
    if not bars:
        return []
    lines = (
        time_parts.phase_line(report),
        wording.shares_of(report),
        wording.step_time(report),
        wording.how_steps_were_found(report),
    )
    return [document.Bars(bars), *document.sentences(*lines)]


def _cost_and_place(report: Report, finding: Finding) -> list[str]:
    """Return what a finding costs, where that is measured, and where it is."""
    cost = ""
    check = catalogue.checks().get(finding.check)
    if finding.share_of_step is not None:  # a report may name a check of another version
        cost = (check.share_prefix if check else "") + percent(finding.share_of_step)
    return [text for text in (cost, place(finding.location, report.workload.cwd)) if text]


def _findings(report: Report) -> list[document.Block]:
    blocks: list[document.Block] = []
    findings = report.diagnosis.findings
    for finding in findings:
        head = [clean(finding.check), *_cost_and_place(report, finding)]
        blocks.append(document.Sentence("  ".join(head), "strong"))
        blocks += document.notes([clean(proof.sentence) for proof in finding.evidence])
    shares = [finding for finding in findings if finding.share_of_step is not None]
    return [*blocks, *document.sentences(_OVERLAP if len(shares) > 1 else "", tone="soft")]


def lines_about(report: Report, ident: str) -> list[str]:
    """Return what a report says of one check or fix: its finding with the evidence, its trials."""
    lines = []
    for finding in report.diagnosis.findings:
        if finding.check == ident:
            lines.append("  ".join(_cost_and_place(report, finding)))
            lines += [clean(proof.sentence) for proof in finding.evidence]
    for trial in report.trials:
        if ident not in trial.fixes:
            continue
        name = fixes_with_settings(trial.fixes)
        if trial.speedup is not None:
            gain = f"{verdict_of(trial)}, {speedup(trial.speedup, trial.pairs)}"
            lines.append(f"{name}: {gain}, {compared(report)} {training(trial.numerics)}")
        elif trial.reason:
            ended = trial.verdict if trial.verdict in ("refused", "failed") else "not measured"
            lines.append(f"{name}: {ended}: {clean(trial.reason)}")
    return [f"- {line}" for line in lines if line]


def _trials(report: Report) -> list[document.Block]:
    rows = []
    for trial in measured(report):
        cells = [
            fixes_alone(trial.fixes),
            settings_of_all(trial.fixes),
            speedup(trial.speedup, trial.pairs),
            verdict_of(trial),
            training(trial.numerics),
            memory_change(trial.memory_change_bytes),
            str(trial.risk),
        ]
        rows.append(document.Row(cells, _TONES.get(verdict_of(trial), "")))
    floor = report.noise_floor
    noise = ""
    if floor is not None:
        rows.append(document.Row([A_A, "", speedup(floor), "noise floor", "", "", ""], "soft"))
        noise = f"{A_A}: the untouched program against itself."
        if floor.low > 1 or floor.high < 1:
            noise = f"{A_A} excludes 1: the machine was too noisy, so trust no small difference."
    if not rows:
        return document.sentences(wording.untried(report)) if report.no_trials_reason else []
    columns = ["fix", "settings", "speed-up (95 %)", "verdict", compared(report), "memory", "risk"]
    legends = _LEGENDS[compared(report)], _RISK_LEGEND.format(compared(report))
    return [
        *document.table(columns, rows),
        *document.sentences(*trial_remarks(report)),
        *document.sentences(noise, *legends, tone="soft"),
    ]


def _changes(report: Report, fixes: list[RecommendedFix]) -> list[document.Block]:
    """Return what to change for each of the fixes, in order, and how to apply the edits."""
    blocks: list[document.Block] = []
    for number, fix in enumerate(fixes, 1):
        ident = fix_with_settings(fix.fix, fix.settings)
        where = place(fix.location, report.workload.cwd)
        head = f"{number}. {ident}: {clean(catalogue.name(fix.fix))}  {where}"
        blocks.append(document.Sentence(head.strip(), "strong"))
        blocks += document.sentences(wording.bound_of(fix))
        code = visible((fix.edit or fix.instruction or "").strip("\n"))
        blocks.append(document.Code(code, "diff" if fix.edit else "python"))
        blocks += document.sentences(*map(clean, fix.also_changes), *_training_notes(report, fix))
    for command in handed_out.patch_commands(report, fixes):
        if command.apply is None:
            blocks += document.sentences(command.title)
        blocks.append(document.Code(clean(command.apply or command.show), "shell"))
    return blocks


def _training_notes(report: Report, fix: RecommendedFix) -> list[str]:
    """Return why, what short launches showed of advice on training, and what it may cost."""
    if fix.aim != "training":
        return []
    why = catalogue.why(fix.fix)
    lines = [f"Why: {why} More: torchdoctor explain {shlex.quote(fix.fix)}"] if why else []
    lines += [
        f"{_TRIED.get(trial.verdict, 'Tried')}: {clean(trial.sentence)}"
        for trial in report.training_trials
        if trial.fix == fix.fix
    ]
    return [*lines, *([f"What it may cost: {clean(fix.warning)}"] if fix.warning else [])]


def _machine(report: Report) -> list[document.Block]:
    lines = [wording.machine(report.environment), wording.overhead(report)]
    if report.workload.python:
        lines.append(f"Started with {wording.interpreter(report.workload)}.")
    if report.run_folder:
        gone = "" if Path(report.run_folder).is_dir() else " (not there any more)"
        lines.append(f"Everything that was recorded: {report.run_folder}{gone}")
    if report.memory_snapshot:
        viewer = "open it at https://pytorch.org/memory_viz"
        lines.append(f"GPU memory, allocation by allocation ({viewer}): {report.memory_snapshot}")
    return document.sentences(*lines)
