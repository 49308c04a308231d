"""What stands first in every JSON: the answer, and the exact command that comes next."""

import math
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from torchdoctor.advice import catalogue
from torchdoctor.queries.outcomes import is_proven
from torchdoctor.reports import efficiency, handed_out, other_load, wording
from torchdoctor.reports.document import prose
from torchdoctor.reports.verdict import statements
from torchdoctor.schema import Location, RecommendedFix, Report, set_of
from torchdoctor.schema.comparison import Comparison
from torchdoctor.schema.figures import clean, counted, fixes_with_settings, place, speedup
from torchdoctor.schema.gate import GateReport
from torchdoctor.schema.summary import MOST_BYTES, NextCommand, SummarizedFixes, Summary

_LONGEST, _SHORTEST = 400, 60  # characters of a text; where all are too long, it is halved
_MOST_FIXES = 3
_BUDGET = re.compile(r"--budget \S+")
_MINUTE_S = 60
CELL_MAGIC = "%%torchdoctor"  # begins a notebook's cell, whose program no command line has
_CELL_AGAIN = "Begin the cell with this line, and run it again."
_COMMAND = re.compile(r"^torchdoctor [a-z-]+")
_AS_JSON = " --format json"


def summarized(report: Report) -> Report:
    """Return the report with its summary, made anew: what is told may have been moved since."""
    return replace(report, summary=of_report(report))


def with_json(summary: Summary) -> Summary:
    """Return the summary for one who asked for JSON: the next command prints JSON as well."""
    following = summary.next
    return summary if following is None else replace(summary, next=answering_json(following))


def answering_json(following: NextCommand) -> NextCommand:
    """Return the same command with `--format json`, which each of ours takes."""
    if _AS_JSON in following.command:
        return following
    command = _COMMAND.sub(lambda its: its[0] + _AS_JSON, following.command)
    return replace(following, command=command)


def of_report(report: Report) -> Summary:
    """Return the answer of a run, or of traces."""
    diagnosis = report.diagnosis
    fixes = report.recommendation.fixes
    first = next(iter(statements(report)), None)
    where = first.place if first is not None and diagnosis.verdict.opening else None
    recommended = _recommended(report) if fixes else None
    shown = fixes or _offered(report)
    commands = handed_out.patch_commands(report, shown)
    return _fitting(
        Summary(
            bottleneck=diagnosis.bottleneck,
            sentence=prose(wording.first_sentence(clean(diagnosis.sentence.strip()))),
            location=_place(where or diagnosis.verdict.place, report),
            cause=_cause(report),
            cure=_cure(shown, bool(fixes)),
            recommendation=recommended,
            figures=efficiency.line(report, with_samples=True) or None,
            patch=commands[0].show if commands else None,
            next=_next(report, shown, commands),
        )
    )


def is_of_cell(report: Report) -> bool:
    """Return True where a cell of an open notebook was measured: no command can start it."""
    return any(command.startswith(CELL_MAGIC) for command in report.reproduce)


def with_summary(report: GateReport) -> GateReport:
    """Return the gate's report with its summary."""
    return replace(report, summary=of_gate(report))


def of_gate(report: GateReport) -> Summary:
    """Return the answer of a gate."""
    following = None
    if report.verdict == "slower" and report.workload.command:
        command = f"torchdoctor run -- {shlex.join(report.workload.command)}"
        following = NextCommand(command=command, why="It names what takes the new version's time.")
    return _fitting(Summary(sentence=clean(report.sentence), next=following))


def of_comparison(compared: Comparison) -> Summary:
    """Return the answer of a comparison."""
    new = next((finding for finding in compared.findings if finding.change == "new"), None)
    following = None
    if new is not None:
        command = f"torchdoctor explain {shlex.quote(new.check)}"
        following = NextCommand(command=command, why="B has this cost and A does not.")
    return _fitting(
        Summary(
            bottleneck=new.branch if new else None,
            sentence=clean(compared.sentence),
            location=(new.b_place or None) if new else None,
            cause=_of_check(new.check, [evidence.sentence for evidence in new.evidence])
            if new
            else None,
            next=following,
        )
    )


def _offered(report: Report) -> list[RecommendedFix]:
    """Return what is offered beside no recommendation, the confirmed first."""
    offered = [fix for fix in report.recommendation.also_offered if fix.aim != "training"]
    return sorted(offered, key=lambda fix: fix.standing not in ("confirmed", "together"))


def _recommended(report: Report) -> SummarizedFixes:
    chosen = report.recommendation
    pairs = f"{counted(chosen.pairs, 'pair')} of launches"
    beside = " side by side" if report.baseline.measured == "side by side" else ""
    edited = chosen.handed_out == "patch"
    run = handed_out.patch_run(report, set_of(chosen.fixes)) if edited else None
    how = "as a patch applied to a copy" if edited else "switched on at run time"
    if run is not None and run.pairs < chosen.pairs:
        how = "at run time and as a patch applied to a copy"
    busy = ", on a busy machine" if other_load.is_busy(report) else ""
    parts = [
        f"measured {how}, {pairs}{beside}{busy}",
        handed_out.training_words(report, chosen.numerics),
    ]
    if run is not None and not run.proven:
        parts.append(f"the patch alone is not proven ({counted(run.pairs, 'pair')})")
    elif not is_proven(chosen.speedup, chosen.pairs):
        parts.append("not proven")
    names = fixes_with_settings(set_of(chosen.fixes))
    return SummarizedFixes(fixes=names, speedup=chosen.speedup, evidence="; ".join(parts))


def _place(location: Location | None, report: Report) -> str | None:
    """Return "train.py:12", from the program's folder."""
    return (place(location, report.workload.cwd) or None) if location is not None else None


