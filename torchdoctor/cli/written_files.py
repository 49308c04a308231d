"""The files that a command is told to write, checked before any work is done.

A file that exists is replaced only where it is empty, or where torchdoctor wrote it, and wrote the
same kind: the old result of the command that is run again. That is told by what it holds, as a
trace, which may have taken hours to record, has the suffix of a report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchdoctor.words.errors import UsageError

_HEAD_BYTES = 4096
_LARGEST_JSON = 64 << 20  # far above any report
_EVERY_JSON = {"schema_version", "torchdoctor_version"}
_OUR_PAGE = re.compile(rb"<!doctype html>.*<title>torchdoctor: ", re.DOTALL | re.IGNORECASE)
_OUR_MARKDOWN = re.compile(rb"### torchdoctor gate: ")
_OUR_JUNIT = re.compile(rb"(<\?xml[^>]*>)?\s*<testsuite name=\"torchdoctor gate\"")
_OUR_PROCESS = re.compile(rb"\"args\"\s*:\s*\{\s*\"name\"\s*:\s*\"torchdoctor\"")


def check_written(files: Mapping[str, Path | None], read: Iterable[str | Path] = ()) -> None:
    """Check that each file can be written at the end, and replaces nothing but its like.

    Args:
        files: kind, one of "report", "comparison", "gate result", "HTML page", "annotated trace",
            "Markdown" and "JUnit file" -> where it is to be written; None is passed over.
        read: what the command reads, none of which is written over.

    Raises:
        UsageError: one cannot be written, holds what torchdoctor did not write, is named for two
            results, or is one of those that are read.
    """
    inputs = {os.path.realpath(path) for path in read}
    named: set[str] = set()
    for kind, path in files.items():
        if path is None:
            continue
        try:
            if _takes_all(path):
                continue
            _check_one(kind, path, inputs)
        except OSError as error:
            raise UsageError(
                f"Cannot write {path} ({error.strerror or error}): name another file."
            ) from error
        place = os.path.realpath(path)
        if place in named:
            raise UsageError(f"{path} is named for two results: name another file for one.")
        named.add(place)


def _takes_all(path: Path) -> bool:
    """Return True if nothing is lost by writing to it: a pipe, a device, /dev/stdout."""
    from torchdoctor.words.record_files import open_descriptor

    return path.is_fifo() or path.is_char_device() or open_descriptor(path) is not None


def _check_one(kind: str, path: Path, inputs: set[str]) -> None:
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise UsageError(f"Cannot write {path}: name a file in a folder that exists.")
    if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        raise UsageError(f"Cannot write {path}: name a file in a folder that exists.")
    if str(place) in inputs:
        raise UsageError(f"{path} is one of the files to read: name another for the result.")
    if place.is_file() and place.stat().st_size and not _ours(kind, place):
        raise UsageError(
            f"{path} exists and is no {kind} that torchdoctor wrote: name another file, or remove "
            "it first."
        )


def _ours(kind: str, path: Path) -> bool:
    fields = {
        "report": {"diagnosis", "workload"},
        "comparison": {"a", "b", "verdict"},
        "gate result": {"reference", "metrics", "verdict"},
    }
    heads = {"HTML page": _OUR_PAGE, "Markdown": _OUR_MARKDOWN, "JUnit file": _OUR_JUNIT}
    if kind in fields:
        return _has_fields(path, fields[kind] | _EVERY_JSON)
    if kind in heads:
        with path.open("rb") as file:
            return heads[kind].match(file.read(_HEAD_BYTES)) is not None
    return _is_annotated(path)


def _has_fields(path: Path, wanted: set[str]) -> bool:
    import msgspec

    if path.stat().st_size > _LARGEST_JSON:
        return False
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return wanted <= fields.keys() and "traceEvents" not in fields


def _is_annotated(path: Path) -> bool:
    """Return True if a trace's first event names our process, as in every copy of ours."""
    from torchdoctor.trace.files import events_start, plain_chunks

    with path.open("rb") as file:
        head = next(plain_chunks(file, str(path), []), b"")
    start = events_start(head)
    return start is not None and _OUR_PROCESS.search(head, start, start + 256) is not None
