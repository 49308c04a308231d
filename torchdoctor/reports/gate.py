"""A gate's result as text, Markdown, JUnit XML and GitHub annotations."""

from __future__ import annotations

from xml.etree import ElementTree

from torchdoctor.reports.columns import laid_out
from torchdoctor.reports.wrapping import wrapped
from torchdoctor.words import Interval
from torchdoctor.words.figures import (
    clean,
    counted,
    memory,
    percent,
    quantity,
    says_something,
    seconds,
)
from torchdoctor.words.gate import GateMetric, GateReport

WEAK = ("perhaps slower", "not seen well enough")  # of a row whose gate passes all the same
_MARKS = {"not slower": "PASS", "slower": "FAIL", "inconclusive": "NOT DECIDED"}


def rows(report: GateReport) -> list[tuple[str, str, str, str, str, str]]:
    """Metric, reference, new, ratio with its interval, tolerance, verdict: ready to print."""
    return [
        (
            _metric(one),
            figure(one.reference, one),
            figure(one.new, one),
            _ratio(one.ratio),
            "-" if one.tolerance is None else percent(one.tolerance),
            _verdict(one),
        )
        for one in report.metrics
    ]


def _verdict(one: GateMetric) -> str:
    """Of a row; "ok" only of what has a tolerance (samples/s goes with the step time)."""
    shown = one.tolerance is None and one.verdict == "ok" and one.name != "samples_per_s"
    return "not judged" if shown else one.verdict


def _metric(one: GateMetric) -> str:
    """Its name; a time per sample is not called that of a step."""
    per = " per sample" if one.name == "step_time" and one.unit == "s/sample" else ""
    return one.name.replace("_", " ") + per


def figure(value: float | None, one: GateMetric) -> str:
    """A value of a row with its unit: "10.0 ms a sample", "1.2 GB", "12 %"; "-" for None."""
    if value is None:
        return "-"
    if one.unit.startswith("s/"):
        return f"{seconds(value)} a {one.unit[2:]}"
    if one.unit == "bytes":
        return memory(value)
    if one.unit == "share":
        return percent(value)
    return quantity(value, one.unit)


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if not says_something(interval):
        return "not known"
    return f"{interval.estimate:.3f} ({interval.low:.3f}-{interval.high:.3f})"


def mark(report: GateReport) -> str:
    """The verdict in capitals, and what keeps a pass from saying much."""
    if report.broken:
        return "NOT MEASURED"
    weak = warning(report)
    return f"{_MARKS[report.verdict]}, but {weak}" if weak else _MARKS[report.verdict]


def warning(report: GateReport) -> str:
    """ "perhaps slower" or "not seen well enough" of a pass that proves little, else ""."""
    said = report.metrics[0].verdict if report.metrics else ""
    return said if report.verdict == "not slower" and said in WEAK else ""


def terminal(report: GateReport) -> str:
    """Plain text of at most 80 columns."""
    lines = [*wrapped(f"{mark(report)}: {report.sentence}"), ""]
    titles = ["metric", "reference", "new", "ratio", "allowed", "verdict"]
    lines += laid_out([titles, *(_narrow(row) for row in rows(report))])
    lines += ["", *wrapped(_basis(report))]
    for doubt in report.doubts:
        lines += wrapped(doubt, "- ", "  ")
    return "\n".join(lines) + "\n"


def _narrow(row: tuple[str, str, str, str, str, str]) -> list[str]:
    """The interval stands in the sentence, what a time is per below the table."""
    name, reference, new, ratio, tolerance, verdict = row
    return [
        name,
        *(cell.removesuffix(" samples/s").partition(" a s")[0] for cell in (reference, new)),
        ratio.partition(" (")[0],
        tolerance,
        "-" if verdict == "not measured" else verdict,
    ]


def _basis(report: GateReport) -> str:
    if not report.pairs and report.measured != "stored":
        return "No pair of launches was measured."
    if report.measured == "stored":
        return (
            "Compared with stored launches: geometric means of the launches of each, per "
            f"{report.per}."
        )
    how = {
        "side by side": "Both versions ran side by side, in alternate blocks of steps",
        "in turns": "One launch after the other, in turns (ABBA)",
    }[report.measured]
    text = f"{how}: {counted(report.pairs, 'pair')} of launches."
    if report.p_value is not None:
        text += f" p = {report.p_value:.2g}."
    text += (
        f" Times are per {report.per}, geometric means over the pairs; the ratio new / reference "
        "is their quotient."
    )
    if report.mean_ratio is not None and says_something(report.mean_ratio):
        text += f" Of the mean step, every block counted, it is {_ratio(report.mean_ratio)}."
    return text


def markdown(report: GateReport) -> str:
    """For a pull request's comment or a step summary."""
    lines = [f"### torchdoctor gate: {mark(report)}", ""]
    warned = "> **Warning:** " if warning(report) else ""
    lines += [f"{warned}{_cell(report.sentence)}", ""]
    if report.metrics:
        lines += ["| metric | reference | new | new / reference | tolerance | |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows(report)]
    lines += ["", _basis(report)]
    lines += [f"- {_cell(doubt)}" for doubt in report.doubts]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return clean(text).replace("|", "\\|").replace("<", "&lt;")


def junit(report: GateReport) -> str:
    """JUnit XML: one test case for each metric with a tolerance, or one that says why not."""
    judged = [one for one in report.metrics if one.tolerance is not None]
    undecided = report.verdict == "inconclusive"
    why = "error" if report.broken else "skipped"  # of a case without a verdict
    cases = len(judged) or 1
    worse = [one for one in judged if one.verdict == "worse" and not undecided]
    suite = ElementTree.Element(
        "testsuite",
        name="torchdoctor gate",
        tests=str(cases),
        failures=str(len(worse)),
        errors=str(cases if undecided and report.broken else 0),
        skipped=str(cases if undecided and not report.broken else 0),
        timestamp=report.created,
    )
    if not judged:
        case = ElementTree.SubElement(suite, "testcase", classname="torchdoctor.gate", name="gate")
        if undecided:
            ElementTree.SubElement(case, why, message=_printable(report.sentence))
    for one, row in zip(report.metrics, rows(report), strict=True):
        if one.tolerance is None:
            continue
        case = ElementTree.SubElement(
            suite, "testcase", classname="torchdoctor.gate", name=one.name
        )
        text = f"{row[1]} -> {row[2]}, ratio {row[3]}, tolerance {row[4]}"
        if undecided:
            ElementTree.SubElement(case, why, message=_printable(report.sentence))
        elif one.verdict == "worse":
            failure = ElementTree.SubElement(case, "failure", message=_printable(report.sentence))
            failure.text = text
        if one.verdict in WEAK:
            text = f"{one.verdict}: {text}. {_printable(report.sentence)}"
        ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """On one line, without the control characters that XML cannot hold."""
    return "".join(c for c in " ".join(clean(text).split()) if c.isprintable())


def annotation(report: GateReport) -> str:
    """One workflow command of GitHub Actions."""
    passed = "warning" if warning(report) else "notice"
    kind = {"slower": "error", "inconclusive": "warning"}.get(report.verdict, passed)
    return workflow_command(kind, f"{mark(report)}: {report.sentence}")


def workflow_command(kind: str, text: str) -> str:
    """An annotation of GitHub Actions: "error", "warning" or "notice"."""
    escaped = clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{kind} title=torchdoctor gate::{escaped}"
