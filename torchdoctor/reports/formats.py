"""A report in each of its formats."""

from __future__ import annotations

from pathlib import Path, PurePath

from torchdoctor.reports import details, first_screen, html, markdown, sarif, terminal, wording
from torchdoctor.reports.document import Document
from torchdoctor.words import Report
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import clean, relative
from torchdoctor.words.record_files import encode

FORMATS = ("terminal", "html", "markdown", "json", "sarif")


def document(report: Report, folder: str = "") -> Document:
    """Return what a report says; commands name paths from the reader's folder."""
    subject = [
        _program(report.workload.command, folder),
        wording.short_machine(report.environment),
    ]
    run = relative(report.run_folder, folder) if report.run_folder else ""
    command = f"torchdoctor report {run}" if run else "the same command with"
    return Document(
        title="torchdoctor",
        subject=" · ".join(filter(None, subject)),
        summary=wording.first_sentence(clean(report.diagnosis.sentence.strip())),
        screen=first_screen.screen(report, folder),
        details=details.details(report),
        hint=f"details: {command} --details",
    )


def _program(command: list[str], folder: str) -> str:
    """Return the program, or the traces, as somebody would name them in conversation."""
    if command[:2] == ["torchdoctor", "diagnose"]:
        return ", ".join(PurePath(clean(name)).name for name in command[2:])
    program, *arguments = command or [""]
    if PurePath(program).name.startswith("python") and not (arguments or ["-"])[0].startswith("-"):
        command = arguments
    return " ".join(relative(clean(word), folder) for word in command)


def rendered(
    report: Report, format: str, full: bool = True, width: int = terminal.WIDTH, folder: str = ""
) -> str:
    """Return a report in one of `FORMATS`, ending with a newline.

    If not `full`, formats that may leave out the details do. `width` is in columns; commands name
    paths from the reader's folder.

    Raises:
        UsageError: there is no such format.
    """
    match format:
        case "json":
            return encode(report).decode("utf-8").rstrip("\n") + "\n"
        case "sarif":
            return sarif.render(report)
        case "html":
            return html.render(document(report, folder))
        case "markdown":
            return markdown.render(document(report, folder), full)
        case "terminal":
            return terminal.render(document(report, folder), width, full)
    raise UsageError(f"'{format}' is no format: choose {', '.join(FORMATS)}.")


def show(report: Report, full: bool = False) -> None:
    """Print a report on the terminal."""
    terminal.show(document(report, str(Path.cwd())), full)
