"""Decoded slices -> numpy columns of int64 ns, a table per kind of event; names, and threads."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.queries.stacks import is_users
from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.intervals import Intervals, union
from torchdoctor.trace.files import Slice, SliceArgs
from torchdoctor.trace.foreign import whole_number
from torchdoctor.trace.kinds import (
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

ACCUMULATED = "torch::autograd::AccumulateGrad"  # its input is the gradient of one parameter
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
_COLUMNS = {
    "operators": ("shapes", "product", "payload"),
    "annotations": ("payload",),
    "runtime": ("correlation", "bytes"),
    "device": ("kind", "correlation", "device", "stream", "bytes", "payload", "group"),
    "spans": (),
    "python": (),
}


def _whole_column(values: Sequence[int | float | None]) -> NDArray[np.int64]:
    """Return the numbers; -1 stands for None and for what no int64 holds (an id of 2**64 - 1)."""
    try:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)
    except (OverflowError, ValueError):
        whole = [-1 if (number := whole_number(v)) is None else number for v in values]
        return np.array(whole, dtype=np.int64)


def _payload(name: str, args: SliceArgs) -> int:
    """Return the bytes of a collective's whole tensor, or of a gradient; -1: not known."""
    if not (name == ACCUMULATED or is_communication(name) or name.startswith("gloo:")):
        return -1
    elements = [_decoded(args.sent), _decoded(args.received)]
    if any(isinstance(count, int) for count in elements):
        size = _element_bytes(_decoded(args.dtype))
        return max(count for count in elements if isinstance(count, int)) * size if size else -1
    dims = _decoded(args.dims) or _decoded(args.dims_2020)
    types = _decoded(args.types)
    if not isinstance(dims, list) or not isinstance(types, list):
        return -1
    total = sum(
        _element_bytes(kind) * math.prod(shape)
        for shape, kind in zip(dims, types, strict=False)
        if isinstance(shape, list) and all(isinstance(side, int) for side in shape)
    )
    return total or -1


def _element_bytes(dtype: Any) -> int:
    """Return the bytes of one element; 0: no type that is known."""
    return _BYTES.get(str(dtype).lower().removeprefix("c10::"), 0)


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw) if bytes(raw) else None
    except msgspec.DecodeError:
        return None


Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Found = TypeVar("Found")


class Names(dict[Any, int]):
    """Interned values in order: looking one up gives its number, which is new for a new value."""

    def __missing__(self, key: Hashable) -> int:
        number = self[key] = len(self)
        return number


@dataclass
class Table:
    """Columns of equal length. `name` and `thread` are numbers of interned values."""

    start: Ints
    end: Ints
    name: Ints
    thread: Ints
    columns: dict[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, column: str) -> Ints:
        return self.columns[column]

    def spans(self, rows: NDArray[Any] | slice = slice(None)) -> Intervals:
        """Return the time that the selected rows cover."""
        return union(self.start[rows], self.end[rows])

    def where(self, rows: NDArray[Any]) -> Table:
        """Return the rows that a mask or an index array selects."""
        return Table(
            self.start[rows],
            self.end[rows],
            self.name[rows],
            self.thread[rows],
            {key: column[rows] for key, column in self.columns.items()},
        )


@dataclass
class Trace:
    """A whole trace as columns; -1 in one of its tables: none, or not recorded.

    Columns of tables: shapes and product are numbers into `shapes` and `products`, payload the
    bytes of a gradient or a collective, kind is KERNEL, MEMCPY or MEMSET.
    """

    path: str
    base_us: float
    names: list[str]
    threads: list[tuple[int | str, int | str]]  # process, thread
    shapes: list[bytes]  # JSON of the inputs' sizes
    products: list[ProductInputs]  # of matrix products, convolutions and attention
    operators: Table
    annotations: Table
    runtime: Table
    device: Table
    spans: Table
    python: Table  # the user's frames of Python, and long ones of libraries, if stacks are recorded
    cut_off: bool = False  # reading ended before the file did, or the file before its events
    annotated: bool = False  # a copy of a trace, with tracks of `trace_annotate`
    categories: frozenset[str] = frozenset()  # of all events
    metadata: dict[str, Any] = field(default_factory=dict)
    doubts: list[Evidence] = field(default_factory=list)
    # See `once`. Not an argument: a trace made by `replace` has other events and starts anew.
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def ranges(self) -> tuple[Table, Table]:
        """Return annotations and operators: either may hold marks and loaders, by release."""
        return self.annotations, self.operators

    @property
    def has_device(self) -> bool:
        """Return True if anything ran on a GPU while the profiler watched."""
        return len(self.device) > 0


def once(function: Callable[[Trace], Found]) -> Callable[[Trace], Found]:
    """Return the function with its answer kept, as several parts of the analysis ask for it."""

    @functools.wraps(function)
    def answer(trace: Trace) -> Found:
        if function.__name__ not in trace.known:
            trace.known[function.__name__] = function(trace)
        answered: Found = trace.known[function.__name__]
        return answered

    return answer


