"""Bytes of a trace file, gzip or not -> runs of decoded events, a block at a time."""

import importlib
import os
import re
import zlib as standard_zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from torchdoctor.trace.events import EVENT_END, MOST_DAMAGED, Run, decode_run, repair, salvage
from torchdoctor.words.errors import NoTrace, UsageError

try:
    zlib: Any = importlib.import_module("isal.isal_zlib")
except ImportError:  # no wheel for this platform: the standard library reads the same, slower
    zlib = standard_zlib

BLOCK_BYTES = 2 << 20  # small enough that a block and its events stay in the caches
_LARGEST_HEAD = 64 << 20  # of what stands before the events
_BORDER_WINDOW = 1 << 16
_PASS_A_TRACE = "pass a file that torch.profiler's export_chrome_trace wrote"
GZIP_MAGIC, _BYTE_ORDER_MARK = b"\x1f\x8b", b"\xef\xbb\xbf"
_LIST_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")  # after a byte order mark, or without one
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_EVENTS_KEY = re.compile(rb"(?<!\\)\"traceEvents\"\s*:\s*\[")


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
        self.doubts: list[str] = []
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
                self.doubts.append(f"{self.name} is too damaged: reading it was given up.")
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
            damaged = self.doubts[0].rstrip(".") if self.doubts else f"{self.name} is empty"
            raise NoTrace(damaged, _PASS_A_TRACE)
        kind = "not a PyTorch profiler trace (JSON with traceEvents, or a list of events)"
        raise NoTrace(f"{self.name} is {kind}", _PASS_A_TRACE)

    def _last_runs(self, rest: bytes) -> list[Run]:
        """Return the events of what is left when the file has ended."""
        if not rest.strip():
            self.doubts.append(f"{self.name} ends before its last event: it was cut off.")
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
            self.doubts.append(
                f"{self.name} is cut off in the middle of an event: what follows is missing."
            )
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
    stream: BinaryIO, name: str, doubts: list[str], block_bytes: int = BLOCK_BYTES
) -> Iterator[bytes]:
    """Yield a trace's bytes in blocks, unzipped as far as that goes; `doubts` gets why it ended."""
    first = stream.read(block_bytes)
    if first[:2] == GZIP_MAGIC:
        yield from _unzipped_chunks(stream, first, name, doubts, block_bytes)
    else:
        yield first
        yield from iter(lambda: stream.read(block_bytes), b"")


def _unzipped_chunks(
    stream: BinaryIO, data: bytes, name: str, doubts: list[str], block_bytes: int
) -> Iterator[bytes]:
    unzip = zlib.decompressobj(wbits=31)
    while data:
        try:
            text = unzip.decompress(data, block_bytes)
        except (zlib.error, OSError) as error:
            doubts.append(f"{name} is damaged inside its compression ({error}).")
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
    doubts.append(f"{name} ends inside its compression: it was cut off.")


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
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or error}): pass a file that you may read."
        ) from error
    if not files:
        raise UsageError(f"{path} holds no .json or .json.gz file: pass a folder of traces.")
    by_place: dict[str, Path] = {}
    for file in sorted(files, key=Path.is_symlink):  # the file's own name, where it has one here
        by_place.setdefault(os.path.realpath(file), file)
    return sorted(by_place.values())


def _last_event_end(buffer: bytearray) -> int | None:
    """Return where the last event ends that another one follows; None: nowhere in the buffer."""
    window, start = _BORDER_WINDOW, len(buffer)
    while start:
        start = max(0, len(buffer) - window)
        if ends := [match.end() for match in EVENT_END.finditer(buffer, start)]:
            return ends[-1]
        window *= 8
    return None
