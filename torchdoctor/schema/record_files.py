"""Records <-> JSON files: atomic writing, tolerant reading; and TOML, also on Python 3.10."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import re
import stat
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from torchdoctor.schema import (
    BRANCHES,
    SCHEMA_VERSION,
    FixSet,
    Recording,
    Report,
    earlier_reports,
    refused_fixes,
    secret_values,
    unfinished_files,
)
from torchdoctor.schema.comparison import Comparison
from torchdoctor.schema.errors import CannotWrite, UsageError
from torchdoctor.schema.figures import visible
from torchdoctor.schema.gate import GateReport

REPORT_NAME = "report.json"
RECORDING_NAME = "recording.json"

_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
_STREAMS = {"stdout": 1, "stderr": 2}
_UNSEEN = re.compile(r"[^\x00-\x7e]")  # what JSON may hold as it is
_LARGEST = 1e60  # a figure beyond is nobody's measurement
_ABOVE_ZERO = "step_time_s.mean", "step_time_s.median"
_MAJOR = re.compile(r"[0-9]{1,4}")
_LONGEST_VERSION = 40  # characters of one that is none, in an error
_Record = TypeVar("_Record", Report, Recording)


def encode(record: Report | Comparison | GateReport) -> bytes:
    """Return a record as JSON: UTF-8, indented, ending in a newline.

    NaN and infinity never appear: a figure that is not a number becomes null, an interval or a
    group that cannot be without it becomes null as a whole.
    """
    if isinstance(record, Report):
        ceilings = {**dict.fromkeys(BRANCHES), **record.ceilings}
        record = dataclasses.replace(record, ceilings=ceilings, schema_version=SCHEMA_VERSION)
        record = refused_fixes.grouped(record)
    return _encode(_finite(record))


def encoded(fields: dict[str, Any]) -> str:
    """Return fields as JSON, as `encode` does."""
    return _encode(_finite(fields)).decode()


def without_secrets(record: _Record, values: Sequence[str]) -> _Record:
    """Return a record with `***` wherever one of these values stands in a text of it."""
    if not secret_values.findable(values):
        return record
    hidden: _Record = _hidden(record, values)
    return hidden


def _hidden(value: Any, values: Sequence[str]) -> Any:
    if isinstance(value, str):
        return secret_values.without(value, values)
    if isinstance(value, (list, tuple)):
        return type(value)(_hidden(part, values) for part in value)
    if isinstance(value, (dict, FixSet)):
        parts = {_hidden(key, values): _hidden(part, values) for key, part in value.items()}
        return FixSet(parts) if isinstance(value, FixSet) else parts
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        parts = {name: _hidden(getattr(value, name), values) for name in fields}
        return dataclasses.replace(value, **parts)
    return value


def decode_report(data: bytes | str, name: str = "the file") -> Report:
    """Return the report in these bytes, unknown fields passed over; UsageError: it is none."""
    outline = _outline(data, name)
    if outline.get("kind") == "recording":
        raise UsageError(f"{name} holds a recording; give the {REPORT_NAME} beside it.")
    if "traceEvents" in outline:
        raise UsageError(f"{name} is a trace, not a report; read it with `torchdoctor diagnose`.")
    if lacks := sorted({"schema_version", "diagnosis", "baseline"} - outline.keys()):
        raise UsageError(f"{name} is not a torchdoctor report: it lacks {', '.join(lacks)}.")
    _check_version(outline["schema_version"], name)
    today = _upgraded(earlier_reports.upgraded, outline, name)
    return refused_fixes.as_trials(_convert(today, Report, name))


def write_record(record: Report | Comparison | GateReport, path: str | Path) -> None:
    """Write a record as JSON, whole or not at all."""
    write_atomically(path, encode(record))


def read_report(path: str | Path) -> Report:
    """Read a report.json, or the one in a run folder; raise UsageError if it is none.

    The run folder of a report that was moved with it is where the report is now.
    """
    path = Path(path)
    path = path / REPORT_NAME if path.is_dir() else path
    report = decode_report(_read(path), str(path))
    before = report.run_folder
    now = str(path.parent.resolve())
    if before and not Path(before).is_dir() and (path.parent / RECORDING_NAME).is_file():
        trace = report.trace
        if trace is not None:
            trace = dataclasses.replace(trace, path=trace.path.replace(before, now, 1))
        report = dataclasses.replace(report, run_folder=now, trace=trace)
    return report


def write_recording(recording: Recording, path: str | Path) -> None:
    """Write a recording as JSON, whole or not at all."""
    head = {"schema_version": SCHEMA_VERSION, "kind": "recording"}
    write_atomically(path, _encode({**head, "recording": _finite(recording)}))


def read_recording(path: str | Path) -> Recording:
    """Read what `write_recording` wrote; raise UsageError if it is no recording."""
    outline = _outline(_read(Path(path)), str(path))
    if outline.get("kind") != "recording" or "recording" not in outline:
        raise UsageError(f"{path} is not a torchdoctor recording.")
    _check_version(outline.get("schema_version"), str(path))
    recording = outline["recording"]
    if isinstance(recording, dict):
        recording = _upgraded(earlier_reports.upgraded_recording, recording, str(path))
    return _convert(recording, Recording, str(path))


def write_text(text: str, path: str | Path, through_link: bool = True) -> None:
    """Write a rendered report as UTF-8, whole or not at all; see `write_atomically`."""
    write_atomically(path, text.encode("utf-8", "replace"), through_link)


def write_atomically(path: str | Path, data: bytes, through_link: bool = True) -> None:
    """Write a file so that a reader sees the old one or the whole new one, also after a crash.

    Missing folders are made. A path that is no regular file (a pipe), or is an open descriptor
    (/dev/stdout), is written to directly; of a symbolic link the target is replaced. Our own names
    in a run's folder go not `through_link`: the folder may come from elsewhere, where nobody
    but us makes a file of that name.
    Raise CannotWrite if the place cannot be written to.
    """
    path = Path(path)
    if not through_link and (path.is_symlink() or (path.exists() and not path.is_file())):
        raise CannotWrite(str(path), problem=None)
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise CannotWrite(str(path), error.strerror or str(error)) from error


def open_descriptor(path: Path) -> int | None:
    """Return the descriptor that a path such as /dev/stdout names; such a file is not replaced."""
    match = _DESCRIPTOR.fullmatch(str(path))
    return (_STREAMS.get(match[1]) if match[1] else int(match[2])) if match else None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file which takes the place of `path` once the block has ended; or OSError."""
    descriptor = open_descriptor(path)
    if descriptor is not None or (path.exists() and not path.is_file() and not path.is_dir()):
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))  # a link stays a link
    before = target.stat() if target.exists() else None
    mode = 0o666 if before is None else before.st_mode & 0o700  # less the umask
    with unfinished_files.new_beside(target, mode) as (temporary, handle):
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if before is not None:
                _keep_owner_and_attributes(file.fileno(), target, before)
                temporary.chmod(stat.S_IMODE(before.st_mode))  # both take bits away, the umask too
            os.fsync(file.fileno())
        temporary.replace(target)


