"""The first screen of a report, at most 40 lines: what changes a decision; all else is details."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.queries.outcomes import is_proven, most_promising, value_of
from torchdoctor.reports import (
    efficiency,
    handed_out,
    network,
    other_load,
    own_code,
    screen_room,
    unobserved,
    wording,
)
from torchdoctor.reports.bounds_shown import by_hand_at_most, worth_of
from torchdoctor.reports.cause import cause
from torchdoctor.reports.document import (
    Bars,
    Block,
    Code,
    KeyFigures,
    Row,
    Section,
    Sentence,
    prose,
    sections,
    sentences,
    table,
)
from torchdoctor.reports.time_parts import time_bars, upper_bounds
from torchdoctor.reports.trial_rows import (
    CORRECTED,
    LOOKS_FASTER,
    figures_of,
    may_gain_more,
    not_tried,
    training,
    verdict_of,
)
from torchdoctor.reports.vocabulary import compared, step_of
from torchdoctor.reports.wording import LONGEST_PLACE
from torchdoctor.schema import (
    NOT_WORTH_ITS_TIME,
    OUT_OF_TIME,
    Bound,
    FixSet,
    Interval,
    Note,
    RecommendedFix,
    Report,
    TraceStatistics,
    Trial,
    set_of,
)
from torchdoctor.schema.figures import (
    clean,
    counted,
    duration,
    fixes_alone,
    fixes_with_settings,
    memory_change,
    percent,
    place,
    quantity,
    ratio,
    says_something,
    seconds,
    speedup,
)
from torchdoctor.schema.traced import MATTERS

_MOST_TRIALS = 7
_MOST_FIXES = 4
_MOST_CODE = 8
_MOST_BEWARE = 2
_FEWEST_TRIALS, _FEW_LINES, _MANY_LINES = (
    2,
    7,
    14,
)  # an answer of more lines leaves room for fewer trials
_FEW_ABOVE = 5  # lines of cause and load, beyond which each takes the room of a trial
_LITTLE, _SMALL = 3, 10  # percent: gains below are nothing; are little
_EVIDENCE = 150  # characters: two lines of a narrow terminal
_NAME = 44  # characters of a fix with its settings
_WHOLE_BUDGET = 0.9
_UNPROVEN = "No speed-up is proven yet"
_RECOMMENDED = "RECOMMENDED"
_BY_HAND = "RECOMMENDED, BY HAND"
_LOOKS_FASTER = "LOOKS FASTER, not proven"
_MOST_REJECTED, _MOST_LIKELY, _REJECTED = 2, 3, 200  # the last: characters of a sentence
_PROBABLY = 0.5  # that a fix helps, from where on it is likely to
_ENDED_EARLY = {
    "time": ": what is worth measuring takes longer than the time that was left",
    "decided": ": no further fix promised a gain that is worth the rest",
}
_ONE_LAUNCH = "measured in one launch only"
_TRAINING = {"rounding": "the same but for rounding", "seed noise": "within seed noise"}


def screen(report: Report, folder: str) -> list[Section]:
    """Return the sections of the first screen; commands name paths from the reader's folder."""
    answer = _answer(report, folder)
    lines = screen_room.lines_on_screen(answer)
    # Each trial may take two lines.
    trials = _MOST_TRIALS - max(0, lines - _FEW_LINES) * 2 // 3
    long = lines > _MANY_LINES
    above = [*sentences(wording.failure(report), tone="bad"), *cause(report)]
    load = sentences(other_load.held(report), network.sent(report.network), tone="bad")
    trials -= max(0, screen_room.lines_on_screen([*above, *load]) - _FEW_ABOVE)
    return sections(
        ("", above),
        ("", [*answer, *_ending(report)]),
        ("", load),
        ("", _tried(report, max(trials, _FEWEST_TRIALS))),
        ("", _step(report)),
        ("", _beware(report)[: 1 if long else _MOST_BEWARE]),
    )


