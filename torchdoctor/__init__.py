"""torchdoctor: why is this PyTorch training slow, what should change, and how much does it gain.

`run` and `report` are the commands for scripts and notebooks. In a training script only `step` is
of use.
"""

from __future__ import annotations

import sys

# Training scripts import this file: what the other functions need is imported inside them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torchdoctor.reports.formats import PythonReport

__version__ = "0.1.0"
__all__ = ["__version__", "report", "run", "step"]


def run(command: str | Iterable[str | Path], **options: object) -> PythonReport:
    """Measure a training program as `torchdoctor run` does, and return its report.

    Args:
        command: the script with its arguments, as a line or as words; or any other command.
        options: those of `torchdoctor run --help`, with an underscore for a hyphen: budget="2m",
            fixes=["loader-workers"], no_fixes=True.

    The report is typed as report.json is. A notebook shows the first screen of its page;
    `trials_frame()` and `steps_frame()` give pandas frames.

    Raises:
        torchdoctor.schema.errors.TorchdoctorError: where the command ends with another exit code
            than 0, with the same sentence and that `exit_code`. If the program was measured before
            that, `torchdoctor.report()` has the report.
    """
    from torchdoctor.cli import python

    return python.run(command, options)


def report(path: str | Path | None = None) -> PythonReport:
    """Return the report of a run folder or of a report.json; by default of the newest run here.

    Raises:
        torchdoctor.schema.errors.UsageError: there is no report.
    """
    from torchdoctor.cli import python

    return python.report(path)


def load_ipython_extension(shell: object) -> None:
    """Give IPython the magic `%%torchdoctor`: `%load_ext torchdoctor` calls this."""
    from torchdoctor.cli import magic

    magic.register(shell)


def step(samples: int | None = None) -> None:
    """Mark the end of one training iteration in the program being measured.

    Overrules how `torchdoctor run` finds steps. Does nothing (one dictionary look-up) when the
    program runs without torchdoctor.

    Args:
        samples: how many samples the iteration used; None where it is not known.
    """
    attach = sys.modules.get("_torchdoctor_probe_attach")
    if attach is not None:
        attach.explicit_step(samples)
