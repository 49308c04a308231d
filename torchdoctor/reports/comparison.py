"""A comparison as text."""

from __future__ import annotations

import textwrap

from torchdoctor.records.comparison import Change, Comparison
from torchdoctor.reports.content import SHARE_LABELS
from torchdoctor.reports.figures import clean, memory, seconds

_NAME, _WIDTH = 40, 80


def verdict(found: Comparison) -> str:
    """What changed, in one sentence."""
    ratio = found.step.after / found.step.before
    certain = found.ratio is None or found.ratio.low > 1 or found.ratio.high < 1
    if not certain or abs(ratio - 1) < 0.005:
        return f"No difference that stands out: {_times(found.step)} a step."
    word = f"{ratio:.2f}x slower" if ratio > 1 else f"{1 / ratio:.2f}x faster"
    text = f"The second is {word} per step ({_times(found.step)})"
    same_way = [one for one in found.branches if one.difference * found.step.difference > 0]
    if same_way:
        most = same_way[0]
        label = SHARE_LABELS.get(most.name, most.name)
        text += f", most of it in {label} ({_signed(most.difference)})"
    if found.new_findings and ratio > 1:
        one = found.new_findings[0]
        where = f" at {one.location.file}:{one.location.line}" if one.location else ""
        text += f"; new: {one.check}{where}"
    return clean(text) + "."


def terminal(found: Comparison) -> str:
    """Plain text."""
    lines = [verdict(found)]
    if found.ratio is not None:
        r = found.ratio
        lines.append(
            f"second / first, by launches: {r.estimate:.3f} (95 % {r.low:.3f} to {r.high:.3f})"
        )
    lines += _section("Where the step's time went, per step", found.branches, SHARE_LABELS)
    lines += _section("Operators, per step", found.operators, {})
    if found.counts:
        lines += ["", "Counts, per step"]
        lines += [f"  {one.name}: {one.before:.4g} -> {one.after:.4g}" for one in found.counts]
    if found.peak_memory is not None:
        one = found.peak_memory
        lines += ["", f"Peak memory: {memory(one.before)} -> {memory(one.after)}"]
    for title, findings in (
        ("New findings", found.new_findings),
        ("Findings that are gone", found.gone_findings),
    ):
        if findings:
            lines += ["", title]
            for finding in findings:
                place = finding.location
                where = f"  {place.file}:{place.line}" if place else ""
                lines.append(f"  {clean(finding.check + where)}")
                lines += [f"    {clean(text)}" for text in finding.evidence[:1]]
    lines += ["", "Doubts", *(f"  - {clean(doubt)}" for doubt in found.doubts)]
    return "\n".join(map(_wrapped, lines)) + "\n"


def _wrapped(line: str) -> str:
    """At most 80 columns; what goes on stands under its text."""
    indent = " " * (len(line) - len(line.lstrip(" -")))
    return textwrap.fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False)


def _section(title: str, changes: list[Change], labels: dict[str, str]) -> list[str]:
    if not changes:
        return []
    rows = [(clean(labels.get(one.name, one.name))[:_NAME], one) for one in changes]
    width = max(len(name) for name, _ in rows)
    return ["", title] + [
        f"  {name:<{width}}  {_signed(one.difference):>10}  ({_times(one)})" for name, one in rows
    ]


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "-") + seconds(abs(value))


def _times(one: Change) -> str:
    return f"{seconds(one.before)} -> {seconds(one.after)}"
