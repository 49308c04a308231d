"""What a gate says in one or two sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchdoctor.gate.decision import FAIL_FINAL, means_say_slower, state
from torchdoctor.reports.gate import figure
from torchdoctor.words import Interval
from torchdoctor.words.figures import percent
from torchdoctor.words.gate import GateMetric

_LONG = 1.02  # the mean beyond the typical step: some steps alone became longer
_SAYS_NOTHING = 20.0  # an upper end like this, of two or three pairs, is no figure


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a verdict rests on, beside the rows.

    why: an undecided gate is undecided; a sentence.
    p: two-sided, of no difference.
    decides: what would decide a pass that proves little; a sentence.
    typical: typical steps decide, those that take far longer are not in the ratio.
    mean: new / reference of the mean step, where that does not decide.
    """

    why: str = ""
    p: float | None = None
    decides: str = ""
    typical: bool = False
    mean: Interval | None = None


def sentence(
    rows: Sequence[GateMetric], verdict: str, reference: str, basis: Basis | None = None
) -> str:
    """Return the verdict in words.

    Args:
        rows: of the table, step time first.
        verdict: of the gate.
        reference: what to call it.
        basis: what else is known.
    """
    basis = basis or Basis()
    time = rows[0]
    so_far = _times(time.ratio, "the step time")
    if verdict == "inconclusive":
        reason = f": {basis.why}" if basis.why else "."
        return f"Not decided against {reference}{reason}" + (
            f" So far: {so_far}." if so_far else ""
        )
    if any(row.verdict == "worse" for row in rows):
        return _worse(rows, reference)
    long_steps = ""
    if means_say_slower(basis.mean, time.tolerance):
        long_steps = _in_the_mean(basis.mean, time.ratio)
    by_itself = state(verdict, time.ratio, time.tolerance)
    if long_steps and by_itself != "perhaps slower":
        typical = f": {so_far}" if so_far else ""
        return _joined(
            f"No slow-down of the typical step against {reference} is proven{typical}.", long_steps
        )
    if by_itself == "perhaps slower":
        bound = (
            ""
            if basis.p is None
            else f" (p = {basis.p:.2g}, and a gate fails below {FAIL_FINAL:g})"
        )
        measured = so_far or "The step time is above that"
        return _joined(
            f"{measured} of {reference}, which is not proven{bound}.", long_steps, basis.decides
        )
    unseen = max(time.ratio.high - 1.0, 0.0) if time.ratio is not None else 0.0
    if by_itself == "not seen well enough":
        missed = f" but one of up to {_percent(unseen)} would not have been seen in this time"
        missed = missed if so_far else " but hardly any would have been seen in this time"
        return _joined(
            f"No slow-down against {reference} is proven,{missed}"
            + (f": {so_far}." if so_far else "."),
            basis.decides,
        )
    whole = f"Not slower than {reference} beyond the tolerance"
    if not so_far:
        return f"{whole}."
    of = " of the typical step" if basis.typical else ""
    known = f"A slow-down{of} of more than {_percent(unseen)}" if unseen else f"Any slow-down{of}"
    return f"{whole}: {so_far}. {known} is ruled out."


def _worse(rows: Sequence[GateMetric], reference: str) -> str:
    """Return each row that fails, with what it was, is and may be."""
    # The rate is the step time's figure, inverted.
    worse = [row for row in rows if row.verdict == "worse" and row.name != "samples_per_s"]
    named = ", ".join(_name(row) for row in worse)
    parts = []
    for row in worse:
        values = f"{_name(row)} {figure(row.reference, row)} -> {figure(row.new, row)}"
        times = _times(row.ratio, "as long")
        allowed = "" if row.tolerance is None else f", allowed {_allowed(row)}"
        parts.append(f"{values}{f', {times}' if times else ''}{allowed}")
    return f"Worse than {reference} in {named}: {'; '.join(parts)}."


def _allowed(row: GateMetric) -> str:
    assert row.tolerance is not None
    if row.unit == "share":
        return f"{100 * row.tolerance:.3g} points of the step more"
    return f"{percent(row.tolerance)} more"


def _in_the_mean(mean: Interval | None, typical: Interval | None) -> str:
    if mean is not None and typical is not None and mean.estimate < _LONG * typical.estimate:
        taken = _times(mean, "as long") or "clearly longer"
        return f"All steps together take {taken}, the typical one about as much: likely slower."
    return (
        "All steps together, the long ones included, take "
        f"{_times(mean, 'as long') or 'clearly longer'}, which a gate does not fail for: look for "
        "work that only some steps do (a checkpoint, a log, an evaluation), or for other load on "
        "the machine."
    )


def _times(ratio: Interval | None, noun: str) -> str:
    """Return "1.020 times the step time (95 % interval ...)"; "" where that is no figure."""
    if ratio is None or ratio.high >= _SAYS_NOTHING:
        return ""
    return f"{ratio.estimate:.3f} times {noun} (95 % interval {ratio.low:.3f} to {ratio.high:.3f})"


def _name(row: GateMetric) -> str:
    return row.name.replace("_", " ")


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share > 0.1 else 1}f} %"
