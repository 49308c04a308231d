"""`torchdoctor run --detach`: the same command again, in a session and a process of its own."""

import contextlib
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from torchdoctor.cli.outputs import print_json, say
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.summary import Summary

_FOLDER = "TORCHDOCTOR_DETACHED_RUN"  # tells the other process which folder was made for it
_OPTION = "--detach"


def own_folder() -> Path | None:
    """Return the folder that was made for this run; None: it is no detached one."""
    named = os.environ.pop(_FOLDER, None)  # not for the program
    return Path(named) if named else None


def start(output: Path | None, format: str) -> None:
    """Start the run and print where it writes; the command line was checked before."""
    from torchdoctor.launch.run_folder import new_run_folder
    from torchdoctor.reports import status

    words = list(sys.argv[1:])
    if _OPTION not in words:
        raise UsageError("--detach is an option of the command line alone.")
    words.remove(_OPTION)  # the first: what follows the program is its own
    folder = new_run_folder(output, str(Path.cwd()), datetime.now(timezone.utc))
    with (folder / status.LOG_NAME).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "torchdoctor", *words],
            env={**os.environ, _FOLDER: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    begun = status.begun(folder, process.pid)
    # The run itself may have written a newer one.
    with contextlib.suppress(FileExistsError), (folder / status.STATUS_NAME).open("x") as file:
        file.write(status.as_json(begun))
    following = begun.summary.next
    if format == "json":
        answer = Summary(sentence=f"The run goes on in {folder}.", next=following)
        print_json(answer, run_folder=str(folder), pid=process.pid)
        return
    say(str(folder), error=False)
    if following is not None:
        say(f"The run goes on in this folder. Where it stands: {following.command}")