def _keep_owner_and_attributes(handle: int, target: Path, before: os.stat_result) -> None:
    """Give a new file the owner and the extended attributes of the one that it replaces.

    As far as we may: only root gives a file to others, and not all file systems have attributes.
    """
    new = os.fstat(handle)
    if hasattr(os, "fchown") and (new.st_uid, new.st_gid) != (before.st_uid, before.st_gid):
        for owner, group in ((before.st_uid, -1), (-1, before.st_gid)):
            with contextlib.suppress(OSError):
                os.fchown(handle, owner, group)
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for name in os.listxattr(target):
                with contextlib.suppress(OSError):
                    os.setxattr(handle, name, os.getxattr(target, name))


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; raise OSError, also for a pipe or device, which may never end."""
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe or device, not a file", str(path))
    return path.open("rb")


def bytes_of(path: Path) -> bytes:
    """Return what a regular file holds; raise OSError, as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def _read(path: Path) -> bytes:
    try:
        return bytes_of(path)
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {path}.") from error
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from error


def _outline(data: bytes | str, name: str) -> dict[str, Any]:
    if not data.strip():
        raise UsageError(f"{name} is empty.")
    try:
        text = data.encode("utf-8", "replace") if isinstance(data, str) else data
        outline = msgspec.json.decode(text.replace(b"\\u0000", b"\\ufffd"))  # no path holds a NUL
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is damaged, or not JSON: {error}.") from error
    if not isinstance(outline, dict):
        raise UsageError(f"{name} is not a file that torchdoctor wrote.")
    return outline


