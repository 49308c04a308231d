"""A comparison as text of at most 80 columns and as Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.reports.columns import laid_out
from torchdoctor.reports.wrapping import wrapped
from torchdoctor.words.comparison import (
    ComparedFigure,
    ComparedSide,
    Comparison,
    FindingChange,
    OperatorChange,
)
from torchdoctor.words.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    clean,
    memory,
    percent,
    seconds,
    speedup,
)

_EVIDENCE_LINES = 2
_CROSSED = {"new": "now above its threshold", "gone": "now below its threshold"}
_CHANCE = {  # what stands above the changes of a step whose time did not change
    "same": "The step takes as long: none of these changed its time.",
    "unclear": "No change of the step's time is proven: these may be chance.",
}
_SAME = 0.005  # relative; below it a figure did not change


@dataclass(frozen=True, kw_only=True)
class Section:
    """A titled table (the first row its header), or a list where `table` is empty."""

    title: str
    table: list[list[str]]
    lines: list[str]
    note: str = ""  # above them


def sections(found: Comparison) -> list[Section]:
    """Everything below the verdict; empty parts left out."""
    chance = _CHANCE.get(found.verdict, "")
    parts = [
        Section(title="Step time", table=_step_rows(found), lines=_interval_line(found)),
        Section(title=_parts_title(found), table=_part_rows(found), lines=[]),
        Section(
            title="Findings",
            table=[],
            lines=[_finding(one) for one in found.findings],
            note=chance,
        ),
        Section(title="Operators, per step", table=_operator_rows(found), lines=[], note=chance),
        Section(
            title="Other figures; times, bytes copied and counts are per step",
            table=_figure_rows(found),
            lines=[],
        ),
        Section(title="What was run", table=[], lines=_differences(found.workload)),
        Section(title="Machine and software", table=[], lines=_differences(found.environment)),
        Section(title="Doubts", table=[], lines=[clean(doubt) for doubt in found.doubts]),
    ]
    return [one for one in parts if one.table or one.lines]


def _step_rows(found: Comparison) -> list[list[str]]:
    rows = [["", "step", "spread", "measured as"]]
    for label, side in (("A", found.a), ("B", found.b)):
        rows.append([label, seconds(side.step_s), _spread(side), side.basis])
    return rows


def _spread(side: ComparedSide) -> str:
    if side.low_s is None or side.high_s is None:
        return "-"
    return f"{seconds(side.low_s)} to {seconds(side.high_s)}"


def _interval_line(found: Comparison) -> list[str]:
    lines = [f"{label}: {clean(side.name)}" for label, side in (("A", found.a), ("B", found.b))]
    if found.speedup is not None:
        lines.append(f"B's speed-up by launches, with its 95 % interval: {speedup(found.speedup)}")
    return lines


def _parts_title(found: Comparison) -> str:
    how = "branch of the tree" if found.parts_are == "branches" else "phase"
    runs = "run" in (found.a.kind, found.b.kind)
    return f"Where the step's time goes, by {how}{', in the observed launch' if runs else ''}"


def _part_rows(found: Comparison) -> list[list[str]]:
    labels = SHARE_LABELS if found.parts_are == "branches" else PHASE_LABELS
    rows = [
        [labels.get(one.name, one.name), _time(one.a_s), _time(one.b_s), _change(one.change_s)]
        for one in found.parts
        if one.a_s or one.b_s
    ]
    return [["", "A", "B", "change"], *rows] if rows else []


def _operator_rows(found: Comparison) -> list[list[str]]:
    if not found.operators:
        return []
    header = ["", "calls", "host", "device", "change"]
    return [header, *(_operator_row(one) for one in found.operators)]


def _operator_row(one: OperatorChange) -> list[str]:
    calls = _arrow(_count(one.a_calls), _count(one.b_calls))
    host = _arrow(_time(one.a_self_s), _time(one.b_self_s))
    device = _arrow(_time(one.a_device_s), _time(one.b_device_s))
    device = device if one.a_device_s or one.b_device_s else "-"
    change = one.change if one.change != "changed" else ""
    return [clean(one.name), calls, host, device, f"{_change(one.change_s)} {change}".strip()]


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def _figure_rows(found: Comparison) -> list[list[str]]:
    rows = [
        [one.name, _figure(one.a, one), _figure(one.b, one), _times(one)]
        for one in found.figures
        if one.a or one.b
    ]
    return [["", "A", "B", "B / A"], *rows] if rows else []


def _figure(value: float | None, one: ComparedFigure) -> str:
    if value is None:
        return "not measured"
    if one.unit == "s":
        return _time(value)
    if one.unit == "bytes":
        return memory(value) if value >= 1e6 or value == 0 else f"{value / 1e3:.3g} kB"
    if one.unit == "share":
        return percent(value)
    return f"{_count(value)} {one.unit}".strip()


def _times(one: ComparedFigure) -> str:
    if one.a is None or one.b is None:
        return ""
    if abs(one.b - one.a) <= _SAME * abs(one.a):
        return "same"
    return f"{one.b / one.a:.3g}x" if one.a else "new"


def _finding(one: FindingChange) -> str:
    crossed = one.change != "changed" and one.a_s is not None and one.b_s is not None
    costs = {} if crossed else {"new": _time(one.b_s), "gone": _time(one.a_s)}
    cost = costs.get(one.change, _arrow(_time(one.a_s), _time(one.b_s)))
    change = _CROSSED[one.change] if crossed else one.change
    where = {"new": one.b_place, "gone": one.a_place}
    both = _arrow(one.a_place, one.b_place) if one.a_place and one.b_place else ""
    place = where.get(one.change, both or one.a_place or one.b_place)
    head = f"{change}: {clean(one.check)}"
    head += f" at {clean(place)}" if place else ""
    head += f" ({cost} per step)" if cost != "-" else ""
    evidence = " ".join(clean(sentence) for sentence in one.evidence[:_EVIDENCE_LINES])
    return f"{head}. {evidence}".rstrip()


def _differences(found: list) -> list[str]:
    return [f"{one.name}: {clean(one.a)} -> {clean(one.b)}" for one in found]


def _time(value: float | None) -> str:
    if value is None:
        return "-"
    return seconds(value) if value else "0"


def _change(value: float | None) -> str:
    if value is None:
        return "not known"
    if abs(value) < 5e-9:
        return "0"
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def terminal(found: Comparison) -> str:
    """Plain text for a terminal, a log or a pipe."""
    lines = wrapped(found.sentence)
    for section in sections(found):
        lines += ["", section.title]
        lines += wrapped(section.note, "  ", "  ") if section.note else []
        lines += laid_out(section.table)
        for line in section.lines:
            lines += wrapped(line, "  - ", "    ")
    return "\n".join(lines) + "\n"


def markdown(found: Comparison) -> str:
    """For a pull request or an issue."""
    parts = [f"## torchdoctor compare\n\n**{_escape(found.sentence)}**"]
    for section in sections(found):
        lines = [f"### {section.title}", ""]
        lines += [_escape(section.note), ""] if section.note else []
        if section.table:
            header, *rows = section.table
            lines += [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
            lines += [f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows]
            lines += [""] * bool(section.lines)
        lines += [f"- {_escape(line)}" for line in section.lines]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    for character in "\\|<*_`":
        text = text.replace(character, f"\\{character}")
    return clean(text).replace("\n", " ")
