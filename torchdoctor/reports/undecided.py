"""What is still open, for the first screen: what looks faster, is promising, or probably helps.

And what to say where the search ended and nothing can be gained. Nothing here is called faster.
"""

import math
from collections.abc import Sequence

from torchdoctor.queries.outcomes import most_promising, value_of
from torchdoctor.reports import handed_out, other_load
from torchdoctor.reports.could_help import by_hand, offered
from torchdoctor.reports.document import Block, KeyFigures, sentences
from torchdoctor.reports.screen_room import LONGEST_NAMES, short_name
from torchdoctor.reports.time_parts import time_bars
from torchdoctor.reports.trial_rows import LOOKS_FASTER, may_gain_more, not_tried, verdict_of
from torchdoctor.reports.vocabulary import compared, step_of
from torchdoctor.schema import Ending, Report, Trial
from torchdoctor.schema.figures import counted, duration, percent, ratio, says_something, speedup
from torchdoctor.schema.traced import MATTERS

UNPROVEN = "No speed-up is proven yet"
SEEMS_FASTER = "LOOKS FASTER, not proven"
LIKELY = "LIKELY TO HELP"
_LITTLE = 3  # percent: gains below are nothing
_SMALL = 10  # percent: gains below are little
_PROBABLY = 0.5  # that a fix helps, from where on it is likely to


def blocks(report: Report, folder: str) -> list[Block]:
    """Return what is known where no fix is proven to be faster, and the code of the best."""
    best = None if ends_without_gain(report) else _promising(report)
    code: list[Block] = []
    if best is not None:
        commands = handed_out.patch_commands(report, offered(report, best), folder)
        code = sentences(*(f"{command.title}   {command.show}" for command in commands[:1]))
    return [*(other_load.undecided(report) or _undecided(report, best)), *code]


def ends_without_gain(report: Report) -> bool:
    """Return True if the search ended because there is nothing more to find."""
    return report.ending is not None and report.ending.reason in ("nothing to gain", "busy machine")


def _promising(report: Report) -> Trial | None:
    """Return the open trial that is worth most: one that looked faster, else one without time."""
    looked_faster = most_promising(report.trials)
    if looked_faster:
        return looked_faster
    idents = {fix.fix for fix in offered(report)}
    waiting = [
        trial
        for trial in report.trials
        if not_tried(trial) and trial.fixes.only in idents and value_of(trial) > MATTERS
    ]
    return max(waiting, key=value_of, default=None)


def _undecided(report: Report, best: Trial | None) -> list[Block]:
    measured = [trial for trial in report.trials if trial.speedup is not None or trial.pairs]
    if measured and ends_without_gain(report):
        return _nothing_to_gain(report)
    if report.ending is not None and report.ending.needed_s is not None:
        return _not_tried(report.ending)
    if best is not None:
        return [*_most_promising(report, best), *more_time(report)]
    untried = [trial for trial in report.trials if not_tried(trial)]
    is_open = any(verdict_of(trial) in ("not decided", LOOKS_FASTER) for trial in measured)
    if is_open or any(not trial.not_worth_its_time for trial in untried):
        why = "The run was interrupted" if report.interrupted else "Too little time was left"
        figure = "" if measured else f"{why}: no fix was measured."
        return [KeyFigures(f"{UNPROVEN}.", figure), *more_time(report)]
    if not measured:
        missed = "was worth measuring" if untried else "could be measured"
        return [KeyFigures(f"No fix {missed}.")]
    but = ""
    if any(verdict_of(trial) == "faster" for trial in measured):
        but = f" without changing {compared(report)}"
    return [KeyFigures("Nothing to change.", f"No fix that was tried is faster{but}.")]


def _not_tried(ending: Ending) -> list[Block]:
    """Return that no fix was tried, and the budget that the cheapest needs."""
    figure = f"The cheapest does not fit in a budget of {duration(ending.budget_s)}."
    enough = f"--budget {_minutes(ending.needed_s or ending.budget_s)}m"
    return [
        KeyFigures("No fix was tried.", figure),
        *sentences(f"Next: the same command with {enough}, in which it can be measured."),
    ]


def _minutes(budget_s: float) -> int:
    return math.ceil(budget_s / 60)


def _most_promising(report: Report, best: Trial) -> list[Block]:
    """Return the open trial that is worth most, with what was seen or is expected of it."""
    figures = f"{speedup(best.speedup)} in {counted(best.pairs, 'pair')} of launches"
    if verdict_of(best) == LOOKS_FASTER:
        return [KeyFigures(SEEMS_FASTER, figures, [(short_name(best.fixes), "")])]
    if best.speedup is None and likely(report):  # which names it
        return [KeyFigures(f"{UNPROVEN}.")]
    if any(evidence.fact == "blocks-only" for evidence in best.why):
        figures = f"{speedup(best.speedup)} in blocks of one launch, which pairs have to confirm"
    elif best.speedup is None:
        figures = f"{ratio(best.expected)}x expected, not measured"
    name = short_name(best.fixes, LONGEST_NAMES)
    return [KeyFigures(f"{UNPROVEN}.", f"Most promising: {name}, {figures}.")]


