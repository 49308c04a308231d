"""What a comparison says, as a document."""

from __future__ import annotations

import textwrap

from torchdoctor.reports import markdown as markdown_writer
from torchdoctor.reports import terminal as terminal_writer
from torchdoctor.reports.document import (
    Block,
    Document,
    Sentence,
    notes,
    sections,
    sentences,
    table,
)
from torchdoctor.words import Note
from torchdoctor.words.comparison import (
    ComparedFigure,
    ComparedSide,
    Comparison,
    Difference,
    FindingChange,
    OperatorChange,
)
from torchdoctor.words.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    clean,
    memory,
    percent,
    ratio,
    seconds,
    shorten_left,
    speedup,
)

_EVIDENCE_LINES = 2
_MOST_PARTS, _MOST_FINDINGS = 2, 2  # on the first screen
_CROSSED = {"new": "now above its threshold", "gone": "now below its threshold"}
_CHANCE = {  # what stands above the changes of a step whose time did not change
    "same": "The step takes as long: none of these changed its time.",
    "unclear": "No change of the step's time is proven: these may be chance.",
}
_LONGEST, _NAME = 190, 32  # characters of a sentence and of a file's name, on the first screen
_SAME = 0.005  # relative; below it a figure did not change
_TONES = {"slower": "bad", "faster": "good"}


