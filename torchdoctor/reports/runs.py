"""The runs of a folder as a document: one row each, with what it found and what that is worth."""

from collections.abc import Sequence
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.queries.outcomes import is_proven
from torchdoctor.reports.document import Document, Row, sections, table
from torchdoctor.reports.formats import program
from torchdoctor.schema import set_of
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import SHARE_LABELS, counted, fixes_alone, percent, speedup
from torchdoctor.schema.record_files import read_report


def document(files: Sequence[Path]) -> Document:
    """Return a table of these reports, in their order; what cannot be read is said to be so."""
    number = counted(len(files), "run")
    columns = ["folder", "program", "slow because of", "recommended"]
    return Document(
        title="torchdoctor",
        subject=f"{number} in {files[0].parent.parent}, the newest first",
        summary=number,
        screen=sections(("", table(columns, [_row(file) for file in files]))),
        details=[],
        hint=f"one of them: torchdoctor report {files[0].parent.parent}/FOLDER",
    )


def _row(file: Path) -> Row:
    try:
        report = read_report(file)
    except UsageError:
        return Row([file.parent.name, "cannot be read", "", ""], "soft")
    recommended = report.recommendation
    branch = report.diagnosis.bottleneck
    share = vars(report.baseline.shares).get(branch)
    cause = SHARE_LABELS.get(branch, "no part of the step")
    cause += f", {percent(share)}" if share is not None else ""
    faster = recommended.speedup is not None and recommended.speedup.low > 1
    names = fixes_alone(catalogue.named(set_of(recommended.fixes)))
    open_yet = "" if is_proven(recommended.speedup, recommended.pairs) else ", not proven"
    figures = f"{names}: {speedup(recommended.speedup)}{open_yet}"
    gain = figures if faster else "nothing yet"
    command = program(report.workload.command, str(Path.cwd()))
    return Row([file.parent.name, command, cause, gain], "good" if faster and not open_yet else "")
