"""`torchdoctor top`."""

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli import stored
from torchdoctor.cli.arguments import FileFormat, OutputFile, format_of
from torchdoctor.cli.outputs import answer_to, check_written, kind_of, print_text, say

HELP = (
    "Show a watched training live, also one that runs elsewhere on a shared folder; q leaves.\n\n"
    "It only reads the run's folder, and costs the training nothing."
)
_Run = Annotated[
    Path | None, typer.Argument(help="The run's folder (default: the newest watched run here).")
]


def top(run: _Run = None, format: FileFormat = None, output: OutputFile = None) -> None:
    """Show the run until it ends, then say so; in another format or to a file: as it is now."""
    from torchdoctor.watch import end_report
    from torchdoctor.watch.top import top

    form = format_of(format, output)
    if form == "text" and output is None:
        sentence = top(stored.watched_run(run))
        if sentence:
            say(sentence, error=False)
        return
    check_written({kind_of(form): output})
    with answer_to(output):
        print_text(end_report.rendered(stored.watched_run(run), form))