def _check_version(version: object, name: str) -> None:
    ours = int(SCHEMA_VERSION.split(".")[0])
    major = str(version).split(".")[0]
    if not _MAJOR.fullmatch(major):
        version_text = textwrap.shorten(repr(version), _LONGEST_VERSION, placeholder=" ...")
        raise UsageError(f"{name} has no schema version that torchdoctor knows: {version_text}.")
    if int(major) > ours:
        raise UsageError(
            f"{name} was written by a newer torchdoctor (schema {version}); this one reads "
            f"{ours}.x. Update it with `pip install --upgrade torchdoctor`."
        )


def _upgraded(
    upgraded: Callable[[Mapping[str, Any]], dict[str, Any]], outline: dict[str, Any], name: str
) -> dict[str, Any]:
    """Return an outline with the fields of today; UsageError: no version wrote such a one."""
    try:
        return upgraded(outline)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{name} is damaged: {error}.") from error


def _convert(data: Any, kind: type[_Record], name: str) -> _Record:
    try:
        _check_figures(data)
        return msgspec.convert(data, kind, dec_hook=_of_own_type)
    except ValueError as error:  # of msgspec too
        raise UsageError(f"{name} is damaged: {error}.") from error


def _check_figures(value: Any, where: str = "") -> None:
    """Raise ValueError for what torchdoctor never writes, and cannot compute with."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_figures(inner, f"{where}.{key}" if where else key)  # none is too large after it
        ends: list[Any] = [value.get(name) for name in ("low", "estimate", "high")]
        if (
            all(isinstance(end, (int, float)) for end in ends)
            and not 0 < ends[0] <= ends[1] <= ends[2]
        ):
            raise ValueError(f"{where} cannot be {ends[1]:g} from {ends[0]:g} to {ends[2]:g}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_figures(inner, f"{where}[{number}]")
    elif isinstance(value, (int, float)) and (
        abs(value) > _LARGEST or (where.endswith(_ABOVE_ZERO) and value <= 0)
    ):
        shown = f"{value:g}" if isinstance(value, float) else f"{str(value)[:20]}..."
        raise ValueError(f"{where} cannot be {shown}")  # no float may hold a whole number


def _encode(record: Any) -> bytes:
    data = msgspec.json.format(msgspec.json.encode(record, enc_hook=_plain), indent=2) + b"\n"
    return shown_json(data)


def shown_json(data: bytes) -> bytes:
    """Return JSON of the same content that a terminal may show: see `figures.visible`."""
    if data.isascii() and b"\x7f" not in data:
        return data  # the others of ASCII have their escapes already
    return _UNSEEN.sub(_escaped, data.decode()).encode()


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character != "\x7f" and visible(character) == character:
        return character
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _of_own_type(kind: type, data: Any) -> Any:
    """Return a value of a type that msgspec does not know; ValueError: the data are of another."""
    if kind is not FixSet:
        raise NotImplementedError(kind)
    if not isinstance(data, dict) or not all(
        isinstance(settings, dict) for settings in data.values()
    ):
        raise ValueError("fixes must be an object that holds an object of settings for each fix")
    return FixSet(data)


def _plain(value: Any) -> Any:
    """Return settings and details that may be numpy scalars and arrays, paths or anything else."""
    if isinstance(value, FixSet):
        return dict(value)
    return _finite(value.tolist()) if hasattr(value, "tolist") else str(value)


def _finite(value: Any) -> Any:
    """Return the value without what JSON cannot hold; see `encode`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str) and not value.isascii():
        # A path that is no UTF-8 holds lone surrogates, which JSON has no place for.
        return value.encode("utf-8", "replace").decode("utf-8")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _finite_record(value)
    if isinstance(value, FixSet):
        return FixSet((fix, _finite(settings)) for fix, settings in value.items())
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        cleaned = [(entry, _finite(entry)) for entry in value]
        return [new for old, new in cleaned if new is not None or old is None]
    return value


def _finite_record(record: Any) -> Any:
    """Return the record, or None if it cannot be without a figure that is lost."""
    changes: dict[str, Any] = {}
    for spec in dataclasses.fields(record):
        old = getattr(record, spec.name)
        new = _finite(old)
        lost = new is None and old is not None
        if lost and type(None) not in typing.get_args(spec.type):
            if spec.default is dataclasses.MISSING:
                return None
            new = spec.default
        changes[spec.name] = new
    return dataclasses.replace(record, **changes)


if sys.version_info >= (3, 11):
    import tomllib
else:
    # Of Python 3.10 alone, so that it is seldom there for mypy.
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

BrokenToml = tomllib.TOMLDecodeError


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the table that a text holds; raise BrokenToml if it is none."""
    return dict(tomllib.loads(text))