class Columns:
    """Collects blocks of slices; `trace()` gives what was collected."""

    def __init__(self) -> None:
        self.names, self.threads = Names(), Names()
        self.shapes, self.products = Names(), Names()
        self.base_us: float | None = None
        self.events = self.untimed = 0
        self.lasting = 0  # events of the profiler with a duration that can be, after `trace`
        self.unknown: Counter[str] = Counter()  # events by category
        self._parts: dict[str, list[dict[str, NDArray[Any]]]] = defaultdict(list)
        self._table_of: dict[str, str | None] = {}
        # Frames outnumber all other events, and nobody asks for short ones of libraries.
        self._is_users = functools.cache(is_users)

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
            if table == "python":
                is_kept = self._is_users
                events = [x for x in events if x.dur >= _LONG_FRAME_US or is_kept(x.name)]
            if table is not None:
                self._add_events(table, events)
            elif category.lower() not in LEFT_OUT:
                self.unknown[category or "none"] += len(events)

    @property
    def of_profiler(self) -> bool:
        """Return True if any of it is an operator, annotation, driver call or work of a device."""
        return any(self._parts[table] for table, columns in _COLUMNS.items() if columns)

    def _add_events(self, table: str, events: list[Slice]) -> None:
        ts = np.array([event.ts for event in events], dtype=np.float64)
        finite = ts[np.isfinite(ts)]
        if self.base_us is None and len(finite):  # without those far from most others
            near = finite[np.abs(finite - np.median(finite)) < _FURTHEST_US]
            self.base_us = float(np.floor((near if len(near) else finite).min()))
        base_us = self.base_us or 0.0
        sound = np.abs(ts - base_us) < _FURTHEST_US  # NaN is not
        if not sound.all():
            self.untimed += int(len(ts) - sound.sum())
            events = [event for event, kept in zip(events, sound, strict=True) if kept]
            ts = ts[sound]
        if not events:
            return
        args = [event.args or _NO_ARGS for event in events]
        threads = [self.threads[event.pid, event.tid] for event in events]
        columns: dict[str, NDArray[Any]] = {
            "start": np.rint((ts - base_us) * 1000.0).astype(np.int64),
            "dur_us": np.array([event.dur for event in events], dtype=np.float64),
            "name": np.array([self.names[event.name] for event in events], dtype=np.int32),
            "thread": np.array(threads, dtype=np.int32),
        }
        kind = DEVICE_KINDS.index(table) if table in DEVICE_KINDS else None
        table = table if kind is None else "device"
        for name in _COLUMNS[table]:
            if name == "payload":
                payloads = [_payload(e.name, arg) for e, arg in zip(events, args, strict=True)]
                columns[name] = _whole_column(payloads)
            elif name == "shapes":
                # bytes(): a Raw would keep its whole block alive
                texts = [bytes(arg.dims) or bytes(arg.dims_2020) for arg in args]
                numbers = [self.shapes[text] if text else -1 for text in texts]
                columns[name] = np.array(numbers, dtype=np.int32)
            elif name == "product":
                columns[name] = self._product_numbers(events, args)
            elif name == "group":  # the ranks that communicate, as text among the names
                groups = [bytes(arg.group).decode() for arg in args]
                numbers = [self.names[group] if group else -1 for group in groups]
                columns[name] = np.array(numbers, dtype=np.int32)
            elif name == "kind":
                columns[name] = np.full(len(args), kind, dtype=np.int8)
            else:
                columns[name] = _whole_column([getattr(arg, name) for arg in args])
        self._parts[table].append(columns)

    def _product_numbers(self, events: list[Slice], args: list[SliceArgs]) -> NDArray[np.int32]:
        numbers = np.full(len(events), -1, dtype=np.int32)
        for row, (event, arg) in enumerate(zip(events, args, strict=True)):
            if event.name in PRODUCT_OPERATORS:
                dims = bytes(arg.dims) or bytes(arg.dims_2020)
                more = arg.types, arg.strides, arg.concrete, arg.stack
                numbers[row] = self.products[ProductInputs(event.name, dims, *map(bytes, more))]
        return numbers

    def trace(self, path: str) -> Trace:
        """Return all that was added, as one Trace; durations that cannot be become zero."""
        doubts = []
        if self.untimed:
            doubts.append(fact("events-without-time", lost=self.untimed, events=self.events))
        starts = [part["start"] for parts in self._parts.values() for part in parts]
        borders = [int(border) for start in starts for border in (start.min(), start.max())]
        span_ns = max(borders, default=0) - min(borders, default=0)
        longest_us = span_ns / 1000.0 + _LONGEST_BEYOND_US
        unsound = {}
        tables: dict[str, Any] = {}
        for table in _COLUMNS:
            tables[table], unsound[table] = self._join(table, longest_us)
        if total := sum(unsound.values()):
            on_device = unsound["device"] or None
            doubts.append(
                fact(
                    "events-without-duration",
                    lost=total,
                    events=self.events,
                    on_device=on_device,
                )
            )
        working = [table for table, columns in _COLUMNS.items() if columns]
        self.lasting = sum(len(tables[table]) - unsound[table] for table in working)
        doubts += doubt_about_unknown(self.unknown, self.events)
        device = tables["device"]
        if len(device):  # some versions write copies as kernels
            kinds = np.array([kind_by_name(name) for name in self.names], dtype=np.int8)
            named = kinds[device.name]
            device.columns["kind"] = np.where(named >= 0, named, device["kind"])
            tables["device"] = _working(device, self.names, self._table_of)
        return Trace(
            path=path,
            base_us=self.base_us or 0.0,
            names=list(self.names),
            threads=list(self.threads),
            shapes=list(self.shapes),
            products=list(self.products),
            annotated=OUR_CATEGORY in self._table_of,
            categories=frozenset(self._table_of),
            doubts=doubts,
            **tables,
        )

    def _join(self, table: str, longest_us: float) -> tuple[Table, int]:
        """Return a table, and how many durations in it are missing or impossible."""
        parts = self._parts.pop(table, [])

        def column(name: str) -> NDArray[Any]:
            pieces = [part.pop(name) for part in parts]
            return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

        start = column("start")
        dur_us = column("dur_us")
        sound = (dur_us >= 0) & (dur_us <= longest_us)  # NaN is not
        end = start + np.rint(np.where(sound, dur_us, 0.0) * 1000.0).astype(np.int64)
        more = {name: column(name) for name in _COLUMNS[table]}
        joined = Table(start, end, column("name"), column("thread"), more)
        return joined, int(len(sound) - sound.sum())


