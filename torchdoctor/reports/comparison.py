"""What a comparison says, as a document."""

import textwrap

from torchdoctor.reports.document import (
    Block,
    Document,
    Sentence,
    notes,
    sections,
    sentences,
    table,
)
from torchdoctor.schema import Note
from torchdoctor.schema.comparison import Comparison, Difference, FindingChange, OperatorChange
from torchdoctor.schema.figures import (
    MISSING,
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
_MOST_PARTS, _MOST_FINDINGS, _MOST_CALLS = 2, 2, 4  # on the first screen
_CROSSED = {"new": "now above its threshold", "gone": "now below its threshold"}
_CHANCE = {  # what stands above the changes of a step whose time did not change
    "same": "The {unit} takes as long: none of these changed its time.",
    "unclear": "No change of the {unit}'s time is proven: these may be chance.",
}
_LONGEST, _NAME = 190, 32  # characters of a sentence and of a file's name, on the first screen
_SAME = 0.005  # relative; below it a figure did not change
_TONES = {"slower": "bad", "faster": "good"}


def document(comparison: Comparison) -> Document:
    """Return what a comparison says."""
    chance = sentences(_CHANCE.get(comparison.verdict, "").format(unit=comparison.unit))
    findings = notes([_with_facts(change, comparison.unit) for change in comparison.findings])
    columns = ["", "calls", "host", "device", "change"]
    operators = table(columns, [_operator(operator) for operator in comparison.operators])
    kernels = table(columns, [_operator(kernel) for kernel in comparison.kernels])
    unit = comparison.unit
    per = unit if comparison.per == "step" else comparison.per
    by = "branch of the tree" if comparison.parts_are == "branches" else "phase"
    parts = f"Where the {comparison.unit}'s time goes, by {by}"
    if "run" in (comparison.a.kind, comparison.b.kind):
        parts += ", in the observed launch"
    whole = clean(comparison.sentence)
    first = _cut(whole)
    a, b = (named(side.name, _NAME) for side in (comparison.a, comparison.b))
    doubts = [clean(doubt) for doubt in comparison.doubts]
    screen = [
        Sentence(first, _TONES.get(comparison.verdict, "strong")),
        *_most_changed(comparison),
        *(Note(severity="beware", sentence=_cut(doubt)) for doubt in doubts[:1]),
    ]
    return Document(
        title="torchdoctor compare",
        subject=f"A: {a} · B: {b}",
        summary=comparison.sentence,
        screen=sections(("", screen)),
        details=sections(
            ("Verdict", sentences(whole if whole != first else "")),
            (
                f"{unit.capitalize()} time" if comparison.per == "step" else "Whole traces",
                _step_times(comparison),
            ),
            (parts, table(["", "A", "B", "change"], _parts(comparison))),
            ("Findings", [*chance, *findings] if findings else []),
            ("Kernels, per call", kernels),
            (f"Operators, per {per}", [*chance, *operators] if operators else []),
            (f"Other figures; times, bytes and counts are per {unit}", _figures(comparison)),
            ("What was run", _differences(comparison.workload)),
            ("Machine and software", _differences(comparison.environment)),
            ("Doubts", notes(doubts)),
        ),
    )


def named(name: str, width: int) -> str:
    """Return the name of a side, in at most so many characters."""
    return shorten_left(clean(name), width)


def _with_facts(change: FindingChange, unit: str) -> str:
    facts = " ".join(clean(evidence.sentence) for evidence in change.evidence[:_EVIDENCE_LINES])
    return f"{_named(change, unit)}. {facts}".rstrip()


def _differences(conditions: list[Difference]) -> list[Block]:
    return notes(
        [
            f"{condition.name}: {clean(condition.a)} -> {clean(condition.b)}"
            for condition in conditions
        ]
    )


def _cut(sentence: str) -> str:
    return textwrap.shorten(clean(sentence), _LONGEST, placeholder=" …")


def _most_changed(comparison: Comparison) -> list[Block]:
    """Return the step time, and the parts and findings that changed most."""
    if comparison.per == "call":
        return table(["a call of", "A", "B", "change"], _calls(comparison))
    change = f"{ratio(comparison.ratio)}x the time"
    if comparison.speedup is not None:
        change += f"; B's speed-up {speedup(comparison.speedup)}"
    step = [comparison.unit, seconds(comparison.a.step_s), seconds(comparison.b.step_s), change]
    changed = [row for row in _parts(comparison) if row[-1] not in ("0", "not known")]
    findings = [
        _named(finding, comparison.unit) for finding in comparison.findings[:_MOST_FINDINGS]
    ]
    return [*table(["", "A", "B", "change"], [step, *changed[:_MOST_PARTS]]), *notes(findings)]


def _calls(comparison: Comparison) -> list[list[str]]:
    """Return a row for each kernel, or without one each operator, whose calls changed most."""
    rows = []
    for change in (comparison.kernels or comparison.operators)[:_MOST_CALLS]:
        old = change.a_device_s
        new = change.b_device_s
        if not comparison.kernels:
            old = change.a_self_s
            new = change.b_self_s
        times = f"{ratio(new / old)}x the time" if old and new else MISSING
        rows.append([clean(change.name), _time(old), _time(new), times])
    return rows


def _step_times(comparison: Comparison) -> list[Block]:
    rows = []
    lines = []
    for label, side in (("A", comparison.a), ("B", comparison.b)):
        spread = MISSING
        if side.low_s is not None and side.high_s is not None:
            spread = f"{seconds(side.low_s)} to {seconds(side.high_s)}"
        rows.append([label, seconds(side.step_s), spread, side.basis])
        lines.append(f"{label}: {clean(side.name)}")
    if comparison.speedup is not None:
        interval = speedup(comparison.speedup)
        lines.append(f"B's speed-up by launches, with its 95 % interval: {interval}")
    return [*table(["", comparison.unit, "spread", "measured as"], rows), *notes(lines)]


def _parts(comparison: Comparison) -> list[list[str]]:
    labels = SHARE_LABELS if comparison.parts_are == "branches" else PHASE_LABELS
    return [
        [labels.get(part.name, part.name), _time(part.a_s), _time(part.b_s), _change(part.change_s)]
        for part in comparison.parts
        if part.a_s or part.b_s
    ]


def _operator(change: OperatorChange) -> list[str]:
    device = MISSING
    if change.a_device_s or change.b_device_s:
        device = _arrow(_time(change.a_device_s), _time(change.b_device_s))
    kind = change.change if change.change != "changed" else ""
    return [
        clean(change.name),
        _arrow(_count(change.a_calls), _count(change.b_calls)),
        _arrow(_time(change.a_self_s), _time(change.b_self_s)),
        device,
        f"{_change(change.change_s)} {kind}".strip(),
    ]


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def _figures(comparison: Comparison) -> list[Block]:
    rows = []
    for figure in comparison.figures:
        times = ""
        if figure.a is not None and figure.b is not None:
            times = f"{figure.b / figure.a:.3g}x" if figure.a else "new"
            times = "same" if abs(figure.b - figure.a) <= _SAME * abs(figure.a) else times
        if figure.a or figure.b:
            values = (_figure(value, figure.unit) for value in (figure.a, figure.b))
            rows.append([figure.name, *values, times])
    return table(["", "A", "B", "B / A"], rows)


def _figure(value: float | None, unit: str) -> str:
    if value is None or unit == "share":
        return percent(value)
    if unit == "bytes":
        return memory(value) if value >= 1e6 or value == 0 else f"{value / 1e3:.3g} kB"
    return _time(value) if unit == "s" else f"{_count(value)} {unit}".strip()


def _named(change: FindingChange, unit: str) -> str:
    """Return a finding with its place and its cost: "new: sync-in-step at a.py:4 (2 ms a step)"."""
    a_s = change.a_s
    b_s = change.b_s
    a_place = change.a_place
    b_place = change.b_place
    kind = change.change
    cost = _arrow(_time(a_s), _time(b_s))
    if kind in _CROSSED and a_s is not None and b_s is not None:
        kind = _CROSSED[kind]
    elif kind in _CROSSED:
        cost = _time(b_s if kind == "new" else a_s)
    place = _arrow(a_place, b_place) if a_place and b_place else a_place or b_place
    where = f" at {clean(place)}" if place else ""
    return f"{kind}: {clean(change.check)}{where}" + (
        "" if cost == MISSING else f" ({cost} per {unit})"
    )


def _time(value: float | None) -> str:
    return MISSING if value is None else seconds(value) if value else "0"


def _change(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}" if abs(value) >= 5e-9 else "0"


def _count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"
