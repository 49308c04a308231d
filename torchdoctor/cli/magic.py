"""`%%torchdoctor` in a notebook: the cell is the program that is measured."""

import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from torchdoctor.cli.outputs import say
from torchdoctor.reports.formats import PythonReport
from torchdoctor.schema.errors import TorchdoctorError, UsageError


def register(shell: Any) -> None:
    """Add the magic to a shell of IPython."""

    def magic(line: str, cell: str) -> PythonReport | None:
        return measured(line, cell, shell.execution_count)

    magic.__doc__ = measured.__doc__
    shell.register_magic_function(magic, magic_kind="cell", magic_name="torchdoctor")


def measured(line: str, cell: str, number: int) -> PythonReport | None:
    """Measure a cell as `torchdoctor run` does a script, and return the report.

    %%torchdoctor --budget 2m --no-fixes

    The cell is started in processes of its own, again and again: it has to hold the whole program,
    imports too, and what it computes stays there. Options are those of `torchdoctor run`.
    """
    from torchdoctor.cli import python
    from torchdoctor.launch.notebooks import converted_cell
    from torchdoctor.reports import remarks

    try:
        try:
            options = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"The options of %%torchdoctor are no words: {error}.") from error
        made = converted_cell(cell, number, str(Path.cwd()))
        if made.remark is not None:
            say(remarks.sentence(made.remark))
        interpreter = [] if _names_python(options) else ["--python", sys.executable]
        return python.run_words([*interpreter, *options, "--", made.script])
    except TorchdoctorError as error:  # one sentence, and no traceback of ours
        say(f"torchdoctor: {error}")
        return None
    except typer.Exit:  # of --help and the like, which has printed
        return None


def _names_python(options: list[str]) -> bool:
    return any(option.partition("=")[0] == "--python" for option in options)
