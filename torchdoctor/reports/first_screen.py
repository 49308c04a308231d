"""The first screen of a report: cause and place, what to change, what was tried, what to beware of.

Only what changes a decision stands here, at most 40 lines; everything else is in the details.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.facts.outcomes import most_promising, value_of
from torchdoctor.reports import wording
from torchdoctor.reports.document import (
    Bars,
    Block,
    Code,
    IntervalRow,
    Intervals,
    KeyFigures,
    Section,
    Sentence,
    sections,
    sentences,
)
from torchdoctor.reports.failure import failure
from torchdoctor.reports.time_parts import WORTH_SAYING, replayed_gains, time_bars, upper_bounds
from torchdoctor.reports.trial_rows import TRAINING, figures_of, not_tried, verdict_of
from torchdoctor.words import Interval, Note, RecommendedFix, Report, Trial
from torchdoctor.words.figures import (
    clean,
    fix_with_settings,
    place,
    quantity,
    ratio,
    says_something,
    seconds,
    speedup,
)

_MOST_TRIALS, _MOST_FIXES, _MOST_CODE, _MOST_BEWARE = 7, 4, 3, 2
_EVIDENCE = 150  # characters: two lines of a narrow terminal
_NAME = 44  # characters of a fix with its settings
_PLACE = 44  # characters of a path; its end says most
_TRAINING_CLAUSE = {
    "identical": "training identical",
    "within-rounding": "training the same within rounding",
    "within-seed-noise": "training within what another seed changes",
    "changed": "but training changes",
}
_UNKNOWN_TRAINING = "whether training stays the same is not known"
_CAUSES = {
    "data_loader": "Training waits for data.",
    "memcpy": "Copies between host and device hold up the step.",
    "communication": "Communication between devices holds up the step.",
    "gpu": "The GPU's own work fills the step.",
    "cpu": "Work on the CPU holds up the step.",
    "other": "Something outside the step's own work holds it up.",
}


def screen(report: Report, folder: str) -> list[Section]:
    """Return the sections of the first screen.

    Args:
        report: what is shown.
        folder: that the reader stands in: commands name paths from there.
    """
    return sections(
        ("", [*sentences(failure(report), tone="bad"), *_cause(report)]),
        ("", [*_answer(report, folder), *_ranks(report)]),
        ("", _tried(report)),
        ("", _step(report)),
        ("", _beware(report)),
    )


def cause(report: Report) -> str:
    """Return what slows training, in the words of the diagnosis."""
    if report.diagnosis.bottleneck != "none":
        default = _CAUSES.get(report.diagnosis.bottleneck, "")
    elif any(wording.proven_faster(trial.speedup) for trial in report.trials):
        default = "No single bottleneck stands out."
    else:
        default = "No part of the step stands out."
    return clean(report.diagnosis.sentence.strip()) or default


def _cause(report: Report) -> list[Block]:
    """Return the cause with its place, and what proves it, each at most two lines long."""
    first, _, rest = cause(report).partition(". ")
    findings = report.diagnosis.findings
    named = [finding for finding in findings if finding.check == report.diagnosis.detail]
    finding = next(iter(named or [x for x in findings if x.severity == "high"]), None)
    if finding is None:
        return [Sentence(f"{first.removesuffix('.')}.", "strong"), *sentences(rest)]
    where = place(finding.location, report.workload.cwd, _PLACE)
    if where and where not in first:
        first = f"{first.removesuffix('.')} ({where})"
    proofs = [clean(text) for text in finding.evidence]
    proofs = [text for text in proofs if not _repeats(text, f"{first} {rest}")]
    placed = [text for text in proofs if re.search(r"\.py:\d", text)]
    proof = textwrap.shorten((placed or proofs or [""])[0], _EVIDENCE, placeholder=" …")
    return [Sentence(f"{first.removesuffix('.')}.", "strong"), *sentences(rest, proof, tone="soft")]


def _repeats(proof: str, sentence: str) -> bool:
    """Return True if a proof says what the sentence says already, in the same figures."""
    shares = set(re.findall(r"\d+ ?%", proof))
    return proof[:40] in sentence or (
        bool(shares) and shares <= set(re.findall(r"\d+ ?%", sentence))
    )


def _answer(report: Report, folder: str) -> list[Block]:
    """Return what to change, or why nothing can be recommended and what would decide it."""
    recommended = report.recommendation
    if recommended.fixes:
        return _recommended(report, folder)
    best = _best_trial(report)
    if best is not None:
        return _proven_alone(report, best, folder)
    if report.no_trials_reason or not report.trials:
        return _not_measured(report)
    open_fixes = [fix for fix in _offered(report) if fix.standing in ("undecided", "together")]
    shown = wording.patch_commands(report, open_fixes, folder)[:1]
    code = [f"Its code:   {command.partition(' | ')[0]}" for command in shown]
    return [*_undecided(report), *sentences(*code)]


def _recommended(report: Report, folder: str) -> list[Block]:
    recommended = report.recommendation
    rows = []
    for number, fix in enumerate(recommended.fixes[:_MOST_FIXES]):
        memory = wording.memory_of(report) if number == 0 else ""
        where = place(fix.location, report.workload.cwd, _PLACE)
        rows.append((_name(fix.fix, fix.settings), _joined(where, memory)))
    interval = recommended.speedup
    if interval is None:
        figure, title = "not measured all together", "RECOMMENDED"
    elif wording.proven_faster(interval):
        figure, title = _faster(interval, recommended.numerics), "RECOMMENDED"
    else:
        figure, title = f"measured {speedup(interval)}", "No speed-up is proven yet"
    limit = wording.at_most(recommended)
    return [
        KeyFigures(title, figure, rows, "good"),
        *sentences(limit),
        *_commands(report, recommended.fixes, folder),
    ]


def _faster(interval: Interval, numerics: str | None) -> str:
    estimate, _, bounds = speedup(interval).partition(" ")
    clause = _TRAINING_CLAUSE.get(numerics or "", _UNKNOWN_TRAINING)
    return f"{estimate} faster {bounds}, {clause}"


def _proven_alone(report: Report, best: Trial, folder: str) -> list[Block]:
    """Return the best fix that is faster by itself, where no set could be recommended."""
    assert best.speedup is not None
    name = fix_with_settings(best.fix, best.settings)
    title = "FASTER, measured by itself"
    blocks: list[Block] = []
    if best.numerics not in _TRAINING_CLAUSE:
        title = "Faster, but not recommended"
        blocks = sentences("More time may tell whether training stays the same (--budget).")
    figures = KeyFigures(title, _faster(best.speedup, best.numerics), [(name, "")])
    offered = [fix for fix in _offered(report) if fix.fix == best.fix]
    return [
        figures,
        *sentences(wording.at_most(best)),
        *blocks,
        *_commands(report, offered, folder),
    ]


def _best_trial(report: Report) -> Trial | None:
    """Return the proven trial with the highest lower bound that does not change training."""
    proven = [
        (trial.speedup.low, -number)
        for number, trial in enumerate(report.trials)
        if verdict_of(trial) == "faster" and trial.speedup and trial.numerics != "changed"
    ]
    return report.trials[-max(proven)[1]] if proven else None


def _offered(report: Report) -> list[RecommendedFix]:
    return [fix for fix in report.recommendation.also_offered if fix.aim != "training"]


def _not_measured(report: Report) -> list[Block]:
    """Return what could help where no fix was tried: of a trace, and of `--no-fixes`."""
    offered = _offered(report)
    reason = wording.untried(report)
    if not offered:
        return sentences(reason)
    rows = []
    for fix in offered[:_MOST_FIXES]:
        spec = catalogue.fixes().get(fix.fix)
        title = spec.title if spec is not None else ""
        rows.append((fix_with_settings(fix.fix, fix.settings), title))
    own = replayed_gains(report).get(report.diagnosis.bottleneck)
    worth = f"{ratio(own)}x at most, by replay of the trace" if own else ""
    if own and own < WORTH_SAYING:
        worth = "hardly any gain, by replay of the trace"
    rest = len(offered) - len(rows)
    more = f"{rest} more, and the code of each: --details." if rest else "Their code: --details."
    return [KeyFigures("WHAT COULD HELP, not measured", worth, rows), *sentences(more, reason)]


def _undecided(report: Report) -> list[Block]:
    """Return what is known where no fix is proven to be faster."""
    measured = [trial for trial in report.trials if trial.speedup is not None or trial.pairs]
    open_trials = [trial for trial in measured if verdict_of(trial) == "not decided"]
    more = "" if report.interrupted else "More time decides it: a longer --budget."
    best = most_promising(report.trials)
    if best is not None and best.speedup is not None:
        name = fix_with_settings(best.fix, best.settings)
        figure = f"Most promising: {name}, {_looked(best)}."
        return [KeyFigures("No speed-up is proven yet.", figure), *sentences(more)]
    if open_trials or (not measured and any(map(not_tried, report.trials))):
        ended = "The run was interrupted" if report.interrupted else "The time ended"
        figure = "" if measured else f"{ended} before a fix was measured."
        return [KeyFigures("No speed-up is proven yet.", figure), *sentences(more)]
    if measured:
        number = len({trial.fix for trial in measured})
        tried = "The fix that was tried is" if number == 1 else f"Of {number} fixes tried none is"
        changing = any(verdict_of(trial) == "faster" for trial in measured)
        but = " without changing training" if changing else ""
        return [KeyFigures("Nothing to change.", f"{tried}{' not' * (number == 1)} faster{but}.")]
    return [KeyFigures("No fix could be measured.")]


def _looked(trial: Trial) -> str:
    """Return what an open trial measured, for a sentence."""
    assert trial.speedup is not None
    if trial.pairs < 2:
        return f"{ratio(trial.speedup.estimate)}x in its one pair of launches"
    return f"{speedup(trial.speedup)} in {trial.pairs} pairs of launches"


def _commands(report: Report, fixes: Sequence[RecommendedFix], folder: str) -> list[Block]:
    """Return how to apply the fixes: one command, and the code of those that have no edit."""
    blocks: list[Block] = []
    commands = wording.patch_commands(report, fixes, folder)
    if commands:
        shown = commands[0].partition(" | ")[0]
        blocks.append(Sentence(f"Apply it:   {commands[0]}"))
        if len(shown) < 60:
            blocks.append(Sentence(f"See it:     {shown}", "soft"))
    for fix in [fix for fix in fixes if not fix.edit and fix.instruction][:1]:
        lines = clean(fix.instruction or "").strip("\n").split("\n")
        blocks += [Sentence(f"By hand, {fix.fix}:"), Code("\n".join(lines[:_MOST_CODE]))]
    return blocks


def _ranks(report: Report) -> list[Block]:
    """Return one sentence on several ranks: which works longest, and how long others wait."""
    ranks = report.ranks
    if not ranks:
        return []
    slowest = max(ranks, key=lambda rank: rank.step_s - (rank.communication_exposed_s or 0.0))
    own_s = slowest.step_s - (slowest.communication_exposed_s or 0.0)
    text = f"{len(ranks)} ranks: rank {slowest.rank} works longest by itself ({seconds(own_s)})"
    waits = [rank.wait_s for rank in ranks if rank.wait_s is not None]
    if waits:
        text += f"; others wait up to {seconds(max(waits))} a step for it in collectives"
    return sentences(f"{text}.")


def _tried(report: Report) -> list[Block]:
    ranked = sorted(
        (trial for trial in report.trials if trial.speedup is not None), key=value_of, reverse=True
    )
    rows = [_together(report)] if len(report.recommendation.fixes) > 1 else []
    chosen = [(fix.fix, fix.settings) for fix in report.recommendation.fixes]
    rows += [_trial_row(trial, (trial.fix, trial.settings) in chosen) for trial in ranked]
    rows = [row for row in rows if row is not None]
    counts = _counts(report, left_out=max(len(rows) - _MOST_TRIALS, 0))
    if not rows:
        return sentences(counts, tone="soft")
    columns = ["tried", "speed-up", "training", "pairs", ""]
    shown = [row for row in rows[:_MOST_TRIALS] if row is not None]
    return [Intervals(columns, shown), *sentences(counts, tone="soft")]


def _together(report: Report) -> IntervalRow | None:
    recommended = report.recommendation
    if recommended.speedup is None:
        return None
    training = TRAINING.get(recommended.numerics or "", "not known")
    pairs = str(recommended.pairs or "-")
    cells = ["all recommended together", speedup(recommended.speedup), training, pairs, ""]
    return IntervalRow(cells, recommended.speedup, "good")


def _trial_row(trial: Trial, recommended: bool) -> IntervalRow:
    verdict, figures = verdict_of(trial), figures_of(trial)
    shown = figures if verdict == "faster" else verdict
    remark = "recommended" if recommended else "" if verdict == "faster" else figures
    if trial.numerics == "changed" and verdict == "faster":
        remark = "changes training"
    known = trial.numerics != "not-comparable" or verdict == "faster"
    training = TRAINING.get(trial.numerics, trial.numerics) if known else ""
    cells = [_name(trial.fix, trial.settings), shown, training, str(trial.pairs or "-")]
    drawn = trial.speedup if trial.speedup and says_something(trial.speedup) else None
    return IntervalRow([*cells, remark], drawn, "good" if recommended else "")


def _counts(report: Report, left_out: int = 0) -> str:
    """Return how many trials are not in the table, and why; each reason is in the details."""
    counts = [
        (sum(map(not_tried, report.trials)), "did not fit into the time (a longer --budget)"),
        (sum(trial.verdict == "failed" for trial in report.trials), "failed"),
        (len({t.fix for t in report.trials if t.verdict == "refused"}), "do not apply"),
    ]
    told = [f"{number} {words}" for number, words in counts if number]
    more = f"{left_out} more were measured. " if left_out else ""
    return f"{more}Not measured: {', '.join(told)} (reasons: --details)." if told else more.strip()


def _step(report: Report) -> list[Block]:
    bars = time_bars(report)
    if not bars:
        return []
    time, rate = report.baseline.step_time_s, report.baseline.samples_per_s
    title = f"one step: {seconds(time.median)}" if time is not None else "one step"
    if report.trace is not None and not report.trace.steps and time is None:
        title = "the whole trace"
    title += f", {quantity(rate, 'samples/s')}" if rate else ""
    bounds = upper_bounds(report)
    return [Sentence(title, "soft"), Bars(bars), *sentences(bounds, tone="soft")]


def _beware(report: Report) -> list[Block]:
    """Return what weakens the answer above, each in one sentence; the details have all of it."""
    cut = "The run was interrupted: this is what was measured until then."
    firsts = [re.split(r"(?<=[.!?])\s", clean(doubt), maxsplit=1)[0] for doubt in report.beware]
    warnings = [*([cut] if report.interrupted else []), *firsts]
    return [
        Note(severity="beware", sentence=textwrap.shorten(text, _EVIDENCE, placeholder=" …"))
        for text in warnings[:_MOST_BEWARE]
    ]


def _name(fix: str, values: Mapping[str, Any]) -> str:
    """Return a fix with its settings, short enough for a cell; the details have all of them."""
    return textwrap.shorten(fix_with_settings(fix, values), _NAME, placeholder=" …")


def _joined(*parts: str) -> str:
    return "   ".join(part for part in parts if part)