def _cause(report: Report) -> str | None:
    """Return what explains the bottleneck, and the waste that the verdict closes with."""
    diagnosis = report.diagnosis
    finding = diagnosis.explaining
    causes = [] if finding is None else [finding]
    closing = {quote.check for quote in diagnosis.verdict.closing}
    causes += [
        candidate
        for candidate in diagnosis.findings
        if candidate.check in closing and candidate != finding
    ]
    sentences = [
        _of_check(cause.check, [proof.sentence for proof in cause.evidence]) for cause in causes
    ]
    return " ".join(sentences) or diagnosis.detail


def _of_check(check: str, evidence: Sequence[str]) -> str:
    return f"{check}: {prose(clean(evidence[0]))}" if evidence else check


def _cure(fixes: Sequence[RecommendedFix], measured: bool) -> str | None:
    if not fixes:
        return None
    names = [
        f"{clean(catalogue.name(fix.fix))} ({fixes_with_settings(fix.as_set)})" for fix in fixes
    ]
    more = f", and {len(names) - _MOST_FIXES} more" if len(names) > _MOST_FIXES else ""
    return f"{'' if measured else 'not measured: '}{', '.join(names[:_MOST_FIXES])}{more}"


def _next(
    report: Report, fixes: Sequence[RecommendedFix], commands: Sequence[handed_out.PatchCommand]
) -> NextCommand | None:
    """Return the command that is worth running now; None where nothing is left to do."""
    again = next(iter(report.reproduce), None) if report.elapsed_s is not None else None
    if report.recommendation.fixes:
        return _apply(report, commands)
    again_in_cell = f" {_CELL_AGAIN}" if is_of_cell(report) else ""
    if again and (report.interrupted or report.failure is not None):
        ended = "was interrupted" if report.interrupted else "ended with an error of the program"
        why = f"The run {ended}: nothing is decided yet.{again_in_cell}"
        return NextCommand(command=again, why=why)
    if again and " --no-fixes" in again:
        command = again.replace(" --no-fixes", "", 1)
        why = f"No fix was tried, because of --no-fixes.{again_in_cell}"
        return NextCommand(command=command, why=why)
    if again and _more_time_decides(report):
        minutes = math.ceil(_needed_s(report) / _MINUTE_S)
        command = _BUDGET.sub(f"--budget {minutes}m", again, count=1)
        untried = report.ending is not None and report.ending.needed_s is not None
        unfit = "No fix was tried: none fits" if untried else "What is worth measuring did not fit"
        why = f"{unfit} in the time.{again_in_cell}"
        return NextCommand(command=command, why=why)
    if fixes:
        command = f"torchdoctor explain {shlex.quote(fixes[0].fix)}"
        why = "It says what to change by hand, and at which risk; its gain was not measured here."
        return NextCommand(command=command, why=why)
    if report.diagnosis.detail in catalogue.checks():
        command = f"torchdoctor explain {shlex.quote(report.diagnosis.detail or '')}"
        return NextCommand(command=command, why="No fix is known for it: its page says what to do.")
    return None


def _apply(report: Report, commands: Sequence[handed_out.PatchCommand]) -> NextCommand:
    apply = next((command.apply for command in commands if command.apply is not None), None)
    if apply is not None:
        figures = speedup(report.recommendation.speedup)
        return NextCommand(command=apply, why=f"The patch ran on a copy: {figures}.")
    if commands:
        why = "It shows the change, which is not proven as a patch."
        return NextCommand(command=commands[0].show, why=why)
    folder = shlex.quote(report.run_folder or ".")
    why = "No patch of it is handed out: the details have the code to change by hand."
    return NextCommand(command=f"torchdoctor report {folder} --details", why=why)


def _more_time_decides(report: Report) -> bool:
    ending = report.ending
    if ending is None:
        return _enough_s(report) is not None
    if ending.reason in ("time", "busy machine") or ending.needed_s is not None:
        return True
    return report.recommendation.open_proof is not None


def _needed_s(report: Report) -> float:
    """Return a budget that decides what is open."""
    ending = report.ending
    proof = report.recommendation.open_proof
    if ending is None:
        return _enough_s(report) or 2 * (report.elapsed_s or _MINUTE_S)
    if ending.needed_s is not None:
        return ending.needed_s
    more_s = proof.seconds if proof is not None and proof.seconds is not None else ending.budget_s
    return max(ending.budget_s, ending.after_s) + more_s


def _enough_s(report: Report) -> float | None:
    """Return a budget in which a pair of launches fits, where not even one did; None: it did."""
    why = report.no_trials
    if why is None or why.fact != "budget-too-short":
        return None
    return float(why.values["enough_s"])


def _fitting(summary: Summary) -> Summary:
    """Return it with its texts as long as fits into 2 KB; commands are never cut."""
    longest = _LONGEST
    while True:
        short = _shortened(summary, longest)
        size = len(msgspec.json.format(msgspec.json.encode(short), indent=2))
        if size + len(_AS_JSON) <= MOST_BYTES:
            return short
        if longest < _SHORTEST:  # it is a command that is long
            return replace(short, patch=None, next=None)
        longest //= 2


def _shortened(summary: Summary, longest: int) -> Summary:
    def cut(text: str | None) -> str | None:
        return textwrap.shorten(text, longest, placeholder=" …") if text else text

    chosen = summary.recommendation
    if chosen is not None:
        chosen = replace(chosen, fixes=cut(chosen.fixes) or "", evidence=cut(chosen.evidence) or "")
    return replace(
        summary,
        sentence=cut(summary.sentence) or "",
        cause=cut(summary.cause),
        cure=cut(summary.cure),
        recommendation=chosen,
        figures=cut(summary.figures),
    )
