"""The ranges that mark a training loop: steps, optimizers and loaders, and whose threads they are.

Steps and loaders are annotations in most releases, operators in others: all ranges are asked.
"""

from collections.abc import Callable

import numpy as np

from torchdoctor.trace.columns import Mask, Table, Trace, named, once


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
def fetching_threads(trace: Trace) -> Mask:
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


def of_fetching_thread(trace: Trace, table: Table) -> Mask:
    """Return the rows of the threads that only fetch batches."""
    return fetching_threads(trace)[table.thread] if len(table) else np.zeros(0, dtype=bool)


def threads_of(trace: Trace, wanted: Callable[[str], object]) -> Mask:
    """Return True for the threads that have a range with such a name."""
    threads = np.zeros(len(trace.threads), dtype=bool)
    for table in trace.ranges:
        threads[table.thread[named(trace, table, wanted)]] = True
    return threads
