"""The first screen of a report, at most 40 lines: what changes a decision; all else is details.

From top to bottom: a failure and the cause; the answer; what else ran on the machine; the trials;
the parts of a step; what weakens all of it. The answer takes the lines that it needs, and the more
these are, the fewer trials and warnings are shown.

The answer is the first of these that there is: the recommended set or the one trial that is proven
(`proven.py`), what could help where nothing was measured (`could_help.py`), what is still open
(`undecided.py`). Beside it stand patches that were rejected and what probably helps.
"""

import textwrap
from collections.abc import Sequence

from torchdoctor.reports import (
    could_help,
    network,
    other_load,
    own_code,
    proven,
    screen_room,
    step_shown,
    steps_found,
    trial_table,
    undecided,
    wording,
)
from torchdoctor.reports.cause import cause
from torchdoctor.reports.document import Block, Section, prose, sections, sentences
from torchdoctor.schema import Note, Report
from torchdoctor.schema.figures import clean, duration

_MOST_TRIALS = 7
_FEWEST_TRIALS = 2
_FEW_LINES = 7  # an answer of more leaves room for fewer trials
_FEW_ABOVE = 5  # lines of cause and load, beyond which each takes the room of a trial
_MOST_BEWARE = 2
_MANY_LINES = 14  # an answer of more leaves room for one warning
_LONGEST_WARNING = 150  # characters: two lines of a narrow terminal
_MOST_LIKELY = 3
_WHOLE_BUDGET = 0.9
_ENDED_EARLY = {
    "time": ": what is worth measuring takes longer than the time that was left",
    "decided": ": no further fix promised a gain that is worth the rest",
}


def screen(report: Report, folder: str) -> list[Section]:
    """Return the sections of the first screen; commands name paths from the reader's folder."""
    above = [*sentences(wording.failure(report), tone="bad"), *cause(report)]
    answer = _answer(report, folder)
    load = sentences(other_load.held(report), network.sent(report.network), tone="bad")
    lines = screen_room.lines_on_screen(answer)
    most_trials = _room_for_trials(lines, screen_room.lines_on_screen([*above, *load]))
    most_beware = 1 if lines > _MANY_LINES else _MOST_BEWARE
    return sections(
        ("", above),
        ("", [*answer, *_ending(report)]),
        ("", load),
        ("", trial_table.blocks(report, most_trials)),
        ("", step_shown.blocks(report)),
        ("", _beware(report, most_beware)),
    )


def _room_for_trials(answer_lines: int, other_lines: int) -> int:
    """Return how many trials are shown; each may take two lines."""
    most = _MOST_TRIALS
    most -= max(0, answer_lines - _FEW_LINES) * 2 // 3
    most -= max(0, other_lines - _FEW_ABOVE)
    return max(most, _FEWEST_TRIALS)


def _answer(report: Report, folder: str) -> list[Block]:
    """Return what to change, or why nothing can be recommended, and what only the user can do."""
    lines = own_code.blocks(report)
    to_do: list[Block] = []
    if not lines:  # what is known of a line is said there: other advice would only mislead
        to_do = could_help.about_the_cause(report)
    return [*_main_answer(report, folder), *lines, *to_do]


def _main_answer(report: Report, folder: str) -> list[Block]:
    """Return the answer that there is, the most certain first."""
    beside = _beside(report)
    if report.recommendation.fixes:
        return [*proven.recommended(report, folder), *beside, *could_help.by_hand(report)]
    best = proven.best_alone(report)
    if best is not None:
        return [*proven.alone(report, best, folder), *beside]
    if report.no_trials_reason or not report.trials:
        return could_help.not_measured(report)
    open_answer: Sequence[Block] = []
    if report.recommendation.open_proof is None:
        open_answer = undecided.blocks(report, folder)
    return [*open_answer, *beside, *could_help.by_hand(report)]


def _beside(report: Report) -> list[Block]:
    """Return rejected patches, the set whose proof is open, and fixes that are likely to help."""
    rejected = proven.rejected(report)
    open_proof = undecided.open_proof(report)
    likely: list[Block] = []
    if not (rejected and open_proof):  # else there is no room: the details have the candidates
        likely = undecided.likely(report, 1 if rejected or open_proof else _MOST_LIKELY)
    if report.recommendation.fixes:
        return [*rejected, *open_proof, *likely]
    return [*open_proof, *rejected, *likely]


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


def _beware(report: Report, most: int) -> list[Block]:
    """Return what weakens the answer above, each in one sentence; the details have all of it."""
    doubts = [*steps_found.unobserved(report), *report.beware]
    warnings = [wording.first_sentence(clean(doubt)) for doubt in doubts]
    if report.interrupted:
        warnings.insert(0, "The run was interrupted: this is what was measured until then.")
    notes: list[Block] = []
    for warning in warnings[:most]:
        text = textwrap.shorten(warning, _LONGEST_WARNING, placeholder=" …")
        notes.append(Note(severity="beware", sentence=prose(text)))
    return notes