def _answer(report: Report, folder: str) -> list[Block]:
    """Return what to change, or why nothing can be recommended, and what only the user can do."""
    lines = own_code.blocks(report)
    # What is known of a line is said there: another finding's advice would only mislead.
    measured = report.trials and not report.no_trials_reason
    to_do = (
        own_code.to_do(report) if measured and not lines and not own_code.is_cured(report) else ""
    )
    most = own_code.most_gain_of_cause(report)
    bound = f" ({most})" if to_do and most else ""
    by_hand = sentences(f"By hand{bound}: {to_do}" if to_do else "")
    return [*_measured_answer(report, folder), *lines, *by_hand]


def _measured_answer(report: Report, folder: str) -> list[Block]:
    rejected = _rejected(report)
    open_proof = _open_proof(report)
    beside = [*rejected, *open_proof] if report.recommendation.fixes else [*open_proof, *rejected]
    if not (rejected and open_proof):  # else there is no room: the details have the candidates
        beside += _likely(report, 1 if beside else _MOST_LIKELY)
    if report.recommendation.fixes:
        return [*_recommended(report, folder), *beside, *_by_hand(report)]
    proven = [x for x in report.trials if verdict_of(x) == "faster" and x.numerics != "changed"]
    best = max(proven, key=lambda trial: trial.speedup.low if trial.speedup else 0.0, default=None)
    if best is not None:
        return [*_proven_alone(report, best, folder), *beside]
    if report.no_trials_reason or not report.trials:
        return _not_measured(report)
    best = None if _ends_without_gain(report) else _promising(report)
    open_fixes = _offered(report, best) if best is not None else []
    shown = handed_out.patch_commands(report, open_fixes, folder)[:1]
    code = sentences(*(f"{command.title}   {command.show}" for command in shown))
    undecided = other_load.undecided(report) or _undecided(report, best)
    told = beside if open_proof else [*undecided, *code, *beside]
    return [*told, *_by_hand(report)]


def _promising(report: Report) -> Trial | None:
    """Return the open trial that is worth most: one that looked faster, else one without time."""
    offered = {fix.fix for fix in _offered(report)}
    waiting = [x for x in report.trials if not_tried(x) and x.fixes.only in offered]
    waiting = [x for x in waiting if value_of(x) > MATTERS]
    return most_promising(report.trials) or max(waiting, key=value_of, default=None)


def _by_hand(report: Report) -> list[Block]:
    """Return what only the user can change, where the cause or a severe finding calls for it."""
    told = report.diagnosis
    findings = [x for x in told.findings if x.severity == "high" or x.check == told.detail]
    rows = []
    for fix in _offered(report):
        shares = [x.share_of_step for x in findings if fix.fix in x.fixes and x.share_of_step]
        if fix.standing == "offered" and shares and not own_code.is_told(report, fix.location):
            where = place(fix.location, report.workload.cwd, LONGEST_PLACE)
            about = f"{where}   it is about {percent(max(shares))} of the {step_of(report)}"
            rows.append((max(shares), (_name(fix.as_set), about)))
    shown = [row for _, row in sorted(rows, key=lambda row: -row[0])[:_MOST_FIXES]]
    return [KeyFigures("TO CHANGE BY HAND, not measured", "", shown)] if rows else []


def _recommended(report: Report, folder: str) -> list[Block]:
    recommended = report.recommendation
    memory = ""
    before = report.baseline.peak_memory_bytes
    after = recommended.peak_memory_bytes
    if before is not None and after is not None:
        memory = f"{memory_change(after - before)} memory"
    rows: list[tuple[str, str]] = []
    for fix in recommended.fixes[:_MOST_FIXES]:
        parts = [place(fix.location, report.workload.cwd, LONGEST_PLACE), "" if rows else memory]
        rows.append((_name(fix.as_set), "   ".join(filter(None, parts))))
    title, figure = _recommended_title(report)
    shown = KeyFigures(title, figure, rows, "good" if title.startswith(_RECOMMENDED) else "strong")
    return [shown, *sentences(wording.beyond_its_part(recommended)), *_to_apply(report, folder)]


