"""A trace as numpy columns: a table for each kind of event, in int64 nanoseconds.

`collector.py` fills the tables, `loop_marks.py` knows the ranges that mark a training loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.intervals import Intervals, union
from torchdoctor.trace.product_sizes import ProductInputs

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Found = TypeVar("Found")


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
    def kept(trace: Trace) -> Found:
        if function.__name__ not in trace.known:
            trace.known[function.__name__] = function(trace)
        answer: Found = trace.known[function.__name__]
        return answer

    return kept


def named(trace: Trace, table: Table, wanted: Callable[[str], object]) -> Mask:
    """Return True for the rows whose name is wanted; only the table's own names are asked about."""
    is_wanted = np.zeros(len(trace.names), dtype=bool)
    numbers = np.flatnonzero(np.bincount(table.name))
    is_wanted[numbers] = [bool(wanted(trace.names[number])) for number in numbers.tolist()]
    return is_wanted[table.name]


def rows_by(values: NDArray[Any]) -> dict[int, Ints]:
    """Return the rows of each value, in their order: one sort, however many values there are."""
    if not len(values):
        return {}
    order = np.argsort(values, kind="stable")
    numbers, first = np.unique(values[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))
