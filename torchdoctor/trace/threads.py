"""Which threads of a trace do the steps, and which ones only fetch batches for them.

A range of a loader is a wait where the thread that trains is in it. In a thread of its own, which
fetches ahead, it holds nobody.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Ints, Table, Trace, once
from torchdoctor.words.intervals import union

_STEP = "ProfilerStep#"
_OPTIMIZER = "Optimizer.step#"
_WORKS = 0.1  # of the busiest thread's operators, from where on a thread is taken to do the steps


def named(trace: Trace, table: Table, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the rows of a table whose name is wanted; `wanted` has one entry per interned name."""
    return wanted[table.name] if len(table) else np.zeros(0, dtype=bool)


def named_by(trace: Trace, table: Table, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return the rows of a table whose name is wanted; only the table's own names are asked about.

    A trace may have hundreds of thousands of names, of operators most of them.
    """
    own = np.zeros(len(trace.names), dtype=bool)
    for number in np.unique(table.name).tolist():
        own[number] = wanted(trace.names[number])
    return named(trace, table, own)


def is_step(name: str) -> bool:
    """Return True for the profiler's annotation of a step."""
    return name.startswith(_STEP)


def is_loader(name: str) -> bool:
    """Return True for the annotation of a wait for the next batch."""
    return (
        name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__")
    ) or name.startswith("enumerate(DataPipe)#")


def find_step_thread(trace: Trace) -> int:
    """Return the thread of the training loop: that of the steps, else of most operators."""
    step_name = np.array([is_step(name) for name in trace.names], dtype=bool)
    for table in (trace.annotations, trace.operators):
        threads = table.where(named(trace, table, step_name)).thread
        if len(threads):
            return int(np.bincount(threads).argmax())
    threads = trace.operators.thread
    return int(np.bincount(threads).argmax()) if len(threads) else -1


@once
def fetching_threads(trace: Trace) -> NDArray[np.bool_]:
    """Return True for each thread that iterates a loader and does not do the steps."""
    loads = np.array([is_loader(name) for name in trace.names], dtype=bool)
    loading = _threads_of(trace, loads)
    if not loading.any():
        return loading
    for wanted in (is_step, lambda name: name.startswith(_OPTIMIZER)):
        stepping = _threads_of(trace, np.array([wanted(name) for name in trace.names], dtype=bool))
        if stepping.any():
            return loading & ~stepping
    return loading & ~_working_threads(trace, loads)


def of_fetching_thread(trace: Trace, table: Table) -> NDArray[np.bool_]:
    """Return the rows of the threads that only fetch batches."""
    return fetching_threads(trace)[table.thread] if len(table) else np.zeros(0, dtype=bool)


def _threads_of(trace: Trace, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    threads = np.zeros(len(trace.threads), dtype=bool)
    for table in (trace.annotations, trace.operators):
        threads[table.thread[named(trace, table, wanted)]] = True
    return threads


def _working_threads(trace: Trace, loads: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which threads spend much time in operators that no loader of theirs calls."""
    spent: Ints = np.zeros(len(trace.threads), dtype=np.int64)
    tables = (trace.annotations, trace.operators)
    for thread in np.unique(trace.operators.thread):
        ours = trace.operators.where(trace.operators.thread == thread)
        waits = [t.where(named(trace, t, loads) & (t.thread == thread)) for t in tables]
        loading = union(
            np.concatenate([wait.start for wait in waits]),
            np.concatenate([wait.end for wait in waits]),
        )
        own = ours.where(~loading.contain(ours.start))
        spent[thread] = union(own.start, own.end).total
    return spent >= _WORKS * spent.max() if len(spent) else np.zeros(0, dtype=bool)
