"""What can go wrong, each with a documented slug and exit code.

An error carries one sentence that tells the user what to do. `cli` prints it and exits with
`exit_code`; nobody else prints or exits.
"""

#: All exit codes, as `--help` and docs/cli.md list them.
EXIT_CODES = {
    0: "done",
    1: "gate: slower",
    2: "usage",
    3: "the program failed (even if the steps before the failure gave a report)",
    4: "no step found; a server that only waits for requests",
    5: "timed out",
    6: "not decided or not comparable",
    10: "a fix is recommended (with --exit-code)",
    70: "a defect of torchdoctor",
    130: "interrupted (what was measured is kept)",
}


class TorchdoctorError(Exception):
    """Base of every expected failure; `output_tail` is the end of what the user's program wrote."""

    slug = "error"
    exit_code = 70

    def __init__(self, message: str = "", output_tail: str = "") -> None:
        ending = f" Its own output ends with:\n\n{output_tail}" if output_tail else ""
        super().__init__(f"{message}{ending}")
        self.message = message
        self.output_tail = output_tail

    def __init_subclass__(cls, slug: str = "", exit_code: int = 0) -> None:
        if slug:  # else those of the class above it
            cls.slug = slug
            cls.exit_code = exit_code


class UsageError(TorchdoctorError, slug="usage", exit_code=2):
    """The command line or a file given on it cannot be used."""


class NoTrace(UsageError):
    """A file is no trace that can be read; others beside it may be read all the same."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}.")
        self.what = problem
        self.advice = advice

    def __reduce__(self) -> tuple[type["NoTrace"], tuple[str, str]]:
        return NoTrace, (self.what, self.advice)  # comes back from another process


class CannotWrite(UsageError):
    """A file cannot be written; `problem` is the system's, None: a link or no file lies there."""

    def __init__(self, path: str, problem: str | None) -> None:
        why = "it is a link, or no file" if problem is None else problem
        advice = "Remove it to go on" if problem is None else "Choose another place"
        super().__init__(f"Cannot write {path}: {why}. {advice}.")
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[type["CannotWrite"], tuple[str, str | None]]:
        return CannotWrite, (self.path, self.problem)  # comes back from another process


class ProgramFailed(TorchdoctorError, slug="program-failed", exit_code=3):
    """The user's program failed; `program_exit_code` is its own (negative: killed by a signal)."""

    def __init__(
        self, message: str, program_exit_code: int | None = None, output_tail: str = ""
    ) -> None:
        super().__init__(message, output_tail)
        self.program_exit_code = program_exit_code


class NoStepFound(TorchdoctorError, slug="no-step", exit_code=4):
    """The program ran, but nothing in it looked like a step, or it waits for requests."""


class TimedOut(TorchdoctorError, slug="timed-out", exit_code=5):
    """The program took longer than `--timeout`, or hung."""


class Inconclusive(TorchdoctorError, slug="inconclusive", exit_code=6):
    """The two sides cannot be compared, or the data do not decide."""


class Interrupted(TorchdoctorError, slug="interrupted", exit_code=130):
    """Ctrl-C: what was measured so far is kept."""
