"""What a gate says in one or two sentences. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchdoctor.gate.decision import FAIL_FINAL, blind_spot, means_say_slower, share_text, state
from torchdoctor.reports.gate import figure, named
from torchdoctor.schema import Interval
from torchdoctor.schema.figures import percent
from torchdoctor.schema.gate import GateMetric
from torchdoctor.schema.units import several

_SAYS_NOTHING = 20.0  # an upper end like this, of two or three pairs, is no figure


@dataclass(frozen=True, kw_only=True)
class Basis:
    """What a verdict rests on, beside the rows."""

    why: str = ""  # an undecided gate is undecided; a sentence
    p: float | None = None  # two-sided, of no difference
    decides: str = ""  # what would decide a pass that proves little; a sentence
    typical: bool = False  # typical steps decide, those that take far longer are not in the ratio
    mean: Interval | None = None  # new / reference of the mean step, where that does not decide
    unit: str = "step"  # what a step is called


def sentence(
    rows: Sequence[GateMetric], verdict: str, reference: str, basis: Basis = Basis()
) -> str:
    """Return the verdict in words; `rows` are those of the table, step time first."""
    so_far = _times(rows[0].ratio, f"the {basis.unit} time")
    if verdict == "inconclusive":
        why = f": {basis.why}" if basis.why else "."
        return f"Not decided against {reference}{why}" + f" So far: {so_far}." * bool(so_far)
    if any(row.verdict == "worse" for row in rows):
        return _worse(rows, reference, basis.unit)
    return _passed(rows[0], verdict, reference, so_far, basis)


def _passed(time: GateMetric, verdict: str, reference: str, so_far: str, basis: Basis) -> str:
    """Return how much a pass proves."""
    figures = f": {so_far}" if so_far else ""
    by_itself = state(verdict, time.ratio, time.tolerance)
    long_steps = ""
    if means_say_slower(basis.mean, time.tolerance):
        long_steps = (
            f"All {several(basis.unit)} together, the long ones included, take "
            f"{_times(basis.mean, 'as long') or 'clearly longer'}, which a gate does not fail for: "
            "look for work that only some of them do (a checkpoint, a log, an evaluation), or for "
            "other load on the machine."
        )
    unseen = blind_spot(time.ratio) or 0.0
    if by_itself == "perhaps slower":
        proof = f" (p = {basis.p:.2g}, and a gate fails below {FAIL_FINAL:g})" if basis.p else ""
        first = so_far or f"The {basis.unit} time is above that"
        told = [f"{first} of {reference}, which is not proven{proof}.", long_steps, basis.decides]
    elif long_steps:
        typical = (
            f"No slow-down of the typical {basis.unit} against {reference} is proven{figures}."
        )
        told = [typical, long_steps]
    elif by_itself == "not seen well enough":
        missed = f"one of up to {share_text(unseen)}" if so_far else "hardly any"
        told = [
            f"No slow-down against {reference} is proven, but {missed} would "
            f"{'not ' * bool(so_far)}have been seen in this time{figures}.",
            basis.decides,
        ]
    else:
        told = [f"Not slower than {reference} beyond the tolerance{figures}."]
        of = f" of the typical {basis.unit}" if basis.typical else ""
        if so_far and unseen:
            told.append(f"A slow-down{of} of more than {share_text(unseen)} is ruled out.")
        elif so_far:
            told.append(f"Any slow-down{of} is ruled out.")
    return " ".join(filter(None, told))


def _worse(rows: Sequence[GateMetric], reference: str, unit: str) -> str:
    """Return each row that fails, with what it was, is and may be."""
    names = []
    parts = []
    for row in rows:
        # The rate is the step time's figure, inverted.
        if row.verdict != "worse" or row.name == "samples_per_s":
            continue
        names.append(named(row, unit))
        old, new = figure(row.reference, row, unit), figure(row.new, row, unit)
        parts.append(f"{names[-1]} {old} -> {new}")
        if times := _times(row.ratio, "as long"):
            parts[-1] += f", {times}"
        if row.tolerance is not None:
            allowed = f"{percent(row.tolerance)} more"
            if row.unit == "share":
                allowed = f"{100 * row.tolerance:.3g} points of the {unit} more"
            parts[-1] += f", allowed {allowed}"
    return f"Worse than {reference} in {', '.join(names)}: {'; '.join(parts)}."


def _times(ratio: Interval | None, noun: str) -> str:
    """Return "1.020 times the step time (95 % interval ...)"; "" where that is no figure."""
    if ratio is None or ratio.high >= _SAYS_NOTHING:
        return ""
    return f"{ratio.estimate:.3f} times {noun} (95 % interval {ratio.low:.3f} to {ratio.high:.3f})"
