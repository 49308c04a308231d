"""What can go wrong, each with a documented slug and exit code (README.md lists the codes).

An error carries one sentence that tells the user what to do. `cli` prints it and exits with
`exit_code`; nobody else prints or exits.
"""

from __future__ import annotations


class TorchdoctorError(Exception):
    """Base of every expected failure."""

    slug = "error"
    exit_code = 70


class UsageError(TorchdoctorError):
    """The command line or a file given on it cannot be used."""

    slug = "usage"
    exit_code = 2


class NoTrace(UsageError):
    """A file is no trace that can be read.

    Args:
        what: what is wrong with which file, for where others beside it are read all the same.
        advice: what to do.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}.")
        self.what, self.advice = problem, advice

    def __reduce__(self) -> tuple[type[NoTrace], tuple[str, str]]:
        return NoTrace, (self.what, self.advice)  # comes back from another process


class ProgramFailed(TorchdoctorError):
    """The user's program ended with an error, before it could be measured or afterwards.

    Args:
        message: one sentence.
        program_exit_code: what the program itself exited with (negative: killed by that signal).
    """

    slug = "program-failed"
    exit_code = 3

    def __init__(self, message: str, program_exit_code: int | None = None) -> None:
        super().__init__(message)
        self.program_exit_code = program_exit_code


class NoStepFound(TorchdoctorError):
    """The program ran, but nothing in it looked like a training step."""

    slug = "no-step"
    exit_code = 4


class TimedOut(TorchdoctorError):
    """The program took longer than `--timeout`, or hung."""

    slug = "timed-out"
    exit_code = 5


class Inconclusive(TorchdoctorError):
    """The two sides cannot be compared, or the data do not decide."""

    slug = "inconclusive"
    exit_code = 6


class Interrupted(TorchdoctorError):
    """Ctrl-C: what was measured so far is kept."""

    slug = "interrupted"
    exit_code = 130