def _working(device: Table, names: Iterable[str], categories: Iterable[str]) -> Table:
    """Return the device events without waits and envelopes, in which nothing is computed.

    CUDA and ROCm record neither. Other devices write a range around what a program of theirs runs;
    two kernels of one stream never lie within each other.
    """
    waits = np.array([is_wait(name) for name in names], dtype=bool)
    kept = ~waits[device.name]
    if not any(category.lower() == "kernel" for category in categories):
        kernels = np.flatnonzero(kept & (device["kind"] == KERNEL))
        table = device.where(kernels)
        order = np.lexsort((-table.end, table.start, table.thread))
        thread, start, end = (x[order] for x in (table.thread, table.start, table.end))
        holds = (thread[1:] == thread[:-1]) & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
        kept[kernels[order[:-1][holds]]] = False
    return device if kept.all() else device.where(kept)


def named(trace: Trace, table: Table, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return True for the rows whose name is wanted; only the table's own names are asked about."""
    own = np.zeros(len(trace.names), dtype=bool)
    numbers = np.flatnonzero(np.bincount(table.name))
    own[numbers] = [bool(wanted(trace.names[number])) for number in numbers.tolist()]
    return own[table.name]


def rows_by(values: NDArray[Any]) -> dict[int, Ints]:
    """Return the rows of each value, in their order: one sort, however many values there are."""
    if not len(values):
        return {}
    order = np.argsort(values, kind="stable")
    numbers, first = np.unique(values[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))


def is_step(name: str) -> bool:
    """Return True for the profiler's annotation of a step."""
    return name.startswith("ProfilerStep#")


def is_optimizer(name: str) -> bool:
    """Return True for the annotation of an optimizer's step."""
    return name.startswith("Optimizer.step#")


def is_loader(name: str) -> bool:
    """Return True for the annotation of a wait for the next batch."""
    return (
        name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__")
    ) or name.startswith("enumerate(DataPipe)#")


def main_thread(trace: Trace) -> int:
    """Return the thread of the loop: that of the steps, of most operators, or of the first call."""
    marked = [table.thread[named(trace, table, is_step)] for table in trace.ranges]
    for threads in (np.concatenate(marked), trace.operators.thread):
        if len(threads):
            return int(np.bincount(threads).argmax())
    calls = trace.runtime  # autograd's thread may make most of them, and never the first
    return int(calls.thread[calls.start.argmin()]) if len(calls) else 0


@once
def fetching_threads(trace: Trace) -> NDArray[np.bool_]:
    """Return True for each thread that iterates a loader and does not do the steps.

    A loader's range is a wait in the thread that trains; in one that fetches ahead it holds nobody.
    """
    loading = threads_of(trace, is_loader)
    if not loading.any():
        return loading
    for wanted in (is_step, is_optimizer):
        stepping = threads_of(trace, wanted)
        if stepping.any():
            return loading & ~stepping
    loading[main_thread(trace)] = False
    return loading


def of_fetching_thread(trace: Trace, table: Table) -> NDArray[np.bool_]:
    """Return the rows of the threads that only fetch batches."""
    return fetching_threads(trace)[table.thread] if len(table) else np.zeros(0, dtype=bool)


def threads_of(trace: Trace, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return True for the threads that have a range with such a name."""
    threads = np.zeros(len(trace.threads), dtype=bool)
    for table in trace.ranges:
        threads[table.thread[named(trace, table, wanted)]] = True
    return threads
