"""What holds the step back, as the first screen says it: the verdict, and what proves it."""

import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path

from torchdoctor.reports import own_code
from torchdoctor.reports.document import Block, sentences
from torchdoctor.reports.verdict import Statement, quoted, statements
from torchdoctor.reports.wording import LONGEST_PLACE
from torchdoctor.schema import Evidence, Report
from torchdoctor.schema.figures import clean, place

_LONGEST_PROOF = 150  # characters: two lines of a narrow terminal
_NOT_PROFILED = "No profiler window fitted into the budget: its operators are not known."


def cause(report: Report) -> list[Block]:
    """Return the cause with its place, and what proves it, each at most two lines long."""
    verdict = statements(report)
    first, *rest = [_placed(statement, report) for statement in verdict] or [""]
    proof = _proof(report, verdict)
    not_profiled = _not_profiled(report)
    shown_facts = quoted(report.diagnosis) + ([proof] if proof is not None else [])
    shown = _shortened(proof) if proof is not None else not_profiled
    larger = own_code.large_findings(report, shown_facts)
    beside = sentences(" ".join(rest), shown, *larger, _of_which(report), tone="soft")
    return [*sentences(first, tone="strong"), *beside]


def _of_which(report: Report) -> str:
    """Return which of several traces the screen is of."""
    trace = report.trace
    if trace is None or trace.of_traces < 2:
        return ""
    rank = "" if trace.rank is None else f"rank {trace.rank}, "
    return f"What this screen says of a step is of {rank}{clean(Path(trace.path).name)}."


def _placed(statement: Statement, report: Report) -> str:
    """Return a sentence with the place that it is about, where that is known."""
    sentence = clean(statement.sentence)
    where = place(statement.place, report.workload.cwd, LONGEST_PLACE)
    return f"{sentence.removesuffix('.')} ({where})." if where else sentence


def _not_profiled(report: Report) -> str:
    """Return that no window was recorded, where nothing was found for that reason; or ""."""
    is_unprofiled = report.steps is not None and report.trace is None
    return _NOT_PROFILED if is_unprofiled and report.diagnosis.explaining is None else ""


def _proof(report: Report, verdict: Sequence[Statement]) -> Evidence | None:
    """Return a fact of the finding behind the verdict that the verdict has not said."""
    finding = report.diagnosis.explaining
    if finding is None:
        return None
    repeated = quoted(report.diagnosis)
    further = [
        evidence for evidence in finding.evidence if not any(evidence is fact for fact in repeated)
    ]
    shares = {round(share, 2) for statement in verdict for share in statement.shares}
    placed = [fact for fact in further if fact.location is not None]
    news = [fact for fact in further if not _repeats(fact, shares)]
    return next(iter(placed or news), None)


def _shortened(proof: Evidence) -> str:
    return textwrap.shorten(clean(proof.sentence), _LONGEST_PROOF, placeholder=" …")


def _repeats(fact: Evidence, shares: Collection[float]) -> bool:
    """Return True if a fact states nothing but a share that has been said."""
    return not fact.values and fact.share is not None and round(fact.share, 2) in shares
