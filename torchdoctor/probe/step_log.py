"""Event codes, and the buffer that turns events into binary rows on disk.

`events-<pid>.bin` holds little-endian int64 rows of four: code, ident, t_ns, value, where t_ns is
`time.perf_counter_ns()`. Rows are appended in the order in which they were noted, which is nearly
but not always the order of time (garbage collections are noted when they end): sort by t_ns.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from itertools import chain

LOADER_START_BEGIN = 1  # iter(loader); ident = loader | (iterator ordinal << 20)
LOADER_START_END = 2
FETCH_BEGIN = 3  # next(iterator); ident as above
FETCH_END = 4  # value = samples in the batch, -1 exhausted, -2 unknown size
FORWARD_BEGIN = 5  # outermost call of a root module; value bits: 1 grad, 2 training, 4 autocast
FORWARD_END = 6
BACKWARD_BEGIN = 7
BACKWARD_END = 8  # value = index into the losses, or -1
OPTIMIZER_BEGIN = 9
OPTIMIZER_END = 10
COPY_BEGIN = 11  # host to device; value = bytes; ident bits: 1 pinned source, 2 non_blocking
COPY_END = 12
GC_BEGIN = 13  # value = generation
GC_END = 14
EXPLICIT_STEP = 15  # value = samples or -2
WINDOW_BEGIN = 16
WINDOW_END = 17
BOUNDARY = 18  # value = index of the iteration that begins now

EXHAUSTED = -1
UNKNOWN_SIZE = -2
LOADER_BITS = 20
FLUSH_EVERY_NS = 250_000_000

Row = tuple[int, int, int, int]


class StepLog:
    """Rows in memory, appended to a file at most every quarter of a second.

    Args:
        path_of: the file of this process, asked for at the first write (a fork changes it).
        on_flush: called after each write, with the time; it may do slower bookkeeping.
    """

    def __init__(
        self, path_of: Callable[[], str], on_flush: Callable[[int], None] | None = None
    ) -> None:
        self._path_of = path_of
        self._on_flush = on_flush
        self._file: int | None = None
        self._flushing = threading.Lock()
        self._rows: list[Row] = []
        self._append = self._rows.append
        self._due = 0
        self.last: Row | None = None

    def note(self, code: int, ident: int, value: int) -> int:
        """Note an event now; returns its time (ns)."""
        t = time.perf_counter_ns()
        self._append((code, ident, t, value))
        if t > self._due:
            self.flush(t)
        return t

    def note_at(self, code: int, ident: int, t: int, value: int) -> None:
        """Note an event of an earlier time; never writes."""
        self._append((code, ident, t, value))

    def recent(self) -> list[Row]:
        """The last few rows, newest last; for whoever wants to know what is going on now."""
        rows = self._rows[-4:]
        return rows if rows or self.last is None else [self.last]

    def flush(self, now: int | None = None) -> None:
        """Append what is in the buffer to the file. A second thread that flushes goes on."""
        if not self._flushing.acquire(blocking=False):
            return
        try:
            now = time.perf_counter_ns() if now is None else now
            self._due = now + FLUSH_EVERY_NS
            rows = self._rows
            count = len(rows)
            if count:
                chunk = rows[:count]
                del rows[:count]  # in place: others may be appending meanwhile
                self.last = chunk[-1]
                self._write(chunk)
            if self._on_flush is not None:
                self._on_flush(now)
        finally:
            self._flushing.release()

    def forget(self) -> None:
        """Start empty in a forked child, whose rows and file are its parent's."""
        self._rows.clear()
        self._flushing = threading.Lock()
        self._due = 0
        self.last = None
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _write(self, rows: list[Row]) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
            self._file = os.open(self._path_of(), flags, 0o644)
        columns = array("q", chain.from_iterable(rows))
        if sys.byteorder == "big":
            columns.byteswap()
        data = memoryview(columns.tobytes())
        while data:
            data = data[os.write(self._file, data) :]