def _recommended_title(report: Report) -> tuple[str, str]:
    """Return the heading of the set with its figure; without proof it is not recommended."""
    recommended = report.recommendation
    interval = recommended.speedup
    pairs = recommended.pairs
    if interval is None:
        return _RECOMMENDED, "not measured all together"
    busy = ", on a busy machine" if other_load.is_busy(report) else ""
    if interval.low <= 1:
        return _UNPROVEN, f"measured {speedup(interval)}"
    if not is_proven(interval, pairs):
        return _LOOKS_FASTER, f"{speedup(interval)} in {counted(pairs, 'pair')} of launches{busy}"
    by_hand = not recommended.patch or handed_out.rejected_patches(report)
    title = _BY_HAND if by_hand and recommended.handed_out != "patch" else _RECOMMENDED
    return title, f"{_faster(report, interval, recommended.numerics)}{busy}"


def _to_apply(report: Report, folder: str) -> list[Block]:
    """Return how the recommended set was proven, and how to apply it: by a patch or by hand."""
    recommended = report.recommendation
    commands = handed_out.patch_commands(report, recommended.fixes, folder)
    edited = handed_out.applied_sets(report)
    run = handed_out.patch_run(report, set_of(edited))
    if recommended.patch and (commands or not report.run_folder):
        left_out = [fix for fix in recommended.fixes if fix not in edited]
        how = handed_out.ran(report, run) if run is not None else ""
        if run is not None and run.proven and run.speedup == recommended.speedup:
            launches = f"{counted(run.pairs, 'pair')} of launches"
            how = f"This patch was applied to a copy and ran: the figure is its own, of {launches}."
        return [*sentences(how), *_command(commands), *_instructions(left_out)]
    how = "There is no patch to apply: the figure is of fixes switched on at run time."
    return [*sentences(how), *_instructions(recommended.fixes)]


def _rejected(report: Report) -> list[Block]:
    """Return what was tried as a patch and is not handed out, in a sentence each."""
    rejected = handed_out.rejected_patches(report)
    most = 1 if report.recommendation.open_proof else _MOST_REJECTED
    told = [handed_out.rejected_sentence(x, False) for x in rejected[:most]]
    more = len(rejected) - most
    told = [textwrap.shorten(text, _REJECTED, placeholder=" …") for text in told]
    further = f"{counted(more, 'more patch', 'more patches')} did not hold: --details."
    return sentences(*told, further if more > 0 else "")


def _open_proof(report: Report) -> list[Block]:
    """Return the set that looks faster, and what its proof still needs."""
    proof = report.recommendation.open_proof
    if proof is None:
        return []
    figure = f"{speedup(proof.speedup)} in {counted(proof.pairs, 'pair')} of launches"
    missing = ""
    if proof.further_pairs:
        missing = f"Its proof needs {counted(proof.further_pairs, 'more pair')} of launches"
        missing += f", about {duration(proof.seconds)}" if proof.seconds is not None else ""
        missing += f"{_longer(report, proof.seconds)}."
    named = _name(proof.fixes, _EVIDENCE)
    return [KeyFigures(f"{_LOOKS_FASTER}:", f"{figure}, {named}"), *sentences(missing)]


def _likely(report: Report, most: int = _MOST_LIKELY) -> list[Block]:
    """Return fixes that probably help and had no time, with the finding that they treat."""
    proof = report.recommendation.open_proof
    told = set(report.recommendation.patch_fixes)
    told |= {fix.fix for fix in report.recommendation.fixes} | set(proof.fixes if proof else {})
    likely: dict[tuple[str, ...], Trial] = {}
    for trial in sorted(filter(not_tried, report.trials), key=value_of, reverse=True):
        lacked_time = trial.because == OUT_OF_TIME and (trial.p_helps or 0.0) >= _PROBABLY
        if lacked_time and not told.issuperset(trial.fixes):
            likely.setdefault(trial.fixes.ids, trial)
    rows = [(_name(trial.fixes), _treats(report, trial)) for trial in likely.values()][:most]
    if not rows:
        return []
    # Beside what is undecided it is said there.
    is_said = proof is not None or not report.recommendation.fixes
    longer = "" if is_said else _longer(report, None)
    return [
        KeyFigures("LIKELY TO HELP", "not tried for want of time", rows),
        *sentences(f"More time tries {_them(rows)}{longer}." if longer else ""),
    ]


