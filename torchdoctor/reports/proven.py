"""What is proven, for the first screen: the recommended set, or one trial that is faster alone.

Each with its figure, how it was proven, and how to apply it: by a command, or by code to copy. And
the patches that were tried and did not hold.
"""

import textwrap
from collections.abc import Sequence

from torchdoctor.advice import catalogue
from torchdoctor.queries.outcomes import is_proven
from torchdoctor.reports import handed_out, other_load, screen_room, undecided, wording
from torchdoctor.reports.could_help import offered
from torchdoctor.reports.document import Block, Code, KeyFigures, Sentence, sentences
from torchdoctor.reports.screen_room import MOST_FIXES, short_name
from torchdoctor.reports.trial_rows import CORRECTED, training, verdict_of
from torchdoctor.reports.undecided import SEEMS_FASTER, UNPROVEN
from torchdoctor.reports.vocabulary import compared
from torchdoctor.reports.wording import LONGEST_PLACE
from torchdoctor.schema import Interval, RecommendedFix, Report, Trial, set_of
from torchdoctor.schema.figures import clean, counted, memory_change, place, speedup, speedup_parts

_MOST_CODE = 8  # lines
_LONGEST_COMMAND = 60  # characters of one that is shown beside another
_MOST_REJECTED = 2
_LONGEST_REJECTED = 200  # characters of a sentence
RECOMMENDED = "RECOMMENDED"
BY_HAND = "RECOMMENDED, BY HAND"
FASTER_ALONE = "FASTER, measured by itself"
NOT_RECOMMENDED = "Faster, but not recommended"
_TRAINING = {"rounding": "the same but for rounding", "seed noise": "within seed noise"}


def recommended(report: Report, folder: str) -> list[Block]:
    """Return the recommended set: its figure, its fixes with their places, how to apply it."""
    together = report.recommendation
    title, figure = _title_of_recommended(report)
    tone = "good" if title.startswith(RECOMMENDED) else "strong"
    rows: list[tuple[str, str]] = []
    for fix in together.fixes[:MOST_FIXES]:
        where = place(fix.location, report.workload.cwd, LONGEST_PLACE)
        memory = "" if rows else _change_of_memory(report)  # of all fixes: said once
        rows.append((short_name(fix.as_set), "   ".join(filter(None, [where, memory]))))
    return [
        KeyFigures(title, figure, rows, tone),
        *sentences(wording.beyond_its_part(together)),
        *_to_apply(report, folder),
    ]


def _change_of_memory(report: Report) -> str:
    before = report.baseline.peak_memory_bytes
    after = report.recommendation.peak_memory_bytes
    if before is None or after is None:
        return ""
    return f"{memory_change(after - before)} memory"


def _title_of_recommended(report: Report) -> tuple[str, str]:
    """Return the heading of the set with its figure; without proof it is not recommended."""
    together = report.recommendation
    interval = together.speedup
    if interval is None:
        return RECOMMENDED, "not measured all together"
    if interval.low <= 1:
        return UNPROVEN, f"measured {speedup(interval)}"
    busy = ", on a busy machine" if other_load.is_busy(report) else ""
    if not is_proven(interval, together.pairs):
        pairs = counted(together.pairs, "pair")
        return SEEMS_FASTER, f"{speedup(interval)} in {pairs} of launches{busy}"
    without_patch = not together.patch or handed_out.rejected_patches(report)
    title = BY_HAND if without_patch and together.handed_out != "patch" else RECOMMENDED
    return title, f"{_faster(report, interval, together.numerics)}{busy}"


def _faster(report: Report, interval: Interval | None, numerics: str | None) -> str:
    """Return how much faster, and whether training stays the same."""
    estimate, bounds = speedup_parts(interval)
    stays = training(numerics)
    if stays == CORRECTED:  # wrong results are no pace to beat
        return f"{compared(report)} corrected, {handed_out.as_fast(interval)}"
    return f"{estimate} faster {bounds}, {compared(report)} {_TRAINING.get(stays, stays)}"


