"""The pages of a comparison and of a gate: two versions side by side, in the style of a run's."""

from dataclasses import asdict, replace
from typing import Any

from torchdoctor.reports import comparison as comparison_format
from torchdoctor.reports import gate as gate_format
from torchdoctor.reports import html
from torchdoctor.reports.pictures import Picture, steps_picture
from torchdoctor.reports.run_columns import read_measured
from torchdoctor.reports.time_parts import PHASE_COLOURS
from torchdoctor.schema import Interval, Report
from torchdoctor.schema.comparison import ComparedSide, Comparison
from torchdoctor.schema.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    clean,
    percent,
    seconds,
    shorten_left,
    speedup,
)
from torchdoctor.schema.gate import GateMetric, GateReport

_NAME = 24  # characters of a side's name
_GATE_AXIS = "faster ← 1x → slower"
_TONES = {"ok": "good", "worse": "bad", "perhaps slower": "bad"}


def comparison_page(comparison: Comparison, a: Report, b: Report) -> str:
    """Return the page of a comparison of these reports."""
    drawn = [_parts(comparison), _speedup(comparison)]
    steps = [steps_picture(report, read_measured(report)) for report in (a, b)]
    curves = [picture.drawn for picture in steps if picture.drawn is not None]
    # One clock and one scale for both.
    ends = {"to": "x", "top": "y"}
    reach = {
        end: max((max(curve[of]) for curve in curves), default=None) for end, of in ends.items()
    }
    for name, picture in zip("AB", steps, strict=True):
        figures = None if picture.drawn is None else {**picture.drawn, **reach}
        title = f"The time of every {comparison.unit} of {name}"
        drawn.append(replace(picture, key=f"steps-{name}", title=title, drawn=figures))
    return html.render(comparison_format.document(comparison), drawn)


def _parts(comparison: Comparison) -> Picture:
    """Return the step of A and of B on one scale, with the parts of each."""
    branches = comparison.parts_are == "branches"
    labels = SHARE_LABELS if branches else PHASE_LABELS
    colours = {} if branches else dict(zip(PHASE_LABELS, PHASE_COLOURS, strict=True))
    timed_parts = [part for part in comparison.parts if part.a_s or part.b_s]

    def row(label: str, side: ComparedSide, of: str) -> dict[str, Any]:
        spent_s = {part.name: getattr(part, of) or 0.0 for part in timed_parts}
        parts = [
            {
                "key": colours.get(name, name),
                "label": labels.get(name, name),
                "text": seconds(part_s),
                "share": part_s / (side.parts_s or side.step_s),
            }
            for name, part_s in spent_s.items()
        ]
        ends = {"low": side.low_s, "high": side.high_s, "ends": "spread"}
        name = comparison_format.named(side.name, _NAME)
        return {"label": f"{label}: {name}", "s": side.step_s, "parts": parts, **ends}

    rows = [row("A", comparison.a, "a_s"), row("B", comparison.b, "b_s")]
    sides = {"A": comparison.a, "B": comparison.b}.items()
    caption = " ".join(
        f"{letter}'s {comparison.unit}: {seconds(side.step_s)}, {side.basis}."
        for letter, side in sides
    )
    if timed_parts and timed_parts[0].change_s is not None:
        name = labels.get(timed_parts[0].name, timed_parts[0].name)
        times = f"{seconds(timed_parts[0].a_s)} in A, {seconds(timed_parts[0].b_s)} in B"
        caption += f" The part that changed most is {name}: {times}."
    title = f"Where a {comparison.unit}'s time goes, in A and in B"
    return Picture(key="time", title=title, caption=caption, drawn={"rows": rows})


def _row(label: str, figures: str, verdict: str, interval: Interval, tone: str) -> dict[str, Any]:
    named = {"label": label, "figures": figures, "verdict": verdict, "tone": tone}
    return {**named, "interval": asdict(interval), "pairs": []}


def _speedup(comparison: Comparison) -> Picture:
    title = "B's speed-up"
    gain = comparison.speedup
    verdict = comparison.verdict
    if gain is None:
        reason = "No interval is known without several launches of both."
        return Picture(key="trials", title=title, missing=reason)
    tone = {"faster": "good", "slower": "bad"}.get(verdict, "")
    rows = [_row("B against A", speedup(gain), verdict, gain, tone)]
    caption = "B is proven faster if its whole interval lies to the right of 1."
    return Picture(key="trials", title=title, caption=caption, drawn={"rows": rows})


def gate_page(report: GateReport) -> str:
    """Return the page of a gate."""
    return html.render(gate_format.document(report), [_pairs(report), _versions(report)])


def _pairs(report: GateReport) -> Picture:
    """Return the ratio of each pair and their interval, beside the tolerance."""
    title = "New against reference, pair by pair"
    time = _step_time(report)
    if time is None or time.ratio is None:
        return Picture(key="trials", title=title, missing="No ratio of the two was measured.")
    label, *cells, verdict = gate_format.row(time, report.unit)
    rows = [_row(label, cells[2], verdict, time.ratio, _TONES.get(time.verdict, ""))]
    rows[0]["pairs"] = report.pair_ratios
    allowed = time.tolerance or 0.0
    caption = f"The band is the tolerance of {percent(allowed)}. "
    caption += "The gate fails if the whole interval lies to the right of the band."
    if report.pair_ratios:
        caption += " Each small dot is one pair of launches."
    floor = {"low": 1.0, "estimate": 1.0, "high": 1.0 + allowed}
    drawn = {"rows": rows, "floor": floor, "axis": _GATE_AXIS}
    return Picture(key="trials", title=title, caption=caption, drawn=drawn)


def _step_time(report: GateReport) -> GateMetric | None:
    return next((metric for metric in report.metrics if metric.name == "step_time"), None)


def _versions(report: GateReport) -> Picture:
    """Return the time of both versions on one scale."""
    title = "The time of both versions"
    time = _step_time(report)
    if time is None or time.reference is None or time.new is None:
        return Picture(key="time", title=title, missing=f"No {report.unit} time was measured.")
    times = {f"reference: {report.reference}": time.reference, "new": time.new}
    rows = [{"label": shorten_left(clean(version), _NAME), "s": s} for version, s in times.items()]
    caption = (
        f"The bars are the time per {gate_format.per(report)}, a mean over the launches of each."
    )
    return Picture(key="time", title=title, caption=caption, drawn={"rows": rows})
