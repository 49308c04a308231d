"""Where a command's report goes: the terminal and the files that were asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchdoctor.errors import UsageError

if TYPE_CHECKING:
    from torchdoctor.records import Report

FORMATS = ("terminal", "html", "markdown", "json", "sarif")


def render(report: Report, format: str) -> str:
    """The report as text; UsageError for an unknown format."""
    modules = {"json": "json_report"}
    if format not in FORMATS:
        raise UsageError(f"'{format}' is no format: choose {', '.join(FORMATS)}.")
    module: Any = import_module(f"torchdoctor.reports.{modules.get(format, format)}")
    rendered: str = module.render(report)
    return rendered


def write(report: Report, json: Path | None, html: Path | None) -> None:
    """Write the report to the files that were asked for."""
    from torchdoctor.record_files import write_report, write_text

    if json is not None:
        write_report(report, json)
    if html is not None:
        write_text(render(report, "html"), html)


def show(report: Report) -> None:
    """Print the report on the terminal."""
    from torchdoctor.reports.terminal import print_report

    print_report(report)
