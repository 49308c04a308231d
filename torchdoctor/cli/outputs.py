"""What a command is told to write: checked before any work is done, and written at the end.

A file that exists is replaced only where it is empty, or where torchdoctor wrote it, and wrote the
same kind: the old result of the command that is run again. That is told by what it holds, as a
trace, which may have taken hours to record, has the suffix of a report.
"""

import contextlib
import importlib.util
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from torchdoctor.schema import Report
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.summary import Summary

Files = Mapping[str, Path | None]  # by kind, as in `check_written`; None: not asked for
RECOMMENDED = 10  # exit code of `--exit-code`
_HEAD_BYTES = 4096
_LARGEST_JSON = 64 << 20  # far above any report
_EVERY_JSON = {"schema_version", "torchdoctor_version"}
_FIELDS = {
    "report": {"diagnosis", "workload"},
    "comparison": {"a", "b", "verdict"},
}
_OF_SUMMARY = {"bottleneck", "sentence", "next"}  # which begins every other answer
_HEADS = {
    "text": re.compile(rb"torchdoctor[^\n]* \xc2\xb7 "),
    "HTML page": re.compile(rb"(?si)<!doctype html>.*<title>torchdoctor: "),
    "Markdown": re.compile(rb"### torchdoctor"),
    "SARIF file": re.compile(
        rb"(?s)\{\s*\"\$schema\".*\"driver\":\s*\{\s*\"name\": \"torchdoctor\""
    ),
}
_KINDS = {"text": "text", "markdown": "Markdown", "html": "HTML page", "sarif": "SARIF file"}
_OUR_PROCESS = re.compile(rb"\"args\"\s*:\s*\{\s*\"name\"\s*:\s*\"torchdoctor\"")


def kind_of(format: str, json: str = "answer") -> str:
    """Return the kind of file that an answer in this format is, as `check_written` tells them."""
    return json if format == "json" else _KINDS[format]


def check_written(
    files: Files, read: Iterable[str | Path] = (), tensorboard: Path | None = None
) -> None:
    """Check that each file can be written at the end, and replaces nothing but its like.

    Raise UsageError if one cannot be written, holds what torchdoctor did not write, is named for
    two results, or is one of those that are read.
    """
    from torchdoctor.schema.record_files import open_descriptor

    inputs = {os.path.realpath(path) for path in read}
    named: set[str] = set()
    for kind, path in files.items():
        if path is None:
            continue
        if str(path) == "-":
            raise UsageError(f"Name a file for the {kind}, or /dev/stdout: - is none.")
        try:
            # Nothing is lost by writing to a pipe, a device, /dev/stdout.
            if path.is_fifo() or path.is_char_device() or open_descriptor(path) is not None:
                continue
            _check_file(kind, path, inputs)
        except OSError as error:
            raise UsageError(
                f"Cannot write {path} ({error.strerror or error}): name another file."
            ) from error
        place = os.path.realpath(path)
        if place in named:
            raise UsageError(f"{path} is named for two results: name a different file for each.")
        named.add(place)
    if tensorboard is not None:
        _check_folder(tensorboard)


def _check_file(kind: str, path: Path, inputs: set[str]) -> None:
    place = Path(os.path.realpath(path))
    writable = place.parent.is_dir() and os.access(place.parent, os.W_OK)
    if not writable or (place.exists() and not place.is_file()):
        raise UsageError(f"Cannot write {path}: name a file in a folder that exists.")
    if str(place) in inputs:
        raise UsageError(f"{path} is one of the input files: name another file for the result.")
    if place.is_file() and place.stat().st_size and not _ours(kind, place):
        raise UsageError(
            f"{path} exists and is not known as {kind} that torchdoctor wrote: name another file, "
            "or remove it first."
        )