def terminal(comparison: Comparison, details: bool = True, width: int = 100) -> str:
    """Return the comparison as text for a terminal, a log or a pipe."""
    return terminal_writer.render(document(comparison), width, details)


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown, for a pull request or an issue."""
    return markdown_writer.render(document(comparison))


def document(comparison: Comparison) -> Document:
    """Return what a comparison says."""
    chance: list[Block] = [Sentence(_CHANCE.get(comparison.verdict, ""))]
    chance = chance if comparison.verdict in _CHANCE else []
    findings = notes([_finding(change) for change in comparison.findings])
    operators = _operators(comparison)
    first = _cut(comparison.sentence)
    return Document(
        title="torchdoctor compare",
        subject=f"A: {_short(comparison.a.name)} · B: {_short(comparison.b.name)}",
        summary=comparison.sentence,
        screen=sections(
            (
                "",
                [
                    Sentence(first, _TONES.get(comparison.verdict, "strong")),
                    *_first_screen(comparison),
                ],
            ),
        ),
        details=sections(
            ("Verdict", sentences(comparison.sentence if first.endswith("…") else "")),
            ("Step time", _step_times(comparison)),
            (_parts_title(comparison), _parts(comparison)),
            ("Findings", [*chance, *findings] if findings else []),
            ("Operators, per step", [*chance, *operators] if operators else []),
            ("Other figures; times, bytes copied and counts are per step", _figures(comparison)),
            ("What was run", _differences(comparison.workload)),
            ("Machine and software", _differences(comparison.environment)),
            ("Doubts", notes([clean(doubt) for doubt in comparison.doubts])),
        ),
        hint="details: the same command with --details",
    )


def _cut(sentence: str) -> str:
    return textwrap.shorten(clean(sentence), _LONGEST, placeholder=" …")


def _short(name: str) -> str:
    return shorten_left(clean(name), _NAME)


def _first_screen(comparison: Comparison) -> list[Block]:
    """Return the figures and findings that changed most, and the first doubt."""
    a, b = comparison.a, comparison.b
    change = f"{ratio(comparison.ratio)}x the time"
    if comparison.speedup is not None:
        change += f"; B's speed-up {speedup(comparison.speedup)}"
    changed = [row for row in _part_rows(comparison) if row[-1] not in ("0", "not known")]
    rows = [["step", seconds(a.step_s), seconds(b.step_s), change], *changed[:_MOST_PARTS]]
    findings = [_named_finding(change) for change in comparison.findings[:_MOST_FINDINGS]]
    doubts = [_cut(doubt) for doubt in comparison.doubts[:1]]
    return [
        *table(["", "A", "B", "change"], rows),
        *notes(findings),
        *(Note(severity="beware", sentence=doubt) for doubt in doubts),
    ]


def _step_times(comparison: Comparison) -> list[Block]:
    rows = [
        [label, seconds(side.step_s), _spread(side), side.basis]
        for label, side in (("A", comparison.a), ("B", comparison.b))
    ]
    sides = (("A", comparison.a), ("B", comparison.b))
    lines = [f"{label}: {clean(side.name)}" for label, side in sides]
    if comparison.speedup is not None:
        interval = speedup(comparison.speedup)
        lines.append(f"B's speed-up by launches, with its 95 % interval: {interval}")
    return [*table(["", "step", "spread", "measured as"], rows), *notes(lines)]


def _spread(side: ComparedSide) -> str:
    if side.low_s is None or side.high_s is None:
        return "-"
    return f"{seconds(side.low_s)} to {seconds(side.high_s)}"


def _parts_title(comparison: Comparison) -> str:
    how = "branch of the tree" if comparison.parts_are == "branches" else "phase"
    runs = "run" in (comparison.a.kind, comparison.b.kind)
    return f"Where the step's time goes, by {how}{', in the observed launch' if runs else ''}"


def _part_rows(comparison: Comparison) -> list[list[str]]:
    labels = SHARE_LABELS if comparison.parts_are == "branches" else PHASE_LABELS
    return [
        [labels.get(part.name, part.name), _time(part.a_s), _time(part.b_s), _change(part.change_s)]
        for part in comparison.parts
        if part.a_s or part.b_s
    ]


def _parts(comparison: Comparison) -> list[Block]:
    return table(["", "A", "B", "change"], _part_rows(comparison))


def _operators(comparison: Comparison) -> list[Block]:
    rows = [_operator_row(change) for change in comparison.operators]
    return table(["", "calls", "host", "device", "change"], rows)


def _operator_row(change: OperatorChange) -> list[str]:
    calls = _arrow(_count(change.a_calls), _count(change.b_calls))
    host = _arrow(_time(change.a_self_s), _time(change.b_self_s))
    device = _arrow(_time(change.a_device_s), _time(change.b_device_s))
    device = device if change.a_device_s or change.b_device_s else "-"
    kind = change.change if change.change != "changed" else ""
    return [clean(change.name), calls, host, device, f"{_change(change.change_s)} {kind}".strip()]


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def _figures(comparison: Comparison) -> list[Block]:
    rows = [
        [figure.name, _figure(figure.a, figure), _figure(figure.b, figure), _times(figure)]
        for figure in comparison.figures
        if figure.a or figure.b
    ]
    return table(["", "A", "B", "B / A"], rows)


def _figure(value: float | None, figure: ComparedFigure) -> str:
    if value is None:
        return "not measured"
    if figure.unit == "s":
        return _time(value)
    if figure.unit == "bytes":
        return memory(value) if value >= 1e6 or value == 0 else f"{value / 1e3:.3g} kB"
    if figure.unit == "share":
        return percent(value)
    return f"{_count(value)} {figure.unit}".strip()


def _times(figure: ComparedFigure) -> str:
    if figure.a is None or figure.b is None:
        return ""
    if abs(figure.b - figure.a) <= _SAME * abs(figure.a):
        return "same"
    return f"{figure.b / figure.a:.3g}x" if figure.a else "new"


def _named_finding(change: FindingChange) -> str:
    """Return a finding with its place and its cost: "new: sync-in-step at a.py:4 (2 ms a step)"."""
    crossed = change.change != "changed" and change.a_s is not None and change.b_s is not None
    costs = {} if crossed else {"new": _time(change.b_s), "gone": _time(change.a_s)}
    cost = costs.get(change.change, _arrow(_time(change.a_s), _time(change.b_s)))
    kind = _CROSSED[change.change] if crossed else change.change
    where = {"new": change.b_place, "gone": change.a_place}
    both = _arrow(change.a_place, change.b_place) if change.a_place and change.b_place else ""
    place = where.get(change.change, both or change.a_place or change.b_place)
    head = f"{kind}: {clean(change.check)}"
    head += f" at {clean(place)}" if place else ""
    return head + (f" ({cost} per step)" if cost != "-" else "")


def _finding(change: FindingChange) -> str:
    evidence = " ".join(clean(sentence) for sentence in change.evidence[:_EVIDENCE_LINES])
    return f"{_named_finding(change)}. {evidence}".rstrip()


def _differences(differences: list[Difference]) -> list[Block]:
    return notes([f"{x.name}: {clean(x.a)} -> {clean(x.b)}" for x in differences])


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
