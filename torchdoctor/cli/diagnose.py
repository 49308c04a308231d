"""`torchdoctor diagnose`."""

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.arguments import (
    Details,
    ExitCode,
    OutputFile,
    ReportFormat,
    TensorBoard,
    format_of,
)
from torchdoctor.cli.outputs import (
    answer_to,
    check_written,
    hand_out,
    kind_of,
    leave_with_code,
    say,
)
from torchdoctor.schema.errors import UsageError

HELP = (
    "Diagnose existing PyTorch profiler traces: nothing is run, no GPU is needed.\n\n"
    "torchdoctor diagnose trace.json.gz\n\n"
    "torchdoctor diagnose folder-of-ranks/\n\n"
    "zcat trace.json.gz | torchdoctor diagnose -"
)


def diagnose(
    traces: Annotated[
        list[str],
        typer.Argument(help="Traces (.json, .json.gz), a folder of ranks, or - for stdin."),
    ],
    output: OutputFile = None,
    tensorboard: TensorBoard = None,
    annotate: Annotated[
        Path | None,
        typer.Option(
            help="Also write the trace with its findings (.json[.gz]) for ui.perfetto.dev."
        ),
    ] = None,
    on: Annotated[str | None, typer.Option(help="Read traces on nodes: ray[=ADDRESS].")] = None,
    details: Details = False,
    format: ReportFormat = None,
    exit_code: ExitCode = False,
) -> None:
    """Why was the recorded training slow?"""
    from torchdoctor.runs.traces import trace_checkup

    format = format_of(format, output, more=["html", "sarif"])
    files = {kind_of(format, "report"): output, "annotated trace": annotate}
    check_written(files, [trace for trace in traces if trace != "-"], tensorboard)
    if annotate is not None and "-" in traces:
        raise UsageError("--annotate needs a file: save the standard input to a file first.")
    report = trace_checkup(traces, annotate, on)
    with answer_to(output):
        hand_out(report, tensorboard, details, format)
    if tensorboard is not None and "-" in traces:
        say(
            f"{tensorboard} holds no copy of the trace, which came from the standard input. To "
            "get a copy, save the trace to a file and name that file."
        )
    if annotate is not None:
        say(f"To see it: open {annotate} in https://ui.perfetto.dev")
    leave_with_code(report, exit_code)
