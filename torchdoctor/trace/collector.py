"""Decoded events of a trace file -> the columns of a `Trace`; the events can go afterwards.

1. `Collector.add` takes a block of events: sorts them by category into tables, leaves out those
   without a time and short frames of libraries, and keeps columns of numbers. Texts (names, shapes,
   inputs of products) are interned: their column holds numbers.
2. `Collector.trace` joins the blocks, makes durations that cannot be zero, and takes device events
   out in which nothing is computed. What was lost on the way becomes a doubt of the trace.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.queries.stacks import is_users
from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.trace.columns import Table, Trace
from torchdoctor.trace.files import Slice, SliceArgs
from torchdoctor.trace.foreign import whole_number
from torchdoctor.trace.kinds import (
    ACCUMULATED,
    DEVICE_KINDS,
    KERNEL,
    LEFT_OUT,
    OUR_CATEGORY,
    doubt_about_unknown,
    is_communication,
    is_wait,
    kind_by_name,
    table_of,
)
from torchdoctor.trace.product_sizes import PRODUCT_OPERATORS, ProductInputs

_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}
_LONGEST_BEYOND_US = 600e6  # a duration this much longer than the whole trace is no duration
_FURTHEST_US = 4e15  # from the first event, 127 years: what is further no int64 of ns holds
_LONG_FRAME_US = 1000  # a library's frame so long is kept: what a user's line waits for is named
_NO_ARGS = SliceArgs()
_COLUMNS = {  # of each table, beside start, end, name and thread
    "operators": ("shapes", "product", "payload"),
    "annotations": ("payload",),
    "runtime": ("correlation", "bytes"),
    "device": ("kind", "correlation", "device", "stream", "bytes", "payload", "group"),
    "spans": (),
    "python": (),
}
_TABLES_OF_PROFILER = [table for table, columns in _COLUMNS.items() if columns]


class Names(dict[Any, int]):
    """Interned values in order: looking one up gives its number, which is new for a new value."""

    def __missing__(self, key: Hashable) -> int:
        number = self[key] = len(self)
        return number


class Collector:
    """Collects blocks of events; `trace()` gives what was collected."""

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Names()
        self.shapes = Names()
        self.products = Names()
        self.base_us: float | None = None
        self.events = 0
        self.untimed = 0
        self.lasting = 0  # events of the profiler with a duration that can be, after `trace`
        self.unknown: Counter[str] = Counter()  # events by category
        self._parts: dict[str, list[dict[str, NDArray[Any]]]] = defaultdict(list)
        self._table_of: dict[str, str | None] = {}
        # Frames outnumber all other events, and nobody asks for short ones of libraries.
        self._is_users = functools.cache(is_users)

    @property
    def of_profiler(self) -> bool:
        """Return True if any of it is an operator, annotation, driver call or work of a device."""
        return any(self._parts[table] for table in _TABLES_OF_PROFILER)

    def add(self, slices: Iterable[Slice]) -> None:
        """Take over the columns of a block; its slices can go afterwards."""
        by_category: defaultdict[str, list[Slice]] = defaultdict(list)
        for event in slices:
            by_category[event.cat].append(event)
        for category, events in by_category.items():
            self.events += len(events)
            if category not in self._table_of:
                self._table_of[category] = table_of(category)
            table = self._table_of[category]
            if table is not None:
                self._add_events(table, events)
            elif category.lower() not in LEFT_OUT:
                self.unknown[category or "none"] += len(events)

    def _add_events(self, table: str, events: list[Slice]) -> None:
        """Add events of one category; `table` may also be their kind of device event."""
        if table == "python":
            events = self._worth_keeping(events)
        events, ts = self._with_time(events)
        if not events:
            return
        threads = [self.threads[event.pid, event.tid] for event in events]
        columns: dict[str, NDArray[Any]] = {
            "start": np.rint((ts - (self.base_us or 0.0)) * 1000.0).astype(np.int64),
            "dur_us": np.array([event.dur for event in events], dtype=np.float64),
            "name": np.array([self.names[event.name] for event in events], dtype=np.int32),
            "thread": np.array(threads, dtype=np.int32),
        }
        if table in DEVICE_KINDS:
            kind = DEVICE_KINDS.index(table)
            columns["kind"] = np.full(len(events), kind, dtype=np.int8)
            table = "device"
        args = [event.args or _NO_ARGS for event in events]
        for name in _COLUMNS[table]:
            if name not in columns:
                columns[name] = self._column_of_args(name, events, args)
        self._parts[table].append(columns)

    def _worth_keeping(self, frames: list[Slice]) -> list[Slice]:
        is_users = self._is_users
        return [frame for frame in frames if frame.dur >= _LONG_FRAME_US or is_users(frame.name)]

    def _with_time(self, events: list[Slice]) -> tuple[list[Slice], NDArray[np.float64]]:
        """Return the events that have a time which can be, and these times; count the others."""
        ts = np.array([event.ts for event in events], dtype=np.float64)
        if self.base_us is None:
            self.base_us = _first_time(ts)
        has_time = np.abs(ts - (self.base_us or 0.0)) < _FURTHEST_US  # NaN is not
        if has_time.all():
            return events, ts
        self.untimed += int(len(ts) - has_time.sum())
        kept = [event for event, timed in zip(events, has_time, strict=True) if timed]
        return kept, ts[has_time]

    def _column_of_args(
        self, name: str, events: list[Slice], args: list[SliceArgs]
    ) -> NDArray[Any]:
        """Return the column of this name, which the arguments of the events give."""
        if name == "payload":
            payloads = [_payload(event.name, arg) for event, arg in zip(events, args, strict=True)]
            return _whole_column(payloads)
        if name == "shapes":
            # bytes(): a Raw would keep its whole block alive
            texts = [bytes(arg.dims) or bytes(arg.dims_2020) for arg in args]
            return _numbers(texts, self.shapes)
        if name == "product":
            return self._product_numbers(events, args)
        if name == "group":  # the ranks that communicate, as text among the names
            return _numbers([bytes(arg.group).decode() for arg in args], self.names)
        return _whole_column([getattr(arg, name) for arg in args])

    def _product_numbers(self, events: list[Slice], args: list[SliceArgs]) -> NDArray[np.int32]:
        numbers = np.full(len(events), -1, dtype=np.int32)
        for row, (event, arg) in enumerate(zip(events, args, strict=True)):
            if event.name in PRODUCT_OPERATORS:
                inputs = ProductInputs(
                    event.name,
                    bytes(arg.dims) or bytes(arg.dims_2020),
                    bytes(arg.types),
                    bytes(arg.strides),
                    bytes(arg.concrete),
                    bytes(arg.stack),
                )
                numbers[row] = self.products[inputs]
        return numbers

    def trace(self, path: str) -> Trace:
        """Return all that was added, as one Trace; durations that cannot be become zero."""
        longest_us = self._span_ns() / 1000.0 + _LONGEST_BEYOND_US
        tables: dict[str, Any] = {}
        impossible: dict[str, int] = {}
        for table in _COLUMNS:
            tables[table], impossible[table] = self._join(table, longest_us)
        self.lasting = sum(len(tables[table]) - impossible[table] for table in _TABLES_OF_PROFILER)
        if len(tables["device"]):
            tables["device"] = self._worked(tables["device"])
        return Trace(
            path=path,
            base_us=self.base_us or 0.0,
            names=list(self.names),
            threads=list(self.threads),
            shapes=list(self.shapes),
            products=list(self.products),
            annotated=OUR_CATEGORY in self._table_of,
            categories=frozenset(self._table_of),
            doubts=self._doubts(impossible),
            **tables,
        )

    def _span_ns(self) -> int:
        """Return the time from the first start of all events to the last one."""
        starts = [part["start"] for parts in self._parts.values() for part in parts]
        if not starts:
            return 0
        return max(int(start.max()) for start in starts) - min(int(start.min()) for start in starts)

    def _doubts(self, impossible: dict[str, int]) -> list[Evidence]:
        """Return what was lost of the events; `impossible`: durations, by table."""
        doubts = []
        if self.untimed:
            doubts.append(fact("events-without-time", lost=self.untimed, events=self.events))
        lost = sum(impossible.values())
        if lost:
            on_device = impossible["device"] or None
            doubts.append(
                fact("events-without-duration", lost=lost, events=self.events, on_device=on_device)
            )
        return doubts + doubt_about_unknown(self.unknown, self.events)

    def _join(self, table: str, longest_us: float) -> tuple[Table, int]:
        """Return a table, and how many durations in it are missing or impossible."""
        parts = self._parts.pop(table, [])

        def column(name: str) -> NDArray[Any]:
            pieces = [part.pop(name) for part in parts]
            return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

        start = column("start")
        dur_us = column("dur_us")
        is_possible = (dur_us >= 0) & (dur_us <= longest_us)  # NaN is not
        end = start + np.rint(np.where(is_possible, dur_us, 0.0) * 1000.0).astype(np.int64)
        more = {name: column(name) for name in _COLUMNS[table]}
        joined = Table(start, end, column("name"), column("thread"), more)
        return joined, int(len(is_possible) - is_possible.sum())

    def _worked(self, device: Table) -> Table:
        """Return the device events that compute or move something, with their true kind."""
        # Some versions write copies as kernels.
        kinds = np.array([kind_by_name(name) for name in self.names], dtype=np.int8)
        kind_of_name = kinds[device.name]
        device.columns["kind"] = np.where(kind_of_name >= 0, kind_of_name, device["kind"])
        waits = np.array([is_wait(name) for name in self.names], dtype=bool)
        kept = ~waits[device.name]
        # CUDA and ROCm record no envelopes; two kernels of one stream never lie within each other.
        if not any(category.lower() == "kernel" for category in self._table_of):
            kernels = np.flatnonzero(kept & (device["kind"] == KERNEL))
            kept[kernels[_holds_another(device.where(kernels))]] = False
        return device if kept.all() else device.where(kept)


def _holds_another(table: Table) -> NDArray[np.bool_]:
    """Return the rows that are envelopes: the next event of their thread lies within them.

    Some devices write such a range around what a program of theirs runs.
    """
    order = np.lexsort((-table.end, table.start, table.thread))
    thread = table.thread[order]
    start = table.start[order]
    end = table.end[order]
    same_thread = thread[1:] == thread[:-1]
    holds_next = same_thread & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    holds = np.zeros(len(table), dtype=bool)
    holds[order[:-1][holds_next]] = True
    return holds


def _first_time(ts: NDArray[np.float64]) -> float | None:
    """Return the first time, in whole microseconds; None: there is no time.

    Times far from most others do not count: a damaged one would be the first of all.
    """
    finite = ts[np.isfinite(ts)]
    if not len(finite):
        return None
    near = finite[np.abs(finite - np.median(finite)) < _FURTHEST_US]
    return float(np.floor((near if len(near) else finite).min()))


def _whole_column(values: Sequence[int | float | None]) -> NDArray[np.int64]:
    """Return the numbers; -1 stands for None and for what no int64 holds (an id of 2**64 - 1)."""
    try:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)
    except (OverflowError, ValueError):
        whole = [whole_number(value) for value in values]
        return np.array([-1 if value is None else value for value in whole], dtype=np.int64)


def _numbers(texts: Sequence[str | bytes], names: Names) -> NDArray[np.int32]:
    """Return the number of each text among the names, -1 for an empty one."""
    return np.array([names[text] if text else -1 for text in texts], dtype=np.int32)


def _payload(name: str, args: SliceArgs) -> int:
    """Return the bytes of a collective's whole tensor, or of a gradient; -1: not known."""
    if not (name == ACCUMULATED or is_communication(name) or name.startswith("gloo:")):
        return -1
    elements = [_decoded(args.sent), _decoded(args.received)]
    counts = [count for count in elements if isinstance(count, int)]
    if counts:
        size = _element_bytes(_decoded(args.dtype))
        return max(counts) * size if size else -1
    dims = _decoded(args.dims) or _decoded(args.dims_2020)
    types = _decoded(args.types)
    if not isinstance(dims, list) or not isinstance(types, list):
        return -1
    total = 0
    for shape, dtype in zip(dims, types, strict=False):
        if isinstance(shape, list) and all(isinstance(side, int) for side in shape):
            total += _element_bytes(dtype) * math.prod(shape)
    return total or -1


def _element_bytes(dtype: Any) -> int:
    """Return the bytes of one element; 0: no type that is known."""
    return _BYTES.get(str(dtype).lower().removeprefix("c10::"), 0)


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw) if bytes(raw) else None
    except msgspec.DecodeError:
        return None
