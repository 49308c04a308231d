"""Where a window begins too early or too late: start-up in it, or earlier work before it."""

import re

import numpy as np

from torchdoctor.trace.columns import Mask, Trace, once
from torchdoctor.trace.threads import is_optimizer, named
from torchdoctor.words.figures import counted, seconds
from torchdoctor.words.intervals import Intervals

STARTS_UP = "the GPU's start-up"
ASKS = re.compile(r"(?:cuda|hip)Malloc(?!.*(?:Host|Async))|cuMemCreate")
_WAITS = re.compile(r"Synchronize|Memcpy")
_FREES = re.compile(r"Free|cuMem(?!Create)")  # may take long in a warm program too
_MOST = 0.2  # of all steps in one call, which no usual step makes
_MUCH = 0.3  # of a window without marks, in such calls
_CONTEXT_NS = 1_000_000  # a warm cudaFree takes less, unless it waits for kernels
_LONG_NS, _LONG = 50_000_000, 0.05  # of the trace: less is not worth leaving out
_IDLE = 0.9  # of a call: what waits for the device sees it work
_WAIT_NS = 1_000_000


@once
def begins_context(trace: Trace) -> Mask:
    """Return which driver calls make the device's context: long, and before any work of it."""
    table, device = trace.runtime, trace.device
    asked = table.start[named(trace, table, ASKS.match)]
    first = min((int(times.min()) for times in (device.start, asked) if len(times)), default=0)
    long = table.end - table.start >= _CONTEXT_NS
    return (table.start < first) & long & ~named(trace, table, _WAITS.search)


def start_up(trace: Trace, start: int, end: int) -> tuple[int, list[str]]:
    """Return where the window begins without start-up, and a sentence if that is later."""
    table = trace.runtime
    rows = begins_context(trace) | _loads(trace, _LONG_NS)
    total = table.spans(rows).total
    if not rows.any() or total < max(_LONG * (end - start), _LONG_NS):
        return start, []
    until = int(table.end[rows].max())
    steps = np.concatenate([t.end[named(trace, t, is_optimizer)] for t in trace.ranges])
    if len(steps) > 1 and steps.min() > until:
        until = int(steps.min())
    if (trace.device.start >= until).sum() < len(trace.device) / 2:
        return start, []
    longest = np.flatnonzero(rows)[(table.end - table.start)[rows].argmax()]
    return until, [
        f"The first {seconds((until - start) / 1e9)} of the trace are left out, as {STARTS_UP} "
        f"lies there: {counted(int(rows.sum()), 'call')} held the host for "
        f"{seconds(total / 1e9)}, the longest {trace.names[table.name[longest]]}."
    ]


def _loads(trace: Trace, least_ns: float) -> Mask:
    """Return the calls that take long while the device does nothing, as when code is loaded."""
    table = trace.runtime
    lasting = table.end - table.start
    idle = lasting - trace.device.spans().covered(table.start, table.end) >= _IDLE * lasting
    waits = named(trace, table, lambda name: _WAITS.search(name) or _FREES.search(name))
    return (lasting >= least_ns) & idle & ~waits


def code_loading(trace: Trace, steps: Intervals) -> tuple[float, str]:
    """Return how long calls that load code, as start-up does, hold marked steps; and their names.

    No usual step makes a call that takes so much of all of them while the device does nothing.
    """
    table = trace.runtime
    long = _loads(trace, max(_MOST * steps.total, _CONTEXT_NS))
    long &= steps.covered(table.start, table.end) > 0
    names = sorted({trace.names[name] for name in table.name[long]})
    return steps.covered(table.start, table.end)[long].sum() / 1e9, ", ".join(names)


def much_start_up(trace: Trace, steps: Intervals) -> bool:
    """Return True if calls of a start-up take much of a window that has no marks of steps."""
    table = trace.runtime
    rows = begins_context(trace) | _loads(trace, _CONTEXT_NS)
    held = steps.covered(table.start, table.end)[rows & ~named(trace, table, ASKS.match)]
    return bool(held.sum() > _MUCH * steps.total)


def earlier_work(trace: Trace, steps: Intervals) -> tuple[float, str]:
    """Return how long the first call of the window waits for work launched before; and its name."""
    table = trace.runtime
    waits = named(trace, table, _WAITS.search) & (table.end - table.start >= _WAIT_NS)
    if not waits.any():
        return 0.0, ""
    row = np.flatnonzero(waits)[table.start[waits].argmin()]
    start, end = table.start[[row]], table.end[[row]]
    idle = steps.covered(start, end) - trace.device.spans().covered(start, end)
    return float(idle[0]) / 1e9, trace.names[table.name[row]]