def _them(rows: Sequence[tuple[str, str]]) -> str:
    return "it" if len(rows) == 1 else "them"


def _treats(report: Report, trial: Trial) -> str:
    """Return what an untried fix may gain, and the finding that it treats."""
    parts = [f"{ratio(trial.expected)}x expected"] if trial.expected else []
    for finding in report.diagnosis.findings:
        if not trial.fixes.keys().isdisjoint(finding.fixes):
            share = finding.share_of_step
            parts.append(f"treats {finding.check}")
            parts += [f"{percent(share)} of the {step_of(report)}"] if share is not None else []
            break
    return ", ".join(parts)


def _longer(report: Report, more_s: float | None) -> str:
    """Return with which budget the same command goes on; empty after an interruption or error."""
    ending = report.ending
    if report.interrupted or report.failure or ending is None:
        return ""
    needed_s = max(ending.budget_s, ending.after_s) + (more_s or ending.budget_s)
    return f": the same command with --budget {math.ceil(needed_s / 60)}m"


def _faster(report: Report, interval: Interval | None, numerics: str | None) -> str:
    estimate, _, bounds = speedup(interval).partition(" ")
    stays = training(numerics)
    if stays == CORRECTED:  # wrong results are no pace to beat
        return f"{compared(report)} corrected, {handed_out.as_fast(interval)}"
    return f"{estimate} faster {bounds}, {compared(report)} {_TRAINING.get(stays, stays)}"


def _proven_alone(report: Report, best: Trial, folder: str) -> list[Block]:
    """Return the best fix that is faster by itself, where no set could be recommended."""
    several = len(best.fixes) > 1
    unknown = several or best.numerics == "not-comparable"
    title = "Faster, but not recommended" if unknown else "FASTER, measured by itself"
    return [
        KeyFigures(title, _faster(report, best.speedup, best.numerics), [(_name(best.fixes), "")]),
        *sentences(
            "Which of its fixes gain is not known yet." * several, wording.beyond_its_part(best)
        ),
        *_next(report),
        *_commands(report, _offered(report, best), folder),
    ]


def _offered(report: Report, of: Trial | None = None) -> list[RecommendedFix]:
    """Return the fixes for speed that are offered; `of`: a trial, of its fixes alone."""
    offered = [fix for fix in report.recommendation.also_offered if fix.aim != "training"]
    return [fix for fix in offered if of is None or fix.fix in of.fixes]


def _not_measured(report: Report) -> list[Block]:
    """Return what could help where no fix was tried: of a trace, and of `--no-fixes`."""
    offered = _offered(report)
    reason = wording.untried(report)
    to_do = own_code.to_do(report)
    findings = report.diagnosis.findings
    cause = report.diagnosis.bottleneck
    if not offered and not to_do:
        unknown = report.steps is None and cause != "none"
        return sentences(f"{'torchdoctor knows no fix for this. ' * unknown}{reason}")
    by_hand = [x for x in findings if x.check == report.diagnosis.detail]
    leads = [("by hand", to_do, by_hand)] if to_do else []
    bounds = [by_hand_at_most(report, by_hand)] if to_do else []
    bounds += [fix.bound for fix in offered]
    for fix in offered:
        spec = catalogue.fixes().get(fix.fix)  # a report may name a fix of another version
        treats = [finding for finding in findings if fix.fix in finding.fixes]
        title = (spec.says(fix.settings) or spec.title) if spec is not None else ""
        leads.append((_name(fix.as_set), title, treats))
    rows = list[tuple[Bound | None, tuple[str, str]]]()
    checks = catalogue.checks()
    best = max((bound.speedup for bound in bounds if bound), default=0.0)
    for (name, title, treats), bound in zip(leads, bounds, strict=True):
        # What saves nothing by itself stands here only if it treats the cause.
        treated = cause in {checks[x.check].branch for x in treats}
        if treated or bound is None or bound.speedup >= min(best, MATTERS):
            told = f"{ratio(bound.speedup)}x at most   {title}" if bound else title
            rows.append((bound, (name, told)))
    shown = rows[:_MOST_FIXES]
    same = f"Fixes that work on the same part of the {step_of(report)} do not add up."
    shares = [bound.works_on for bound, _ in shown if bound]
    rest = len(leads) - len(shown)
    more = f"{rest} more, and the code of each: --details." if rest else "Their code: --details."
    figures = KeyFigures(
        "WHAT COULD HELP, not measured", worth_of(bounds), [row for _, row in shown]
    )
    shared = same if len(set(shares)) < len(shares) else ""
    return [figures, *sentences(shared, more * bool(offered), reason)]


