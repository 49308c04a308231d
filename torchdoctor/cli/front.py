"""The front door: parses the command line, prints, and sets exit codes. It decides nothing.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

import errno
import os
import re
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from torchdoctor import __version__
from torchdoctor.cli import (
    agent_guide,
    compare,
    diagnose,
    explain,
    gate,
    mcp,
    run,
    stored,
    top,
    watch,
)
from torchdoctor.cli.limits import check_address_space, limit_reached
from torchdoctor.cli.outputs import discard_output
from torchdoctor.schema import secret_values
from torchdoctor.schema.errors import EXIT_CODES, TorchdoctorError, UsageError
from torchdoctor.schema.figures import clean

app = typer.Typer(
    name="torchdoctor",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Why is this PyTorch training slow, what exactly should change, and how much faster "
    "will it be: measured here, with an interval, and with proof that training stays the same.",
    epilog=f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
)
_INTERRUPTED = 130
_HINT = re.compile(r"\. Did you mean (.*)\?$")
# typer exports no name for the error of which this is one kind.
UNUSABLE: type[Exception] = typer.BadParameter.__mro__[1]
_ITS_ARGUMENTS = {"allow_interspersed_args": False}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"torchdoctor {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Why is this PyTorch training slow, and what exactly should change?"""


app.command(name="run", context_settings=_ITS_ARGUMENTS, help=run.HELP)(run.run)
app.command(name="watch", context_settings=_ITS_ARGUMENTS, help=watch.HELP)(watch.watch)
app.command(name="diagnose", help=diagnose.HELP)(diagnose.diagnose)
app.command(name="compare", help=compare.HELP)(compare.compare)
app.command(name="gate", context_settings=_ITS_ARGUMENTS, help=gate.HELP)(gate.gate)
app.command(name="top", help=top.HELP)(top.top)
app.command(name="report")(stored.report)
app.command(name="patch", help=stored.PATCH_HELP)(stored.patch)
app.command(name="explain")(explain.explain)
app.command(name="env")(stored.env)
app.command(name="mcp", help=mcp.HELP)(mcp.mcp)
app.command(name="agent-guide")(agent_guide.agent_guide)


def _end_of(error: BaseException) -> int:
    """Say which limit of the machine was reached, or that it is a defect; return the exit code.

    Our own traceback is saved with how to report it: the user never reads it on the screen.
    """
    if (limit := limit_reached(error)) is not None:
        _say(f"torchdoctor: {limit}")
        return 2
    with tempfile.NamedTemporaryFile(
        "w", prefix="torchdoctor-defect-", suffix=".txt", delete=False
    ) as file:
        file.write(f"torchdoctor {__version__}\nargv: {secret_values.masked(sys.argv)}\n\n")
        text = "".join(traceback.format_exception(error))
        file.write(secret_values.without(text, secret_values.values(sys.argv)))
    _say(
        f"torchdoctor: this is a defect of torchdoctor ({type(error).__name__}: {error}). "
        f"Please report it with the file {file.name}."
    )
    return 70


def _say(text: str) -> None:
    if sys.stderr is None:
        return
    text = clean(text)
    if sys.stderr.isatty():  # a log gets its one line
        from torchdoctor.reports.wrapping import fill, width

        text = fill(text, 2, width())
    typer.echo(text, err=True)


def _end_like_ctrl_c() -> None:
    """Give a scheduler that ends the job the report of what was measured, as Ctrl-C does."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def _by_ctrl_c(end: BaseException | None) -> bool:
    """Return True if it began as a KeyboardInterrupt, which typer makes a silent exit of."""
    while end is not None and not isinstance(end, KeyboardInterrupt):
        end = end.__cause__ or end.__context__
    return end is not None


def _interrupted() -> int:
    _say("torchdoctor: interrupted.")
    return _INTERRUPTED


def _usage(error: Any) -> str:
    """Return what is wrong with the command line in one sentence, and where it is described."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help())
        return "Name a command."
    command = context.command_path if context is not None else "torchdoctor"
    problem = " ".join(error.format_message().split()).rstrip(".")
    problem = _HINT.sub(r" (did you mean \1?)", problem)
    return f"{problem}: {command} --help lists what it takes."


def _folder_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        return True
    return False


def _check_command(words: list[str]) -> None:
    """Raise UsageError for a script in place of a command, or where no command can work."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The working folder was removed: change to one that is there.") from error
    if words and words[0].endswith(".py"):
        raise UsageError(
            f"'{words[0]}' is not a command of torchdoctor: torchdoctor run {words[0]} measures "
            "the script, torchdoctor --help lists all commands."
        )


def main() -> None:
    """Entry point: every expected failure is one sentence and its exit code."""
    _end_like_ctrl_c()
    try:
        _check_command(sys.argv[1:])
        check_address_space()
        code = app(prog_name="torchdoctor", standalone_mode=False)
        if code == _INTERRUPTED:  # typer makes it of Ctrl-C outside of what a command handles
            sys.exit(_interrupted())
        if isinstance(code, int) and code:
            sys.exit(code)
    except UNUSABLE as error:
        _say(f"torchdoctor: {_usage(error)}")
        sys.exit(2)
    except typer.Abort as end:
        sys.exit(_end_of(end) if limit_reached(end) is not None else _interrupted())
    except TorchdoctorError as error:
        _say(f"torchdoctor: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:
        if not _by_ctrl_c(end):
            raise
        if limit_reached(end) is not None:
            sys.exit(_end_of(end))
        sys.exit(_interrupted())
    except BrokenPipeError:
        # The reader of our output has gone (| head): not an error of ours, and not worth a word.
        discard_output()
        sys.exit(0)
    except OSError as error:
        sys.exit(_end_of_os_error(error))
    except Exception as error:
        sys.exit(_end_of(error))


def _end_of_os_error(error: OSError) -> int:
    """Say what the system refused, where the user can mend it; return the exit code."""
    if error.errno == errno.ENAMETOOLONG:
        _say(f"torchdoctor: {str(error.filename)[:60]}... is too long a name: shorten it.")
        return 2
    if error.errno == errno.ENOENT and _folder_is_gone():
        _say("torchdoctor: the current folder does not exist any more: change to another.")
        return 2
    if error.errno == errno.ENOSPC:
        discard_output()
        _say(f"torchdoctor: cannot write the output ({error.strerror}): free some disk space.")
        return 2
    return _end_of(error)


if __name__ == "__main__":
    main()
