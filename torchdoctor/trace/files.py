"""Bytes of a trace file, gzip or not -> runs of decoded events, a block at a time.

A run that does not decode is repaired; if that does not help, it is read event by event around the
damage.
"""

import bisect
import functools
import importlib
import math
import operator
import os
import re
import zlib as standard_zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from torchdoctor.schema.errors import NoTrace, UsageError
from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.trace.foreign import real_number, whole_number

# Where one event ends and the next begins, or the array ends. Decoding proves a cut right: one
# inside a string or a nested list leaves a run that is no valid JSON.
_NEXT_EVENT = rb"\s*,\s*\{\s*\"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|cname)\"\s*:"
EVENT_END = re.compile(rb"\}(?=" + _NEXT_EVENT + rb")")
_EVENT_OR_ARRAY_END = re.compile(rb"\}(?=" + _NEXT_EVENT + rb"|\s*\]|\s*\Z)")
_ARRAY_END = re.compile(rb"\s*\]")
_EVENT_START = re.compile(rb"\s*,?\s*")

_PHASES_WITHOUT_FIELDS = "BEiItfsMbenCNODPpRcVvSTFa"
_CUTS_PER_EVENT = 8  # false cuts inside one event that are tried before it counts as damaged
MOST_DAMAGED = 1000  # then the rest is given up
_ABSENT = msgspec.Raw()
_PHASES: list[Any] = [
    msgspec.defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in _PHASES_WITHOUT_FIELDS
]
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|NaN|inf|Infinity)(?=\s*[,}\]])")
_LAST_COMMA = re.compile(rb"(?<=[}\]\"0-9]),(?=\s*(?:[}\]]|\Z))")  # Chrome's format allows it
_ESCAPE = re.compile(rb"\\(\\|[\"/bfnrt]|u[0-9a-fA-F]{4})|\\")
# Raw newlines and tabs inside strings are invalid JSON; outside strings a space does as well.
_CONTROL_TO_SPACE = bytes(32 if byte < 32 else byte for byte in range(256))
BLOCK_BYTES = 2 << 20  # small enough that a block and its events stay in the caches
_LARGEST_HEAD = 64 << 20  # of what stands before the events
_BORDER_WINDOW = 1 << 16
_PASS_A_TRACE = "pass a file that torch.profiler's export_chrome_trace wrote"
_LIST_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")  # after a byte order mark, or without one
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
# What our reports and recordings begin with, and what a run leaves beside them and its traces.
_OURS = re.compile(
    rb"\A\s*\{\s*\"(?:summary\"\s*:\s*(?:null|\{\s*\"bottleneck)|"
    rb"schema_version\"\s*:\s*\"[^\"]*\"\s*,\s*\"(?:kind\"\s*:\s*\"(\w+)|\w+))"
)
_OURS_WITHIN = 4096
_OF_A_LAUNCH = re.compile(
    r"(?:process|done)-\d+\.json|(?:turn|plan|settings|applied-patch|status)\.json"
)
_EVENTS_KEY = re.compile(rb"(?<!\\)\"traceEvents\"\s*:\s*\[")
GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SliceArgs(msgspec.Struct, gc=False):
    """What the analysis reads from `args`; absent fields stay None, or empty."""

    correlation: int | None = None
    stream: int | None = None
    device: int | None = None
    bytes: int | float | None = None
    dims: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    dims_2020: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=_ABSENT, name="Concrete Inputs")
    stack: msgspec.Raw = msgspec.field(default=_ABSENT, name="Call stack")
    sent: msgspec.Raw = msgspec.field(default=_ABSENT, name="In msg nelems")
    received: msgspec.Raw = msgspec.field(default=_ABSENT, name="Out msg nelems")
    dtype: msgspec.Raw = _ABSENT
    group: msgspec.Raw = msgspec.field(default=_ABSENT, name="Process Group Ranks")