def _ending(report: Report) -> list[Block]:
    """Return how much of its time the search took, if it ended by itself."""
    ending = report.ending
    measured = any(trial.speedup for trial in report.trials)
    if ending is None or not measured or ending.reason in ("interrupted", "failed"):
        return []
    times = f"{duration(ending.after_s)}, with a budget of {duration(ending.budget_s)}"
    why = ""
    if ending.after_s < _WHOLE_BUDGET * ending.budget_s:
        why = _ENDED_EARLY.get(ending.reason, "")
    return sentences(f"The search ended after {times}{why}.", tone="soft")


def _ends_without_gain(report: Report) -> bool:
    ended = report.ending.reason if report.ending is not None else ""
    return ended in ("nothing to gain", "busy machine")


def _nothing_to_gain(report: Report) -> list[Block]:
    """Return the most that a fix tried may gain, and what the step consists of."""
    tried = [trial for trial in report.trials if trial.speedup and trial.numerics != "changed"]
    intervals = [(x.upper_bound or 1.0, x.speedup) for x in tried if x.speedup]
    bounds = [max(most, x.high) for most, x in intervals if says_something(x)]
    most = max([_LITTLE, *(math.ceil(100 * (bound - 1.0)) for bound in bounds)])
    title = "Nothing to gain."
    figure = f"No fix tried gains {most} % or more"
    parts = [f"; the {step_of(report)} is {bar.text} {bar.label}" for bar in time_bars(report)[:1]]
    if few := most > _SMALL:
        title = "No gain was found."
        parts = []
        figure = f"So few pairs of launches still leave {ratio(1 + most / 100)}x possible"
    if len(bounds) < len(intervals):
        few = True
        title = "No gain was found."
        parts = []
        figure = "So few pairs of launches say nothing of some fixes"
    title = "No fix that was tried helps." if _by_hand(report) else title
    return [KeyFigures(title, f"{figure}{''.join(parts)}."), *(_next(report) if few else [])]


def _next(report: Report) -> list[Block]:
    """Return what may decide where time was short; after an error it is said beside that."""
    if report.interrupted or report.failure or not may_gain_more(report):
        return []
    ending = report.ending
    longer = f"--budget {math.ceil(ending.budget_s / 30)}m" if ending else "a longer --budget"
    return sentences(f"Next: the same command with {longer}; more time may decide it.")