def _ours(kind: str, path: Path) -> bool:
    """Return True if torchdoctor wrote a file of this kind."""
    import msgspec

    from torchdoctor.trace.files import events_start, plain_chunks

    if kind in _FIELDS or kind == "answer":
        if path.stat().st_size > _LARGEST_JSON:
            return False
        try:
            fields = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False
        if kind == "answer":
            return _is_answer(fields)
        return _FIELDS[kind] | _EVERY_JSON <= fields.keys() and "traceEvents" not in fields
    with path.open("rb") as file:
        if kind in _HEADS:
            return _HEADS[kind].match(file.read(_HEAD_BYTES)) is not None
        # The first event of an annotated trace names our process.
        head = next(plain_chunks(file, str(path), []), b"")
    start = events_start(head)
    return start is not None and _OUR_PROCESS.search(head, start, start + 256) is not None


def _is_answer(fields: Mapping[str, Any]) -> bool:
    """Return True for the JSON of a command that answers with a summary, and with no report."""
    import msgspec

    try:
        summary = msgspec.json.decode(fields.get("summary", b"{}"), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return summary.keys() >= _OF_SUMMARY and "torchdoctor_version" not in fields


def _check_folder(folder: Path) -> None:
    """Raise UsageError where a TensorBoard folder could not be written at the end."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "TensorBoard's writer is not installed here: pip install 'torchdoctor[tensorboard]'."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UsageError(f"{folder} is not a folder: name a folder with --tensorboard.") from error
    except OSError as error:
        raise UsageError(
            f"Cannot write the TensorBoard folder {folder} ({error.strerror or error}): name "
            "another folder with --tensorboard."
        ) from error


@contextlib.contextmanager
def answer_to(output: Path | None) -> Iterator[None]:
    """Have this file get what is printed within, whole or not at all; None: it is the screen's."""
    if output is None:
        yield
        return
    from torchdoctor.schema.record_files import write_atomically

    answer = io.BytesIO()
    printed = io.TextIOWrapper(answer, encoding="utf-8", errors="replace", newline="")
    with contextlib.redirect_stdout(printed):
        yield
    printed.flush()
    write_atomically(output, answer.getvalue())
    if output.is_file():
        say(f"Wrote {output}.")


def hand_out(report: Report, tensorboard: Path | None, details: bool | None, format: str) -> None:
    """Write the page of a run and TensorBoard's files; show it, unless `details` is None."""
    from torchdoctor.reports.formats import rendered, show, write_page

    write_page(report)
    if details is not None and format == "text":
        show(report, details)
    elif details is not None:
        print_text(rendered(report, format, folder=str(Path.cwd())))
    if tensorboard is not None:
        from torchdoctor.reports.tensorboard.write import write_tensorboard

        write_tensorboard(report, tensorboard)
        say(f"To see it in TensorBoard: tensorboard --logdir {tensorboard}")


def leave_with_code(report: Report, wanted: bool) -> None:
    """Exit with 10 where that was asked for and a fix is recommended."""
    if wanted and report.recommendation.fixes:
        raise typer.Exit(RECOMMENDED)


def print_text(text: str) -> None:
    """Print what is complete as it is, whatever the terminal's encoding."""
    typer.echo(text.encode(errors="replace"), nl=not text.endswith("\n"))


def print_filled(lines: Iterable[str], hangs: int) -> None:
    """Print lines as wide as the terminal; what goes on is indented by so much."""
    from torchdoctor.reports.wrapping import fill, width
    from torchdoctor.schema.figures import clean

    for line in lines:
        typer.echo(fill(clean(line), hangs, width()))


def print_json(summary: Summary, **fields: object) -> None:
    """Print these fields as JSON, the summary first."""
    from torchdoctor.reports.summary import with_json
    from torchdoctor.schema.record_files import encoded

    print_text(encoded({"summary": with_json(summary), **fields}))


def say(text: str, error: bool = True) -> None:
    """Print a line that may hold names from elsewhere, by default to standard error."""
    from torchdoctor.schema.figures import visible

    typer.echo(visible(text), err=error)


def discard_output() -> None:
    """Let nothing more be printed: what is buffered would fail again at Python's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def whoever_reads() -> Iterator[None]:
    """Print even if nobody reads it any more (| head): that changes no exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
