"""A gate's result as a document, JUnit XML and GitHub annotations."""

from pathlib import Path
from xml.etree import ElementTree

from torchdoctor.reports import document as document_format
from torchdoctor.reports import network
from torchdoctor.reports.document import (
    Block,
    Document,
    Sentence,
    notes,
    sections,
    sentences,
    table,
)
from torchdoctor.schema import Interval, Note, figures
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.units import several

WEAK = ("perhaps slower", "not seen well enough")  # of a row whose gate passes all the same
_TONES = {"not slower": "good", "slower": "bad"}
_MARKS = {"not slower": "PASS", "slower": "FAIL", "inconclusive": "NOT DECIDED"}
_COLUMNS = ["metric", "reference", "new", "new / reference", "allowed", "verdict"]
_HOW = {
    "side by side": "Both versions ran side by side, in alternate blocks of {units}",
    "in turns": "One launch after the other, in turns (ABBA)",
}


def named(metric: GateMetric, unit: str) -> str:
    """Return the name of a row, with what a step is called."""
    return f"{unit} time" if metric.name == "step_time" else metric.name.replace("_", " ")


def row(metric: GateMetric, unit: str = "step") -> list[str]:
    """Return metric, reference, new, ratio with its interval, tolerance and verdict as text."""
    # A time per sample is not called that of a step.
    per_sample = metric.name == "step_time" and metric.unit == "s/sample"
    # "ok" only with a tolerance; samples/s goes with the step time.
    judged = metric.tolerance is not None or metric.name == "samples_per_s"
    verdicts = {"ok": "ok" if judged else "not judged", "not measured": figures.MISSING}
    return [
        named(metric, unit) + " per sample" * per_sample,
        # What a time is per stands in the first cell alone.
        *(_value(value, metric) for value in (metric.reference, metric.new)),
        _ratio(metric.ratio),
        _allowed(metric),
        verdicts.get(metric.verdict, metric.verdict),
    ]


def _allowed(metric: GateMetric) -> str:
    if metric.allowed is None:
        return figures.MISSING
    return f"{figures.percent(metric.allowed)}{' (told)' * metric.allows_told}"


def figure(value: float | None, metric: GateMetric, unit: str = "step") -> str:
    """Return a value of a row with its unit: "10.0 ms a sample", "1.2 GB", "12 %"; "-" for None."""
    if value is None:
        return figures.MISSING
    if metric.unit.startswith("s/"):
        per = metric.unit.removeprefix("s/")
        return f"{figures.seconds(value)} a {unit if per == 'step' else per}"
    return figures.memory(value) if metric.unit == "bytes" else figures.quantity(value, metric.unit)


def _value(value: float | None, metric: GateMetric) -> str:
    """Return a value of a row without what it is per, as of a time "10.0 ms"."""
    if value is not None and metric.unit.startswith("s/"):
        return figures.seconds(value)
    if value is not None and metric.unit == "samples/s":
        return figures.quantity(value, "")
    return figure(value, metric)


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return figures.MISSING
    if not figures.says_something(interval):
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


def document(report: GateReport) -> Document:
    """Return what a gate says."""
    answer: Block = Sentence(report.sentence, _TONES.get(report.verdict, "strong"))
    if warning(report):
        answer = Note(severity="beware", sentence=report.sentence)
    rows = [row(metric, report.unit) for metric in report.metrics]
    doubts = [figures.clean(doubt) for doubt in report.doubts]
    page = Path(report.run_folder or "") / document_format.PAGE_NAME
    shown = f" · page: {figures.relative(str(page), str(Path.cwd()))}" * page.is_file()
    return Document(
        title=f"torchdoctor gate: {mark(report)}",
        subject=f"against {figures.clean(report.reference)}",
        summary=f"gate: {mark(report)}",
        screen=sections(
            ("", [answer]),
            ("", table(_COLUMNS, rows)),
            ("", sentences(network.sent(report.network), tone="bad")),
            ("", notes(doubts[:1])),
        ),
        details=sections(
            ("How it was measured", [Sentence(_basis(report))]),
            ("Other machines that launches connected to", network.contacts(report.network)),
            ("Doubts", notes(doubts)),
        ),
        hint=f"{document_format.HINT}{shown}",
    )


def per(report: GateReport) -> str:
    """Return what a time is per: a sample, or what a step is called."""
    return report.unit if report.per == "step" else report.per


def _basis(report: GateReport) -> str:
    if report.measured == "stored":
        means = "geometric means of the launches of each"
        return f"Compared with stored launches: {means}, per {per(report)}."
    if not report.pairs:
        return "No pair of launches was measured."
    how = _HOW[report.measured].format(units=several(report.unit))
    text = f"{how}: {figures.counted(report.pairs, 'pair')} of launches."
    if report.p_value is not None:
        text += f" p = {report.p_value:.2g}."
    text += (
        f" Times are per {per(report)}, geometric means over the pairs; the ratio new / reference "
        "is their quotient."
    )
    if report.mean_ratio is not None and figures.says_something(report.mean_ratio):
        text += (
            f" Of the mean {report.unit}, every block counted, it is {_ratio(report.mean_ratio)}."
        )
    return text


def junit(report: GateReport) -> str:
    """Return JUnit XML: a test case for each metric with a tolerance, or one with the reason."""
    undecided = report.verdict == "inconclusive"
    reason = " ".join(figures.clean(report.sentence).split())  # XML holds no control characters
    created = figures.clean(report.created)
    suite = ElementTree.Element("testsuite", name="torchdoctor gate", timestamp=created)
    judged = [metric for metric in report.metrics if metric.tolerance is not None]
    for metric in judged or [GateMetric(name="gate")]:
        about = {"classname": "torchdoctor.gate", "name": figures.clean(metric.name)}
        case = ElementTree.SubElement(suite, "testcase", about)
        if undecided:
            ElementTree.SubElement(case, "error" if report.broken else "skipped", message=reason)
        if not judged:
            continue
        reference = figure(metric.reference, metric, report.unit)
        new = figure(metric.new, metric, report.unit)
        text = f"{reference} -> {new}, ratio {_ratio(metric.ratio)}"
        text = figures.clean(f"{text}, tolerance {_allowed(metric)}")
        if metric.verdict == "worse" and not undecided:
            ElementTree.SubElement(case, "failure", message=reason).text = text
        if metric.verdict in WEAK:
            text = f"{metric.verdict}: {text}. {reason}"
        ElementTree.SubElement(case, "system-out").text = text
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    for count, tag in tags.items():
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def annotation(report: GateReport) -> str:
    """Return the result as one workflow command of GitHub Actions."""
    passed = "warning" if warning(report) else "notice"
    kind = {"slower": "error", "inconclusive": "warning"}.get(report.verdict, passed)
    return workflow_command(kind, f"{mark(report)}: {report.sentence}")


def workflow_command(kind: str, text: str) -> str:
    """Return an annotation of GitHub Actions: "error", "warning" or "notice"."""
    escaped = figures.clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{kind} title=torchdoctor gate::{escaped}"
