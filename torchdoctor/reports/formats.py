"""A report in each of its formats, and in Python: a notebook shows it, pandas gets its trials."""

import contextlib
import itertools
import json
import shlex
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from torchdoctor.advice import catalogue
from torchdoctor.reports import (
    details,
    first_screen,
    html,
    markdown,
    terminal,
    verdict,
    wording,
)
from torchdoctor.reports.document import PAGE_NAME, Document, prose
from torchdoctor.reports.pictures import pictures
from torchdoctor.reports.run_columns import read_measured
from torchdoctor.reports.summary import of_report, with_json
from torchdoctor.schema import Finding, Report, Trial
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import clean, duration, fixes_with_settings, relative
from torchdoctor.schema.record_files import encode, write_text

FORMATS = ("text", "html", "markdown", "json", "sarif")
_LEVELS = {"high": "warning", "moderate": "warning", "advice": "note"}
_BASE = "SRCROOT"  # GitHub's name for the top of the repository
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_STEP_COLUMNS = ("launches", "launch", "step", "ended_s", "step_s")


def document(report: Report, folder: str = "") -> Document:
    """Return what a report says; commands name paths from the reader's folder."""
    subject = [
        program(report.workload.command, folder),
        wording.short_machine(report.environment),
        duration(report.elapsed_s) if report.elapsed_s is not None else "",
    ]
    run = relative(report.run_folder, folder) if report.run_folder else ""
    command = f"torchdoctor report {shlex.quote(run)}" if run else "the same command with"
    page = f"{run}/{PAGE_NAME}" if (Path(report.run_folder or "") / PAGE_NAME).is_file() else ""
    return Document(
        title="torchdoctor",
        subject=" · ".join(filter(None, subject)),
        summary=prose(
            clean(next((statement.sentence for statement in verdict.statements(report)), ""))
        ),
        screen=first_screen.screen(report, folder),
        details=details.details(report),
        hint=f"details: {command} --details" + (f" · page: {page}" if page else ""),
    )


def program(command: list[str], folder: str) -> str:
    """Return the program, or the traces, as somebody would name them in conversation."""
    if command[:2] == ["torchdoctor", "diagnose"]:
        return ", ".join(PurePath(clean(name)).name for name in command[2:])
    first, *arguments = command or [""]
    if PurePath(first).name.startswith("python") and not (arguments or ["-"])[0].startswith("-"):
        command = arguments
    return " ".join(relative(clean(word), folder) for word in command)


def rendered(
    report: Report, format: str, full: bool = True, width: int = terminal.WIDTH, folder: str = ""
) -> str:
    """Return a report in one of `FORMATS`, ending with a newline.

    If not `full`, formats that may leave out the details do. `width` is in columns; commands name
    paths from the reader's folder. Raise UsageError if there is no such format.
    """
    match format:
        case "json":
            answer = with_json(of_report(report))
            return encode(replace(report, summary=answer)).decode("utf-8").rstrip("\n") + "\n"
        case "sarif":
            return sarif(report)
        case "html":
            return html.render(document(report, folder), pictures(report))
        case "markdown":
            return markdown.render(document(report, folder), full)
        case "text" | "terminal":
            return terminal.render(document(report, folder), width, full)
    raise UsageError(f"'{format}' is no format: choose {', '.join(FORMATS)}.")


def write_page(report: Report) -> None:
    """Write the page into the run's folder, where there is one; full or gone, it is no error."""
    folder = Path(report.run_folder) if report.run_folder else None
    if folder is None or not folder.is_dir():
        return
    page = rendered(report, "html", folder=str(Path.cwd()))
    with contextlib.suppress(UsageError):  # what was measured is shown all the same
        write_text(page, folder / PAGE_NAME, through_link=False)


def show(report: Report, full: bool = False) -> None:
    """Print a report on the terminal."""
    terminal.show(document(report, str(Path.cwd())), full)


def sarif(report: Report) -> str:
    """Return the findings as SARIF 2.1.0, for code scanning, ending with a newline."""
    findings = report.diagnosis.findings
    rules = [
        {"id": ident, "shortDescription": {"text": ident.replace("-", " ")}}
        for ident in dict.fromkeys(finding.check for finding in findings)
    ]
    driver = {"name": "torchdoctor", "version": report.torchdoctor_version or "0", "rules": rules}
    cwd = Path(report.workload.cwd)
    # Code scanning reads paths from the top of the repository, others from the base.
    top = next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), cwd)
    results = [_result(finding, str(top)) for finding in findings]
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    if top.is_absolute():
        run["originalUriBaseIds"] = {_BASE: {"uri": f"{top.as_uri()}/"}}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: Finding, top: str) -> dict[str, Any]:
    text = prose(clean(" ".join(proof.sentence for proof in finding.evidence))) or finding.check
    result: dict[str, Any] = {
        "ruleId": finding.check,
        "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": text},
        # SARIF has no level between these: an "error" would fail a build for being slow.
        "properties": {"severity": finding.severity, "share_of_step": finding.share_of_step},
    }
    if finding.location is not None:
        path = PurePath(relative(finding.location.file, top))
        named = {"uri": quote(str(path)), "uriBaseId": _BASE}
        place = {
            "artifactLocation": {"uri": path.as_uri()} if path.is_absolute() else named,
            "region": {"startLine": max(finding.location.line, 1)},
        }
        result["locations"] = [{"physicalLocation": place}]
    return result


@dataclass(frozen=True, kw_only=True, repr=False)
class PythonReport(Report):
    """A report with what Python shows of it; its fields are those of report.json."""

    def __repr__(self) -> str:
        return rendered(self, "terminal", full=False, folder=str(Path.cwd()))

    def _repr_html_(self) -> str:
        """Return the first screen of the report's page, in a frame that keeps its style apart."""
        screen = replace(document(self, str(Path.cwd())), details=[])
        style = "width: 100%; height: 40rem; border: 0"
        return f'<iframe srcdoc="{escape(html.render(screen))}" style="{style}"></iframe>'

    def trials_frame(self) -> Any:
        """Return a pandas frame of the trials, with fields of report.json and names."""
        rows = [
            {
                "name": " + ".join(map(catalogue.name, trial.fixes)),
                **vars(trial),
                "fixes": fixes_with_settings(trial.fixes),
                "speedup": trial.speedup and trial.speedup.estimate,
                "low": trial.speedup and trial.speedup.low,
                "high": trial.speedup and trial.speedup.high,
            }
            for trial in self.trials
        ]
        columns = ["name", *(field.name for field in fields(Trial)), "low", "high"]
        return _pandas().DataFrame(rows, columns=columns)

    def steps_frame(self) -> Any:
        """Return a pandas frame of each step; `ended_s` counts from the first of all."""
        kinds = read_measured(self).kinds
        edges = [
            (kind, *numbered_times)
            for kind, launches in kinds.items()
            for numbered_times in enumerate(launches)
        ]
        began_ns = min((int(times[0]) for _, _, times in edges), default=0)
        rows = [
            (kind, launch, step, (end - began_ns) / 1e9, (end - begin) / 1e9)
            for kind, launch, times in edges
            for step, (begin, end) in enumerate(itertools.pairwise(times.tolist()))
        ]
        return _pandas().DataFrame(rows, columns=_STEP_COLUMNS)


def in_python(report: Report) -> PythonReport:
    """Return the same report, for Python."""
    return PythonReport(**vars(report))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("Frames of a report need pandas: pip install pandas") from None
    return pandas
