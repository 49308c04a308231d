"""`torchdoctor patch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdoctor.cli.arguments import report_file

if TYPE_CHECKING:
    from torchdoctor.words import Recording, Report

HELP = (
    "Print the recommended edits of your source as one unified diff.\n\n"
    "torchdoctor patch report.json | git apply"
)


def patch(
    file: Annotated[
        Path | None,
        typer.Argument(help="The report.json of a run (default: the newest run here)."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            help="The edit of this fix alone, recommended or only offered; of several (given "
            "again, or with commas) one diff.",
            metavar="ID",
        ),
    ] = None,
) -> None:
    """Print the diff on stdout, and what cannot be edited on stderr."""
    from torchdoctor.reports.patch import remarks
    from torchdoctor.words.errors import UsageError
    from torchdoctor.words.record_files import read_report

    file = report_file(file)
    report = read_report(file)
    words = [word.strip() for given in fix or [] for word in given.split(",")]
    asked = list(dict.fromkeys(word for word in words if word))
    if fix and not asked:
        raise UsageError("--fix names no fix.")
    if not asked:
        diff, lines = report.recommendation.patch, remarks(report)
    else:
        diff, lines = _of_fixes(report, file, asked)
    # As the files are: the terminal's encoding may lack what stands in them.
    sys.stdout.buffer.write((diff or "").encode("utf-8", "surrogateescape"))
    sys.stdout.flush()
    for line in lines:
        typer.echo(line, err=True)


def _of_fixes(report: Report, file: Path, asked: list[str]) -> tuple[str | None, list[str]]:
    """Return one diff of these fixes; of several made anew: theirs may change the same call."""
    from torchdoctor.advice.catalogue import fixes
    from torchdoctor.advice.wording import source_patch
    from torchdoctor.reports.patch import edit_of, remarks_on

    shown = [edit_of(report, ident) for ident in asked]
    editable = [fix for fix in shown if fix.edit]
    if len(shown) == 1 and editable:
        folder = shown[0].folder or report.workload.cwd
        return shown[0].edit, remarks_on(report, shown, asked, folder)
    made = None
    if editable:
        wanted = [(fix.fix, fix.settings) for fix in editable]
        made = source_patch(wanted, _recording(report, file), fixes())
    if made is None:
        return None, remarks_on(report, shown, [], None)
    return made.diff, remarks_on(report, shown, made.fixes, made.folder)


def _recording(report: Report, file: Path) -> Recording:
    """Return what the run saw, which says where the source is to be changed.

    Raises:
        UsageError: the run's folder is not there any more.
    """
    from torchdoctor.words.errors import UsageError
    from torchdoctor.words.record_files import RECORDING_NAME, read_recording

    beside = file if file.is_dir() else file.parent
    folders = [beside, *([Path(report.run_folder)] if report.run_folder else [])]
    for folder in folders:
        if not (folder / RECORDING_NAME).is_file():
            continue
        recording = read_recording(folder / RECORDING_NAME)
        if recording.workload.command == report.workload.command:
            return recording
    raise UsageError(
        f"One diff of several fixes needs the run's {RECORDING_NAME}, which is not beside this "
        "report: name the report in the run's own folder, or print one fix at a time."
    )
