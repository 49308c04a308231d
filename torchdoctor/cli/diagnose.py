"""`torchdoctor diagnose`."""

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.arguments import Details, Html, Json, TensorBoard
from torchdoctor.cli.outputs import check_written, hand_out
from torchdoctor.words.errors import UsageError

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
    json: Json = None,
    html: Html = None,
    tensorboard: TensorBoard = None,
    annotate: Annotated[
        Path | None,
        typer.Option(
            help="Also write the trace with tracks of its steps, what they wait for and the "
            "findings here, for ui.perfetto.dev (.json or .json.gz)."
        ),
    ] = None,
    details: Details = False,
) -> None:
    """Why was the recorded training slow?"""
    from torchdoctor.checkup.traces import trace_checkup

    files = {"report": json, "HTML page": html, "annotated trace": annotate}
    check_written(files, [trace for trace in traces if trace != "-"], tensorboard)
    if annotate is not None and "-" in traces:
        raise UsageError("--annotate copies a file: save the standard input to one first.")
    report = trace_checkup(traces, annotate)
    hand_out(report, files, tensorboard, details)
    if tensorboard is not None and "-" in traces:
        typer.echo(
            f"{tensorboard} holds no copy of the trace: it came from the standard input. Save it "
            "to a file and name that one.",
            err=True,
        )
    if annotate is not None:
        typer.echo(f"To see it: open {annotate} in https://ui.perfetto.dev", err=True)
