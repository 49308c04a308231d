"""What `torchdoctor gate` hands out: files, the terminal, GitHub's annotation and step summary."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from torchdoctor.words.errors import Inconclusive, TorchdoctorError, UsageError

if TYPE_CHECKING:
    from torchdoctor.words.gate import GateReport


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where the result is to be written; None: not asked for."""

    json: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None


def hand_out(report: GateReport, files: Files, details: bool) -> None:
    """Write the files, then print: who no longer reads what is printed changes no exit code."""
    from torchdoctor.reports import gate as formats
    from torchdoctor.reports import terminal

    write_files(report, files)
    with _whoever_reads():
        terminal.show(formats.document(report), details)
        if _on_github():
            typer.echo(formats.annotation(report))


def write_files(report: GateReport, files: Files) -> None:
    """Write the files that were asked for, and GitHub's step summary.

    One that cannot be written (it could when the gate began) is named on standard error: neither
    the verdict nor the other files are lost for it.
    """
    from torchdoctor.reports import gate as formats
    from torchdoctor.reports import markdown
    from torchdoctor.words.record_files import write_gate_report, write_text

    page = markdown.render(formats.document(report))
    writers: list[tuple[Path | None, Callable[[Path], None]]] = [
        (files.json, lambda path: write_gate_report(report, path)),
        (files.markdown, lambda path: write_text(page, path)),
        (files.junit, lambda path: write_text(formats.junit(report), path)),
    ]
    for path, write in writers:
        if path is None:
            continue
        try:
            write(path)
        except UsageError as error:
            typer.echo(f"torchdoctor: {error}", err=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not _on_github() or not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        reason = error.strerror or error
        typer.echo(f"torchdoctor: the step summary {summary} was not written ({reason}).", err=True)


@contextlib.contextmanager
def failures_annotated() -> Iterator[None]:
    """Under GitHub Actions an error ends in an annotation too, or only the log knows the reason."""
    try:
        yield
    except TorchdoctorError as error:
        if _on_github():
            from torchdoctor.reports.gate import workflow_command

            kind = "warning" if isinstance(error, Inconclusive) else "error"
            with _whoever_reads():
                typer.echo(workflow_command(kind, first_sentences(error)))
        raise


def first_sentences(error: TorchdoctorError) -> str:
    """Return what an error says, and of the program's own output the exception alone."""
    from torchdoctor.reports.wording import exception_line

    message, _, output = str(error).partition("\n")
    raised = exception_line(output)
    message = message.removesuffix(" Its own output ends with:")
    return f"{message} It says: {raised}" if raised else message


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


@contextlib.contextmanager
def _whoever_reads() -> Iterator[None]:
    """Print even if nobody reads it any more (| head): that changes no exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is buffered would fail again when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
