"""Every format shows every kind of report, and says nothing that was not measured."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from record_schema import report_schema
from samples import SAMPLES

from torchdoctor.reports.document import prose
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.verdict import statements
from torchdoctor.schema import Location
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import decode_report, encode, read_report

REPORTS = [pytest.param(make(), id=name) for name, make in SAMPLES.items()]
SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    """What a report has to hold to, checked once."""
    jsonschema.Draft202012Validator.check_schema(report_schema())
    return jsonschema.Draft202012Validator(report_schema())


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("width", [60, 80])
def test_terminal_report_fits_the_width_and_has_no_trailing_spaces(report, width) -> None:
    text = rendered(report, "terminal", width=width)
    edits = [fix.edit or "" for fix in report.recommendation.fixes]
    whole = {line.rstrip() for edit in edits for line in edit.splitlines()}  # never broken
    lines = [line for line in text.splitlines() if not line.startswith("    ")]  # nor is code
    assert all(len(line) <= width for line in lines if line not in whole)
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("report", REPORTS)
def test_terminal_report_begins_with_the_verdict_and_names_each_trial(report) -> None:
    text = " ".join(rendered(report, "terminal").split())
    first = statements(report)[0].sentence.rstrip(".")
    assert prose(first) in text or "Nothing" in text
    for trial in report.trials:
        assert trial.fixes.first in text
    for doubt in report.doubts:
        assert " ".join(doubt.split())[:30] in text


@pytest.mark.parametrize("report", REPORTS)
def test_json_is_read_back_the_same_and_valid(report, schema) -> None:
    data = encode(report)
    assert encode(decode_report(data)) == data
    schema.validate(json.loads(rendered(report, "json")))


def test_schema_in_docs_is_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == report_schema()


@pytest.mark.parametrize("report", REPORTS)
def test_html_is_balanced_and_loads_nothing(report) -> None:
    page = rendered(report, "html")
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "src=" not in page
    assert "<link" not in page


def test_html_escapes_what_the_program_is_called() -> None:
    evil = "<script>alert(1)</script>"
    text = encode(SAMPLES["loader_bound"]()).decode().replace("train.py", f"{evil}.py")
    report = decode_report(text)
    report = replace(report, doubts=[evil])
    assert evil in report.diagnosis.findings[0].location.file
    page = rendered(report, "html")
    assert "<script>alert" not in page
    assert "alert(1)</script>" not in page  # nor does it end the script that it is data of
    assert page.count("&lt;script&gt;") > 5


@pytest.mark.parametrize("report", REPORTS)
def test_sarif_has_a_result_for_each_finding_with_relative_paths(report) -> None:
    log = json.loads(rendered(report, "sarif"))
    results = log["runs"][0]["results"]
    assert len(results) == len(report.diagnosis.findings)
    for result in results:
        for location in result.get("locations", []):
            uri = location["physicalLocation"]["artifactLocation"]["uri"]
            assert not uri.startswith("/")
    rules = {rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert log["version"] == "2.1.0"
    assert {result["ruleId"] for result in results} == rules
    for result, finding in zip(results, report.diagnosis.findings, strict=True):
        assert result["level"] == ("note" if finding.severity == "advice" else "warning")
        assert result["properties"]["severity"] == finding.severity
        assert ("locations" in result) == (finding.location is not None)


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("/w/src/my train#1.py", "src/my%20train%231.py"),
        ("/w/a:b.py", "a%3Ab.py"),
        ("/elsewhere/a b.py", "file:///elsewhere/a%20b.py"),
    ],
)
def test_sarif_places_are_uris_and_lines(file, uri) -> None:
    report = SAMPLES["loader_bound"]()
    finding = replace(report.diagnosis.findings[0], location=Location(file=file, line=7))
    report = replace(
        report,
        workload=replace(report.workload, cwd="/w"),
        diagnosis=replace(report.diagnosis, findings=[finding]),
    )
    [result] = json.loads(rendered(report, "sarif"))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == uri
    assert place["region"] == {"startLine": 7}


def test_sarif_names_files_from_the_top_of_the_repository(tmp_path) -> None:
    """Code scanning opened nothing where the program had been started in a folder below."""
    (tmp_path / ".git").mkdir()
    script = tmp_path / "jobs" / "train.py"
    script.parent.mkdir()
    script.write_text("import torch\nloader = DataLoader(d)\n")
    report = SAMPLES["loader_bound"]()
    finding = replace(report.diagnosis.findings[0], location=Location(file=str(script), line=2))
    report = replace(
        report,
        workload=replace(report.workload, cwd=str(script.parent)),
        diagnosis=replace(report.diagnosis, findings=[finding]),
    )
    [run] = json.loads(rendered(report, "sarif"))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    base = run["originalUriBaseIds"][place["artifactLocation"]["uriBaseId"]]["uri"]
    assert place["artifactLocation"]["uri"] == "jobs/train.py"
    opened = Path((base + place["artifactLocation"]["uri"]).removeprefix("file://"))
    assert "DataLoader" in opened.read_text().splitlines()[place["region"]["startLine"] - 1]


@pytest.mark.parametrize("report", REPORTS)
def test_markdown_tables_have_as_many_cells_as_columns(report) -> None:
    columns = None
    for row in rendered(report, "markdown").splitlines():
        if not row.startswith("|"):
            columns = None
            continue
        cells = row.replace("\\|", "").count("|")
        columns = columns or cells
        assert cells == columns


def test_a_file_that_is_no_report_is_a_usage_error(tmp_path: Path) -> None:
    for name, text in {"empty": "", "other": '{"a": 1}', "damaged": '{"schema_version": '}.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError):
            read_report(path)
    with pytest.raises(UsageError):
        read_report(tmp_path / "missing.json")


@pytest.mark.parametrize("format", ["terminal", "html", "markdown", "json"])
@pytest.mark.parametrize("fixes", ["none", "another"])
def test_a_patch_of_fixes_that_are_not_in_the_report_is_shown(format, fixes) -> None:
    """A report of another version may name fixes that this one does not know."""
    report = SAMPLES["loader_bound"]()
    first = report.recommendation.fixes[0]
    changed = [] if fixes == "none" else [replace(first, fix="another-fix")]
    report = replace(report, recommendation=replace(report.recommendation, fixes=changed))
    assert rendered(report, format)
