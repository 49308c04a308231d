"""Where a run stands, in `status.json` of its folder: written while it goes on, read by anybody."""

import contextlib
import os
import shlex
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import msgspec

from torchdoctor.machine.processes import is_alive
from torchdoctor.reports import summary as summaries
from torchdoctor.reports.wording import in_one_line
from torchdoctor.schema import ProgressEvent, Report
from torchdoctor.schema.errors import TorchdoctorError, UsageError
from torchdoctor.schema.figures import clean, duration
from torchdoctor.schema.record_files import bytes_of, encoded, write_atomically
from torchdoctor.schema.summary import NextCommand, Summary

STATUS_NAME = "status.json"
LOG_NAME = "run.log"
_NOT_KNOWN = "The program is observed; no diagnosis is known yet."
_KEPT = ("phase", "message", "why", "best", "launches_done", "elapsed_s", "budget_s")


@dataclass(frozen=True, kw_only=True)
class Status:
    """All that `status.json` says."""

    summary: Summary
    schema_version: str = "1.0"
    state: str = "running"  # or ended, interrupted, failed, gone (without a word)
    phase: str = ""
    message: str = "It starts"
    why: str = ""
    best: str | None = None
    launches_done: int = 0
    elapsed_s: float = 0.0
    budget_s: float | None = None
    pid: int = 0
    host: str = ""
    updated_unix_s: float = 0.0
    run_folder: str


class StatusFile:
    """Keeps the status of the run that this process is; a disk that is full is no error here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._status = begun(folder, os.getpid())
        self._write()

    def __enter__(self) -> "StatusFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            return
        sentence = (
            in_one_line(error) if isinstance(error, TorchdoctorError) else type(error).__name__
        )
        answer = replace(self._status.summary, sentence=sentence, next=None)
        self._status = replace(self._status, state="failed", summary=answer)
        self._write()

    def update(self, event: ProgressEvent) -> None:
        """Say where the run stands."""
        self._status = replace(self._status, **{name: getattr(event, name) for name in _KEPT})
        self._write()

    def diagnosed(self, report: Report) -> Summary:
        """Say what is known before any fix was tried; return it."""
        answer = summaries.of_report(report)
        answer = replace(answer, next=_ask_again(self._folder))
        self._status = replace(self._status, summary=answer)
        self._write()
        return answer

    def ended(self, report: Report) -> None:
        """Say what the report says."""
        answer = report.summary or summaries.of_report(report)
        state = "interrupted" if report.interrupted else "ended"
        elapsed_s = report.elapsed_s or self._status.elapsed_s
        ended = replace(self._status, state=state, summary=answer, elapsed_s=elapsed_s)
        self._status = replace(ended, message="The report is written", why="")
        self._write()

    def _write(self) -> None:
        self._status = replace(self._status, updated_unix_s=time.time())
        with contextlib.suppress(UsageError):
            text = as_json(self._status)
            write_atomically(self._folder / STATUS_NAME, text.encode(), through_link=False)


def begun(folder: Path, pid: int) -> Status:
    """Return the status of a run that has just begun."""
    return Status(
        summary=Summary(sentence=_NOT_KNOWN, next=_ask_again(folder)),
        pid=pid,
        host=socket.gethostname(),
        updated_unix_s=time.time(),
        run_folder=str(folder.absolute()),
    )


def newest_run(runs: Path) -> Path:
    """Return the folder of the newest run that has a status; raise UsageError: there is none."""
    files = [path for path in runs.glob(f"*/{STATUS_NAME}") if path.is_file()]
    if not files:
        todo = "name a run's folder, or start one with: torchdoctor run --detach train.py"
        raise UsageError(f"No run in {runs} below this folder has a status: {todo}")
    return max(files, key=lambda path: path.stat().st_mtime).parent


def read_status(folder: Path) -> Status:
    """Return the status of a run as it is now; raise UsageError where there is none."""
    path = folder if folder.name == STATUS_NAME else folder / STATUS_NAME
    try:
        status = msgspec.json.decode(bytes_of(path), type=Status)
    except OSError as error:
        raise UsageError(f"{folder} has no status of a run: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"{path} is damaged: {error}.") from error
    if status.state != "running":
        return status
    if status.host == socket.gethostname() and not is_alive(status.pid):
        return _gone(status, path.parent)
    since_s = max(time.time() - status.updated_unix_s, 0.0)
    return replace(status, elapsed_s=status.elapsed_s + since_s)


def _gone(status: Status, folder: Path) -> Status:
    """Return the status of a run whose process ended without a word of how."""
    sentence = "The run ended without a report."
    with contextlib.suppress(OSError):
        lines = (folder / LOG_NAME).read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        sentence = clean(last.removeprefix("torchdoctor: ")) or sentence
    return replace(
        status, state="gone", summary=replace(status.summary, sentence=sentence[:400], next=None)
    )


def as_json(status: Status) -> str:
    """Return a status as JSON, the summary first."""
    return encoded(vars(status))


def as_text(status: Status, format: str) -> str:
    """Return a status as a few lines of text, or of Markdown."""
    answer = status.summary
    spent = duration(status.elapsed_s)
    of = f" of {duration(status.budget_s)}" if status.budget_s is not None else ""
    place = f" ({answer.location})" if answer.location else ""
    lines = [f"{status.state}, {spent}{of}", f"{answer.sentence.rstrip('.')}{place}."]
    if status.state == "running":
        lines += [f"Now: {status.message}."] + [f"Why: {status.why}."] * bool(status.why)
        lines += [f"Best so far: {status.best}"] * bool(status.best)
    if answer.next is not None:
        lines.append(f"Next: {answer.next.command}   {answer.next.why}")
    mark = "- " if format == "markdown" else ""
    return "".join(f"{mark}{clean(line)}\n" for line in lines)


def _ask_again(folder: Path) -> NextCommand:
    command = f"torchdoctor report --status {shlex.quote(str(folder.absolute()))}"
    return NextCommand(command=command, why="The run goes on.")