def _undecided(report: Report, best: Trial | None) -> list[Block]:
    """Return what is known where no fix is proven to be faster."""
    measured = [trial for trial in report.trials if trial.speedup is not None or trial.pairs]
    if measured and _ends_without_gain(report):
        return _nothing_to_gain(report)
    undecided = ("not decided", LOOKS_FASTER)
    open_trials = [trial for trial in measured if verdict_of(trial) in undecided]
    if best is not None and verdict_of(best) == LOOKS_FASTER:
        figure = f"{speedup(best.speedup)} in {counted(best.pairs, 'pair')} of launches"
        return [KeyFigures(_LOOKS_FASTER, figure, [(_name(best.fixes), "")]), *_next(report)]
    if best is not None and best.speedup is None and _likely(report):
        return [KeyFigures(f"{_UNPROVEN}."), *_next(report)]
    if best is not None:
        looked = f"{ratio(best.expected)}x expected, not measured"
        if best.speedup is not None:
            looked = f"{speedup(best.speedup)} in {counted(best.pairs, 'pair')} of launches"
        if _ONE_LAUNCH in (best.reason or ""):
            looked = f"{speedup(best.speedup)} in blocks of one launch, which pairs have to confirm"
        figure = f"Most promising: {_name(best.fixes, _EVIDENCE)}, {looked}."
        return [KeyFigures(f"{_UNPROVEN}.", figure), *_next(report)]
    untried = [trial for trial in report.trials if not_tried(trial)]
    if open_trials or any(trial.because != NOT_WORTH_ITS_TIME for trial in untried):
        why = "The run was interrupted" if report.interrupted else "Too little time was left"
        figure = "" if measured else f"{why}: no fix was measured."
        return [KeyFigures(f"{_UNPROVEN}.", figure), *_next(report)]
    if not measured:
        return [KeyFigures(f"No fix {'was worth measuring' if untried else 'could be measured'}.")]
    but = f" without changing {compared(report)}" * any(verdict_of(x) == "faster" for x in measured)
    return [KeyFigures("Nothing to change.", f"No fix that was tried is faster{but}.")]


def _commands(report: Report, fixes: Sequence[RecommendedFix], folder: str) -> list[Block]:
    """Return how to see or apply the fixes: one command, and code of what has no edit."""
    shown = _command(handed_out.patch_commands(report, fixes, folder))
    return [*shown, *_instructions([fix for fix in fixes if not fix.edit][:1])]


def _command(commands: Sequence[handed_out.PatchCommand]) -> list[Block]:
    """Return the first command, to apply a diff or only to see it."""
    blocks: list[Block] = []
    for command in commands[:1]:
        blocks.append(Sentence(f"{command.title}   {command.apply or command.show}"))
        see = command.apply is not None and len(command.show) < 60
        blocks += sentences(f"See it:     {command.show}" if see else "", tone="soft")
    return blocks


def _instructions(fixes: Sequence[RecommendedFix]) -> list[Block]:
    """Return the code of fixes to change by hand, as far as there is room for it."""
    blocks: list[Block] = []
    room = _MOST_CODE
    for fix in [fix for fix in fixes if fix.instruction][:_MOST_FIXES]:
        lines = clean(fix.instruction or "").strip("\n").split("\n")
        short = len(lines) <= room and max(map(len, lines)) <= screen_room.WIDTH
        where = ":" if short else ": its code is in the details."
        blocks.append(Sentence(f"By hand, {clean(catalogue.name(fix.fix))}{where}"))
        blocks += [Code("\n".join(lines))] * short
        room -= len(lines) * short
    return blocks


def _tried(report: Report, most: int) -> list[Block]:
    """Return the table of trials, the most valuable first, and how many are not in it."""
    recommended = report.recommendation
    rows = []
    if len(recommended.fixes) > 1 and recommended.speedup is not None:
        figures = speedup(recommended.speedup)
        pairs = str(recommended.pairs or "-")
        cells = ["all recommended together", figures, training(recommended.numerics), pairs, ""]
        rows.append(Row(cells, "good", recommended.speedup))
    chosen = set_of(recommended.fixes)
    shown = [x for x in report.trials if x.speedup and not (rows and x.fixes == chosen)]
    members = [fix.as_set for fix in recommended.fixes]
    ranked = [(x.fixes in members, x) for x in shown]
    for first, trial in sorted(ranked, key=lambda row: (row[0], value_of(row[1])), reverse=True):
        rows.append(_trial_row(trial, first, report))
    counts = sentences(_counts(report, max(len(rows) - most, 0)), tone="soft")
    columns = ["tried", "speed-up (95 %)", compared(report), "pairs", "result"]
    return [*table(columns, rows[:most]), *counts]


