"""`torchdoctor top`."""

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli import stored
from torchdoctor.cli.arguments import Format, checked_format
from torchdoctor.cli.outputs import print_text, say

HELP = (
    "Show a watched training live, also one that runs elsewhere on a shared folder; q leaves.\n\n"
    "It only reads the run's folder, and costs the training nothing."
)
_Run = Annotated[
    Path | None, typer.Argument(help="The run's folder (default: the newest watched run here).")
]


def top(run: _Run = None, format: Format = "text") -> None:
    """Show the run until it ends, then say so in one sentence; another format: as it is now."""
    from torchdoctor.watch import end_report
    from torchdoctor.watch.top import top

    format = checked_format(format)
    if format != "text":
        print_text(end_report.rendered(stored.watched_run(run), format))
        return
    sentence = top(stored.watched_run(run))
    if sentence:
        say(sentence, error=False)
