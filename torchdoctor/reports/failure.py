"""A program that failed by itself after enough steps: what its report says, how `run` ends."""

from __future__ import annotations

import re

from torchdoctor.words import ProgramFailure, Report
from torchdoctor.words.errors import ProgramFailed
from torchdoctor.words.figures import clean

_LONGEST_LINE = 200
_LAST_LINES = 40
# Behind the rank, where torchrun started it; torchrun's own ends with a colon.
_EXCEPTION = re.compile(r"(\[\w+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: \S.*)?$")


def failure(report: Report) -> str:
    """Return one sentence on the program's failure; empty where it did not fail."""
    failed = report.failure
    if failed is None:
        return ""
    line = _telling_line(failed.output_tail)
    exception = f" It says: {line}" if line else ""
    return f"{how_it_failed(failed)}: the report is of the steps before.{exception}"


def program_failed(
    failed: ProgramFailure, what_then: str = "the report is of the steps before"
) -> ProgramFailed:
    """Return the error that ends the command, with the program's own traceback."""
    output = failed.output_tail.strip()
    ending = f"Its own output ends with:\n\n{output}" if output else "It printed nothing."
    return ProgramFailed(f"{how_it_failed(failed)}; {what_then}. {ending}", failed.exit_code)


def _telling_line(output: str) -> str:
    """Return the exception that ended the program, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return exception_line(output) or clean(next(reversed(lines), "")[:_LONGEST_LINE])


def exception_line(output: str) -> str:
    """Return the last exception among the last lines of an output; empty without one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return next((clean(x[:_LONGEST_LINE]) for x in reversed(lines) if _EXCEPTION.match(x)), "")


def how_it_failed(failed: ProgramFailure) -> str:
    """After how many steps, and how; no full stop at the end."""
    how = f"exit code {failed.exit_code}"
    if failed.exit_code < 0:
        how = f"killed by signal {-failed.exit_code}"
    steps = f"{failed.steps} training step{'s' * (failed.steps != 1)}"
    return f"The program itself failed after {steps} ({how})"