def _trial_row(trial: Trial, recommended: bool, report: Report) -> Row:
    verdict = "recommended" if recommended else verdict_of(trial)
    interval = trial.speedup if trial.speedup and says_something(trial.speedup) else None
    bounds = _ends_without_gain(report) and trial.upper_bound
    if bounds and interval is not None and verdict != "slower":
        verdict += f", {ratio(max(bounds, interval.high))}x at most"
    if trial.numerics == "changed" and verdict in ("faster", LOOKS_FASTER):
        verdict = f"changes {compared(report)}"
    known = trial.numerics != "not-comparable" or verdict == "faster"
    cells = [_name(trial.fixes), figures_of(trial), training(trial.numerics) if known else ""]
    cells += [str(trial.pairs or "-"), verdict]
    return Row(cells, "good" if recommended else "", interval)


def _counts(report: Report, left_out: int) -> str:
    """Return how many trials are not in the table, and why; each reason is in the details."""
    untried = [trial for trial in report.trials if not_tried(trial)]
    unlikely = [trial for trial in untried if trial.because == NOT_WORTH_ITS_TIME]
    counts = [
        (len(unlikely), "not worth the time"),
        (len(untried) - len(unlikely), "did not fit into the time (a longer --budget)"),
        (sum(trial.verdict == "failed" for trial in report.trials), "failed"),
        (len({t.fixes.ids for t in report.trials if t.verdict == "refused"}), "do not apply"),
    ]
    told = ", ".join(f"{number} {words}" for number, words in counts if number)
    more = f"{left_out} more were measured. " if left_out else ""
    return f"{more}Not measured: {told} (reasons: --details)." if told else more.strip()


def _step(report: Report) -> list[Block]:
    if not (bars := time_bars(report)):
        return []
    time = report.baseline.step_time_s
    rate = wording.samples_per_s(report)
    trace = report.trace
    path = report.trace.path if report.trace else ""
    ranks = (f" of rank {x.rank}" for x in report.ranks if x.path == path)
    title = "".join([f"one {step_of(report)}", *ranks])
    if trace is not None and trace.of_traces > 1 and not report.ranks:
        title += f" of {Path(path).name}"
    if report.steps is None and trace is not None and trace.step_s:  # its shares are of the mean
        title = _of_trace(title, trace, trace.step_s)
    elif time is not None:  # samples/s are of the same time
        average = "median" if time.deciding == time.median else "mean"
        title += f": {seconds(time.deciding)}"
        if time.steps > 1:
            title += f" ({average})"
    title += f", {quantity(rate, 'samples/s')}" if rate else ""
    other = report.steps and time and not 2 / 3 < report.steps.mean_s / time.deciding < 1.5
    told = sentences(wording.shares_of(report) if other else "", upper_bounds(report), tone="soft")
    figures = sentences(wording.latency(report), efficiency.line(report), tone="soft")
    return [Sentence(title, "soft"), *figures, Bars(bars), *told]


def _of_trace(title: str, trace: TraceStatistics, step_s: float) -> str:
    """Return the title of a trace's step, or of the part of the trace that stands for one."""
    if trace.steps:
        mean = " (mean)" if trace.steps > 1 else ""
        return f"{title}: {seconds(step_s)}{mean}"
    if not trace.start_up_s:
        return f"the whole trace: {seconds(step_s)}"
    recorded_s = trace.start_up_s + step_s
    return f"the trace after its start-up: {seconds(step_s)} of {seconds(recorded_s)} recorded"


def _beware(report: Report) -> list[Block]:
    """Return what weakens the answer above, each in one sentence; the details have all of it."""
    doubts = [*unobserved.sentences(report), *report.beware]
    warnings = [wording.first_sentence(clean(doubt)) for doubt in doubts]
    if report.interrupted:
        warnings.insert(0, "The run was interrupted: this is what was measured until then.")
    return [
        Note(severity="beware", sentence=prose(textwrap.shorten(text, _EVIDENCE, placeholder=" …")))
        for text in warnings[:_MOST_BEWARE]
    ]


def _name(fixes: FixSet, longest: int = _NAME) -> str:
    """Return fixes with their settings, short enough for a cell; the details have all of them."""
    named = catalogue.named(fixes)
    name = fixes_with_settings(named)
    if len(name) > longest and len(named) > 1:
        name = fixes_alone(named)  # which fixes they are says more than their settings
    return textwrap.shorten(name, longest, placeholder=" …")
