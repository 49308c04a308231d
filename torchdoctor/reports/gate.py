"""A gate's result as text, Markdown, JUnit XML and GitHub annotations."""

from __future__ import annotations

from xml.etree import ElementTree

from torchdoctor.reports import markdown as markdown_writer
from torchdoctor.reports import terminal as terminal_writer
from torchdoctor.reports.document import Block, Document, Sentence, notes, sections, table
from torchdoctor.words import Interval, Note
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
_TONES = {"not slower": "good", "slower": "bad"}
_MARKS = {"not slower": "PASS", "slower": "FAIL", "inconclusive": "NOT DECIDED"}


def rows(report: GateReport) -> list[tuple[str, str, str, str, str, str]]:
    """Return metric, reference, new, ratio with its interval, tolerance and verdict as text."""
    return [
        (
            _metric(metric),
            figure(metric.reference, metric),
            figure(metric.new, metric),
            _ratio(metric.ratio),
            "-" if metric.tolerance is None else percent(metric.tolerance),
            _verdict(metric),
        )
        for metric in report.metrics
    ]


def _verdict(metric: GateMetric) -> str:
    """Return a row's verdict; "ok" only with a tolerance (samples/s goes with the step time)."""
    shown = metric.tolerance is None and metric.verdict == "ok" and metric.name != "samples_per_s"
    return "not judged" if shown else metric.verdict


def _metric(metric: GateMetric) -> str:
    """Return its name; a time per sample is not called that of a step."""
    per = " per sample" if metric.name == "step_time" and metric.unit == "s/sample" else ""
    return metric.name.replace("_", " ") + per


def figure(value: float | None, metric: GateMetric) -> str:
    """Return a value of a row with its unit: "10.0 ms a sample", "1.2 GB", "12 %"; "-" for None."""
    if value is None:
        return "-"
    if metric.unit.startswith("s/"):
        return f"{seconds(value)} a {metric.unit[2:]}"
    if metric.unit == "bytes":
        return memory(value)
    if metric.unit == "share":
        return percent(value)
    return quantity(value, metric.unit)


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if not says_something(interval):
        return "not known"
    return f"{interval.estimate:.3f} ({interval.low:.3f}-{interval.high:.3f})"


def mark(report: GateReport) -> str:
    """Return the verdict in capitals, and what keeps a pass from saying much."""
    if report.broken:
        return "NOT MEASURED"
    weak = warning(report)
    return f"{_MARKS[report.verdict]}, but {weak}" if weak else _MARKS[report.verdict]


def warning(report: GateReport) -> str:
    """Return "perhaps slower" or "not seen well enough" for a pass that proves little, else ""."""
    verdict = report.metrics[0].verdict if report.metrics else ""
    return verdict if report.verdict == "not slower" and verdict in WEAK else ""


def terminal(report: GateReport, details: bool = True, width: int = 100) -> str:
    """Return the result as text for a terminal or a log."""
    return terminal_writer.render(document(report), width, details)


def markdown(report: GateReport) -> str:
    """Return the result as Markdown, for a pull request's comment or a step summary."""
    return markdown_writer.render(document(report))


def document(report: GateReport) -> Document:
    """Return what a gate says."""
    columns = ["metric", "reference", "new", "new / reference", "allowed", "verdict"]
    weak = warning(report)
    told: Block = Sentence(report.sentence, _TONES.get(report.verdict, "strong"))
    doubts = [clean(doubt) for doubt in report.doubts]
    return Document(
        title=f"torchdoctor gate: {mark(report)}",
        subject=f"against {clean(report.reference)}",
        summary=f"gate: {mark(report)}",
        screen=sections(
            ("", [Note(severity="beware", sentence=report.sentence) if weak else told]),
            ("", table(columns, [_narrow(row) for row in rows(report)])),
            ("", notes(doubts[:1])),
        ),
        details=sections(
            ("How it was measured", [Sentence(_basis(report))]), ("Doubts", notes(doubts))
        ),
        hint="details: the same command with --details",
    )


def _narrow(row: tuple[str, str, str, str, str, str]) -> list[str]:
    """Return the cells of a row; what a time is per stands in the first one alone."""
    name, reference, new, *rest = row
    values = (cell.removesuffix(" samples/s").partition(" a s")[0] for cell in (reference, new))
    return [name, *values, *("-" if cell == "not measured" else cell for cell in rest)]


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


def junit(report: GateReport) -> str:
    """Return JUnit XML: a test case for each metric with a tolerance, or one with the reason."""
    judged = [metric for metric in report.metrics if metric.tolerance is not None]
    undecided = report.verdict == "inconclusive"
    why = "error" if report.broken else "skipped"  # of a case without a verdict
    cases = len(judged) or 1
    worse = [metric for metric in judged if metric.verdict == "worse" and not undecided]
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
    for metric, row in zip(report.metrics, rows(report), strict=True):
        if metric.tolerance is None:
            continue
        case = ElementTree.SubElement(
            suite, "testcase", classname="torchdoctor.gate", name=metric.name
        )
        text = f"{row[1]} -> {row[2]}, ratio {row[3]}, tolerance {row[4]}"
        if undecided:
            ElementTree.SubElement(case, why, message=_printable(report.sentence))
        elif metric.verdict == "worse":
            failure = ElementTree.SubElement(case, "failure", message=_printable(report.sentence))
            failure.text = text
        if metric.verdict in WEAK:
            text = f"{metric.verdict}: {text}. {_printable(report.sentence)}"
        ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Return text on one line, without the control characters that XML cannot hold."""
    return "".join(c for c in " ".join(clean(text).split()) if c.isprintable())


def annotation(report: GateReport) -> str:
    """Return the result as one workflow command of GitHub Actions."""
    passed = "warning" if warning(report) else "notice"
    kind = {"slower": "error", "inconclusive": "warning"}.get(report.verdict, passed)
    return workflow_command(kind, f"{mark(report)}: {report.sentence}")


def workflow_command(kind: str, text: str) -> str:
    """Return an annotation of GitHub Actions: "error", "warning" or "notice"."""
    escaped = clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{kind} title=torchdoctor gate::{escaped}"
