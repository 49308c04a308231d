"""Which threads of a trace do the steps, and which ones only fetch batches for them.

A range of a loader is a wait in the thread that trains; in one that fetches ahead it holds nobody.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Table, Trace, once


def named(trace: Trace, table: Table, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return True for the rows whose name is wanted; only the table's own names are asked about."""
    own = np.zeros(len(trace.names), dtype=bool)
    numbers = np.flatnonzero(np.bincount(table.name))
    own[numbers] = [bool(wanted(trace.names[number])) for number in numbers.tolist()]
    return own[table.name]


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
    """Return True for each thread that iterates a loader and does not do the steps."""
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