def _nothing_to_gain(report: Report) -> list[Block]:
    """Return the most that a fix tried may gain, and what the step consists of."""
    bounds = []
    says_all = True
    but = ""
    for trial in report.trials:
        if not trial.speedup:
            continue
        if trial.numerics == "changed":
            if trial.speedup.high > 1.0 + _LITTLE / 100:
                but = f" without changing {compared(report)}"
        elif says_something(trial.speedup):
            bounds.append(max(trial.upper_bound or 1.0, trial.speedup.high))
        else:
            says_all = False
    most = max([_LITTLE, *(math.ceil(100 * (bound - 1.0)) for bound in bounds)])
    is_certain = says_all and most <= _SMALL
    title = "Nothing to gain." if is_certain and not but else "No gain was found."
    if not says_all:
        figure = "So few pairs of launches say nothing of some fixes."
    elif most > _SMALL:
        figure = f"So few pairs of launches still leave {ratio(1 + most / 100)}x possible."
    else:
        figure = f"No fix tried gains {most} % or more{but}{_largest_part(report)}."
    if by_hand(report):
        title = "No fix that was tried helps."
    return [KeyFigures(title, figure), *([] if is_certain else more_time(report))]


def _largest_part(report: Report) -> str:
    """Return the largest part of the step, to stand behind a sentence."""
    bars = time_bars(report)
    return f"; the {step_of(report)} is {bars[0].text} {bars[0].label}" if bars else ""


def more_time(report: Report) -> list[Block]:
    """Return what may decide where time was short; after an error it is said beside that."""
    if report.interrupted or report.failure or not may_gain_more(report):
        return []
    ending = report.ending
    longer = f"--budget {math.ceil(ending.budget_s / 30)}m" if ending else "a longer --budget"
    return sentences(f"Next: the same command with {longer}; more time may decide it.")


def open_proof(report: Report) -> list[Block]:
    """Return the set that looks faster, and what its proof still needs."""
    proof = report.recommendation.open_proof
    if proof is None:
        return []
    figure = f"{speedup(proof.speedup)} in {counted(proof.pairs, 'pair')} of launches"
    missing = ""
    if proof.further_pairs:
        pairs = counted(proof.further_pairs, "more pair")
        about = f", about {duration(proof.seconds)}" if proof.seconds is not None else ""
        longer = _with_longer_budget(report, proof.seconds)
        missing = f"Its proof needs {pairs} of launches{about}{longer}."
    names = short_name(proof.fixes, LONGEST_NAMES)
    return [KeyFigures(f"{SEEMS_FASTER}:", f"{figure}, {names}"), *sentences(missing)]


def likely(report: Report, most: int = 1) -> list[Block]:
    """Return fixes that probably help and had no time, with the finding that they treat."""
    trials = _likely_trials(report)[:most]
    if not trials:
        return []
    rows = [(short_name(trial.fixes), _treats(report, trial)) for trial in trials]
    longer = ""
    # Beside what is undecided the budget is said there.
    if report.recommendation.fixes and report.recommendation.open_proof is None:
        longer = _with_longer_budget(report, None)
    them = "it" if len(rows) == 1 else "them"
    return [
        KeyFigures(LIKELY, "not tried for want of time", rows),
        *sentences(f"More time tries {them}{longer}." if longer else ""),
    ]


def _likely_trials(report: Report) -> Sequence[Trial]:
    """Return untried trials that probably help, one of each set of fixes, the best first.

    Not those whose fixes the screen tells anyway: recommended, in the patch, or of the open proof.
    """
    together = report.recommendation
    shown = set(together.patch_fixes)
    shown.update(fix.fix for fix in together.fixes)
    if together.open_proof:
        shown.update(together.open_proof.fixes)
    trials: dict[tuple[str, ...], Trial] = {}
    for trial in sorted(filter(not_tried, report.trials), key=value_of, reverse=True):
        lacked_time = trial.lacked_time and (trial.p_helps or 0.0) >= _PROBABLY
        if lacked_time and not shown.issuperset(trial.fixes):
            trials.setdefault(trial.fixes.ids, trial)
    return list(trials.values())


def _treats(report: Report, trial: Trial) -> str:
    """Return what an untried fix may gain, and the finding that it treats."""
    parts = [f"{ratio(trial.expected)}x expected"] if trial.expected else []
    for finding in report.diagnosis.findings:
        if trial.fixes.keys().isdisjoint(finding.fixes):
            continue
        parts.append(f"treats {finding.check}")
        if finding.share_of_step is not None:
            parts.append(f"{percent(finding.share_of_step)} of the {step_of(report)}")
        break
    return ", ".join(parts)


def _with_longer_budget(report: Report, more_s: float | None) -> str:
    """Return with which budget the same command goes on; empty after an interruption or error."""
    ending = report.ending
    if report.interrupted or report.failure or ending is None:
        return ""
    needed_s = max(ending.budget_s, ending.after_s) + (more_s or ending.budget_s)
    return f": the same command with --budget {_minutes(needed_s)}m"