def _to_apply(report: Report, folder: str) -> list[Block]:
    """Return how the recommended set was proven, and how to apply it: by a patch or by hand."""
    together = report.recommendation
    commands = handed_out.patch_commands(report, together.fixes, folder)
    if not together.patch or (report.run_folder and not commands):
        how = "There is no patch to apply: the figure is of fixes switched on at run time."
        return [*sentences(how), *_instructions(together.fixes)]
    edited = handed_out.applied_sets(report)
    run = handed_out.patch_run(report, set_of(edited))
    how = handed_out.ran(report, run) if run is not None else ""
    if run is not None and run.proven and run.speedup == together.speedup:
        launches = f"{counted(run.pairs, 'pair')} of launches"
        how = f"This patch was applied to a copy and ran: the figure is its own, of {launches}."
    left_out = [fix for fix in together.fixes if fix not in edited]
    return [*sentences(how), *_command(commands), *_instructions(left_out)]


def _command(commands: Sequence[handed_out.PatchCommand]) -> list[Block]:
    """Return the first command, to apply a diff or only to see it."""
    if not commands:
        return []
    command = commands[0]
    blocks: list[Block] = [Sentence(f"{command.title}   {command.apply or command.show}")]
    if command.apply is not None and len(command.show) < _LONGEST_COMMAND:
        blocks += sentences(f"See it:     {command.show}", tone="soft")
    return blocks


def _instructions(fixes: Sequence[RecommendedFix]) -> list[Block]:
    """Return the code of fixes to change by hand, as far as there is room for it."""
    blocks: list[Block] = []
    room = _MOST_CODE
    instructed = [fix for fix in fixes if fix.instruction]
    for fix in instructed[:MOST_FIXES]:
        lines = clean(fix.instruction or "").strip("\n").split("\n")
        fits = len(lines) <= room and max(map(len, lines)) <= screen_room.WIDTH
        where = ":" if fits else ": its code is in the details."
        blocks.append(Sentence(f"By hand, {clean(catalogue.name(fix.fix))}{where}"))
        if fits:
            blocks.append(Code("\n".join(lines)))
            room -= len(lines)
    return blocks


def best_alone(report: Report) -> Trial | None:
    """Return the trial that is proven to be fastest and keeps results, if there is any."""
    faster = [
        trial
        for trial in report.trials
        if verdict_of(trial) == "faster" and trial.numerics != "changed"
    ]
    return max(faster, key=lambda trial: trial.speedup.low if trial.speedup else 0.0, default=None)


def alone(report: Report, best: Trial, folder: str) -> list[Block]:
    """Return the best fix that is faster by itself, where no set could be recommended."""
    several = len(best.fixes) > 1
    unknown = several or best.numerics == "not-comparable"
    title = NOT_RECOMMENDED if unknown else FASTER_ALONE
    figure = _faster(report, best.speedup, best.numerics)
    fixes = offered(report, best)
    return [
        KeyFigures(title, figure, [(short_name(best.fixes), "")]),
        *sentences(
            "Which of its fixes gain is not known yet." if several else "",
            wording.beyond_its_part(best),
        ),
        *undecided.more_time(report),
        *_command(handed_out.patch_commands(report, fixes, folder)),
        *_instructions([fix for fix in fixes if not fix.edit][:1]),
    ]


def rejected(report: Report) -> list[Block]:
    """Return what was tried as a patch and is not handed out, in a sentence each."""
    patches = handed_out.rejected_patches(report)
    most = 1 if report.recommendation.open_proof else _MOST_REJECTED
    texts = [handed_out.rejected_sentence(patch, False) for patch in patches[:most]]
    shown = [textwrap.shorten(text, _LONGEST_REJECTED, placeholder=" …") for text in texts]
    more = len(patches) - most
    if more > 0:
        shown.append(f"{counted(more, 'more patch', 'more patches')} did not hold: --details.")
    return sentences(*shown)