class Slice(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event. `ts` and `dur` are microseconds; NaN where the event has none.

    Only these carry fields: events of other phases decode to empty structs, which is fast.
    """

    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = math.nan
    dur: float = math.nan
    args: SliceArgs | None = None


# mypy cannot know a union that is made when this file is imported.
_TYPED: Any = msgspec.json.Decoder(list[functools.reduce(operator.or_, _PHASES, Slice)])  # type: ignore[misc]
_ARGUMENTS = msgspec.structs.fields(SliceArgs)


@dataclass
class Run:
    """Whole events separated by commas, as valid JSON, and the complete ones among them."""

    text: bytes | memoryview  # a view is of the reader's buffer: use it before the next block
    slices: list[Slice]


@dataclass(frozen=True, kw_only=True)
class Salvage:
    """What a damaged run gave: its parts, how many events were lost, and how far it was read."""

    runs: list[Run]
    damaged: int
    read: int  # bytes of the run that were read or skipped
    array_ended: bool  # the byte at `read` is the array's closing bracket


def decode_run(run: bytes | bytearray | memoryview) -> list[Slice] | None:
    """Decode whole events separated by commas, without the array's brackets; None: damaged."""
    document = b"".join((b"[", run, b"]"))
    try:
        return [event for event in _TYPED.decode(document) if type(event) is Slice]
    except msgspec.ValidationError:
        pass  # valid JSON with unexpected types or phases
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        loose = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [_typed(event) for event in loose if isinstance(event, dict) and event.get("ph") == "X"]


def repair(run: bytes | bytearray) -> bytes:
    """Mend what writers of traces are known to break, without touching the structure."""
    text = _NOT_A_NUMBER.sub(rb"\1null", bytes(run).translate(_CONTROL_TO_SPACE))
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    return _LAST_COMMA.sub(b"", text).decode("utf-8", "replace").encode()


def salvage(run: bytes, more_follows: bool) -> Salvage:
    """Read the events that can be read from a run which does not decode as a whole.

    A run starts at an event and may end anywhere, also after the array's end. If `more_follows`,
    what looks damaged at the very end is left unread: it may be an event that is not all here.
    """
    runs: list[Run] = []
    damaged = read = 0
    array_ended = False
    cuts = [match.end() for match in _EVENT_OR_ARRAY_END.finditer(run)]
    first = 0  # index of the first cut that lies beyond `read`
    while first < len(cuts) and damaged < MOST_DAMAGED:
        good = _furthest_good_cut(run, read, cuts, first)
        if good is None:
            if more_follows and first + _CUTS_PER_EVENT > len(cuts):
                break
            damaged += 1
            read = cuts[first]
            first += 1
        else:
            text = run[read : cuts[good]]
            runs.append(Run(text, decode_run(text) or []))
            read = cuts[good]
            first = good + 1
            array_ended = _ARRAY_END.match(run, read) is not None
            if array_ended:
                break
        between = _EVENT_START.match(run, read)
        read = between.end() if between else read
    return Salvage(runs=runs, damaged=damaged, read=read, array_ended=array_ended)


def _furthest_good_cut(run: bytes, start: int, cuts: list[int], first: int) -> int | None:
    """Return the index of the last cut up to which the run decodes; None: not one event does."""

    def is_damaged(cut: int) -> bool:
        return decode_run(run[start : cuts[cut]]) is None

    tried = range(first, min(first + _CUTS_PER_EVENT, len(cuts)))
    good = next((cut for cut in tried if not is_damaged(cut)), None)
    if good is None:
        return None
    later = range(good + 1, len(cuts))  # damage is rare and may lie far away
    return good + bisect.bisect_left(later, True, key=is_damaged)


def _typed(event: dict[str, Any]) -> Slice:
    """Return the event with the fields that fit; a time that is no number becomes NaN."""
    args: dict[str, Any] = {}
    given = event.get("args")
    for field in _ARGUMENTS:
        value = given.get(field.encode_name) if isinstance(given, dict) else None
        if value is not None:
            is_raw = field.type is msgspec.Raw
            encoded = msgspec.Raw(msgspec.json.encode(value)) if is_raw else whole_number(value)
            args[field.name] = encoded
    pid = event.get("pid")
    tid = event.get("tid")
    return Slice(
        cat=str(event.get("cat") or ""),
        name=str(event.get("name") or ""),
        pid=pid if isinstance(pid, int) else str(pid),
        tid=tid if isinstance(tid, int) else str(tid),
        ts=real_number(event.get("ts")),
        dur=real_number(event.get("dur")),
        args=SliceArgs(**args),
    )


try:
    zlib: Any = importlib.import_module("isal.isal_zlib")
except ImportError:  # no wheel for this platform: the standard library reads the same, slower
    zlib = standard_zlib


def events_start(head: bytes | bytearray) -> int | None:
    """Return where the first event stands; None: further on, or this is no trace."""
    match = _LIST_ROOT.match(head) or (_EVENTS_KEY.search(head) if _ROOT.match(head) else None)
    return match.end() if match else None


class TraceFile:
    """One pass over a trace: iterate `runs()`, then read `metadata` and `doubts`.

    What of the metadata stands before the events is known from the first block on. `stream` is
    binary, at the start of the trace; messages call it `name`.
    """

    def __init__(self, stream: BinaryIO, name: str, block_bytes: int = BLOCK_BYTES) -> None:
        self.name = name
        self.metadata: dict[str, Any] = {}  # deviceProperties, distributedInfo, baseTimeNanoseconds
        self.doubts: list[Evidence] = []
        self.damaged = 0
        self.is_list = False  # the root is a list of events, which has no metadata
        self._chunks = plain_chunks(stream, name, self.doubts, block_bytes)

    def runs(self) -> Iterator[Run]:
        """Yield all that can be read in blocks; raise NoTrace if the bytes are no Kineto trace."""
        buffer = self._skip_head()
        for chunk in self._chunks:
            buffer += chunk
            end = _last_event_end(buffer)
            if end is None:
                continue
            text: bytes | memoryview = memoryview(buffer)[:end]
            run = decode_run(text)
            if run is None:
                text = repair(buffer[:end])
                run = decode_run(text)
            if run is not None:
                rest = buffer[buffer.index(b",", end) + 1 :]
                yield Run(text, run)
                buffer = rest
                continue
            mended = bytes(text)
            salvaged = salvage(mended, more_follows=True)
            self.damaged += salvaged.damaged
            yield from salvaged.runs
            rest = bytearray(mended[salvaged.read :]) + buffer[end:]
            if salvaged.array_ended:
                self._read_tail(rest)
                return
            if self.damaged >= MOST_DAMAGED:
                self.doubts.append(fact("file-too-damaged", file=self.name))
                return
            buffer = rest[rest.index(b",") + 1 :] if salvaged.read == len(mended) else rest
        yield from self._last_runs(bytes(buffer))

    def _skip_head(self) -> bytearray:
        """Read up to the first event, keep the metadata, and return what was read beyond it."""
        buffer = bytearray()
        for chunk in self._chunks:
            buffer += chunk
            end = events_start(buffer)
            if end is not None:
                self.is_list = _LIST_ROOT.match(buffer) is not None
                if not self.is_list:
                    self._keep_metadata(bytes(buffer[:end]).removeprefix(_BYTE_ORDER_MARK) + b"]}")
                return buffer[end:]
            started = _ROOT.match(buffer) or len(buffer) < 1 + len(_BYTE_ORDER_MARK)
            if not started or len(buffer) > _LARGEST_HEAD:
                break
        if not buffer.strip():
            damaged = f"{self.name} is empty"
            if self.doubts:
                damaged = f"{self.name} is damaged inside its compression, or was cut off there"
            raise NoTrace(damaged, _PASS_A_TRACE)
        if ours := _OURS.search(buffer, 0, _OURS_WITHIN):
            written = "recording" if ours[1] == b"recording" else "report"
            todo = Path(self.name).parent if written == "recording" else self.name
            raise NoTrace(
                f"{self.name} is a {written} of torchdoctor, not a trace",
                f"read it with: torchdoctor report {todo}",
            )
        kind = "not a PyTorch profiler trace (JSON with traceEvents, or a list of events)"
        raise NoTrace(f"{self.name} is {kind}", _PASS_A_TRACE)

    def _last_runs(self, rest: bytes) -> list[Run]:
        """Return the events of what is left when the file has ended."""
        if not rest.strip():
            self.doubts.append(fact("file-ends-early", file=self.name))
            return []
        if rest.lstrip().startswith(b"]"):  # an empty array
            self._read_tail(rest)
            return []
        rest = repair(rest)
        salvaged = salvage(rest, more_follows=False)
        self.damaged += salvaged.damaged
        if salvaged.array_ended:
            self._read_tail(rest[salvaged.read :])
        else:
            self.doubts.append(fact("file-ends-within-event", file=self.name))
        return salvaged.runs

    def _read_tail(self, rest: bytes | bytearray) -> None:
        """Keep the metadata that some versions write after the events."""
        tail = bytearray(rest)
        for chunk in self._chunks:
            tail += chunk
            if len(tail) > _LARGEST_HEAD:
                return
        text = bytes(tail).lstrip().removeprefix(b"]").lstrip().removeprefix(b",")
        if text.strip():
            self._keep_metadata(b"{" + text)

    def _keep_metadata(self, document: bytes) -> None:
        for text in (document, repair(document)):
            try:
                decoded = msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(decoded, dict):
                decoded.pop("traceEvents", None)
                self.metadata.update(decoded)
            return


def plain_chunks(
    stream: BinaryIO, name: str, doubts: list[Evidence], block_bytes: int = BLOCK_BYTES
) -> Iterator[bytes]:
    """Yield a trace's bytes in blocks, unzipped as far as that goes; `doubts` gets why it ended."""
    first = stream.read(block_bytes)
    if first[:2] == GZIP_MAGIC:
        yield from _unzipped_chunks(stream, first, name, doubts, block_bytes)
    else:
        yield first
        yield from iter(lambda: stream.read(block_bytes), b"")


def _unzipped_chunks(
    stream: BinaryIO, data: bytes, name: str, doubts: list[Evidence], block_bytes: int
) -> Iterator[bytes]:
    unzip = zlib.decompressobj(wbits=31)
    while data:
        try:
            text = unzip.decompress(data, block_bytes)
        except (zlib.error, OSError) as error:
            doubts.append(fact("file-damaged-in-compression", file=name, error=str(error)))
            return
        if text:
            yield text
        data = unzip.unconsumed_tail
        if unzip.eof:
            data = unzip.unused_data + stream.read(block_bytes >> 3)
            if data[:2] != GZIP_MAGIC:  # no further member: the end, or padding
                return
            unzip = zlib.decompressobj(wbits=31)
        elif not data:
            data = stream.read(block_bytes >> 3)
    doubts.append(fact("file-ends-in-compression", file=name))


def trace_paths(path: Path) -> list[Path]:
    """Return the files that a path stands for, in order of name; UsageError: nothing to read."""
    try:
        if not path.exists():
            raise UsageError(f"{path} does not exist: pass a trace file or a folder of traces.")
        if not path.is_dir():
            return [path]
        files = sorted(
            file
            for file in path.iterdir()
            if file.name.endswith((".json", ".json.gz"))
            and (file.is_file() or not file.exists())  # a link into nowhere: a rank is missing
        )
        traces = [file for file in files if not _is_ours(file)]
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or error}): pass a file that you may read."
        ) from error
    if not files:
        raise UsageError(f"{path} holds no .json or .json.gz file: pass a folder of traces.")
    if not traces:
        raise UsageError(
            f"{path} holds no trace, but files of torchdoctor: torchdoctor report {path} shows a "
            "run's report."
        )
    by_place: dict[str, Path] = {}
    for file in sorted(traces, key=Path.is_symlink):  # the file's own name, where it has one here
        by_place.setdefault(os.path.realpath(file), file)
    return sorted(by_place.values())


def _is_ours(file: Path) -> bool:
    """Return True for a report, a recording, or what a launch writes beside its trace."""
    if not file.is_file() or _OF_A_LAUNCH.fullmatch(file.name):
        return file.is_file()
    with file.open("rb") as stream:
        return _OURS.search(stream.read(_OURS_WITHIN)) is not None


def _last_event_end(buffer: bytearray) -> int | None:
    """Return where the last event ends that another one follows; None: nowhere in the buffer."""
    window = _BORDER_WINDOW
    start = len(buffer)
    while start:
        start = max(0, len(buffer) - window)
        if ends := [match.end() for match in EVENT_END.finditer(buffer, start)]:
            return ends[-1]
        window *= 8
    return None
