"""`torchdoctor compare`."""

import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.arguments import Details, OutputFile, PageFormat, format_of
from torchdoctor.cli.outputs import answer_to, check_written, kind_of, print_text
from torchdoctor.cli.stored import report_file
from torchdoctor.schema import Report
from torchdoctor.schema.errors import UsageError

HELP = (
    "Show what changed from A to B: reports of run or diagnose, or PyTorch profiler traces.\n\n"
    "torchdoctor compare before/report.json after/report.json\n\n"
    "torchdoctor compare before.json.gz after.json.gz\n\n"
    "Exit codes: 0 compared, 2 a file is neither report nor trace, 6 one has no step time."
)
STDIN = "-"
_HEAD_BYTES = 1 << 20
_REPORT = re.compile(rb"(?<!\\)\"schema_version\"\s*:")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A report.json, a run folder or a trace.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another of these, to compare with A.")],
    output: OutputFile = None,
    format: PageFormat = None,
    details: Details = False,
) -> None:
    """What changed from A to B?"""
    from torchdoctor.compare import compare as compared
    from torchdoctor.reports import comparison as formats
    from torchdoctor.reports import markdown, terminal
    from torchdoctor.reports.side_by_side import comparison_page
    from torchdoctor.reports.summary import of_comparison, with_json
    from torchdoctor.schema.record_files import encode

    format = format_of(format, output, more=["html"])
    for name in (a, b):
        _check_file(name)
        report_file(Path(name))  # raises UsageError for a watched run
    check_written({kind_of(format, "comparison"): output}, read=(a, b))
    reports = _report(Path(a)), _report(Path(b))
    comparison = compared(*reports, (a, b))
    document = formats.document(comparison)
    with answer_to(output):
        match format:
            case "json":
                answer = with_json(of_comparison(comparison))
                print_text(encode(replace(comparison, summary=answer)).decode())
            case "html":
                print_text(comparison_page(comparison, *reports))
            case "markdown":
                print_text(markdown.render(document))
            case _:
                terminal.show(document, details)


def _check_file(name: str) -> None:
    """UsageError for what is no file or folder: each is looked at before it is read."""
    if not name:
        raise UsageError("One of the two file names is empty: name two files to compare.")
    try:
        mode = None if name == STDIN else Path(name).stat().st_mode
    except OSError as error:
        raise UsageError(f"Cannot read {name}: {error.strerror or error}.") from error
    if mode is not None and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return
    source = "the standard input" if name == STDIN else f"{name}, a pipe or device"
    raise UsageError(f"compare cannot read {source}: save it to a file and name that file.")


def _report(path: Path) -> Report:
    """Return the report of a file, told by content; a trace is diagnosed first."""
    from torchdoctor.runs.traces import trace_checkup
    from torchdoctor.schema.record_files import REPORT_NAME, read_report
    from torchdoctor.trace.files import GZIP_MAGIC, events_start

    if path.is_dir():
        return read_report(path) if (path / REPORT_NAME).exists() else trace_checkup([str(path)])
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            is_trace = head.startswith(GZIP_MAGIC) or events_start(head) is not None
            is_report = not is_trace and _REPORT.search(head + file.read()) is not None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from error
    if is_trace:
        return trace_checkup([str(path)])
    if is_report:
        return read_report(path)
    raise UsageError(f"{path} is neither a report of torchdoctor nor a PyTorch profiler trace.")
