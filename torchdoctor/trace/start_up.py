"""Where a window begins too early or too late: start-up in it, or earlier work before it."""

import re
from dataclasses import asdict, replace

import numpy as np

from torchdoctor.trace.columns import Mask, Trace, once
from torchdoctor.trace.threads import is_optimizer, named
from torchdoctor.words import Recording, Shares, TraceStatistics
from torchdoctor.words.figures import counted, seconds
from torchdoctor.words.intervals import Intervals

STARTS_UP = "the GPU's start-up"
ASKS = re.compile(r"(?:cuda|hip)Malloc(?!.*(?:Host|Async))|cuMemCreate")
_WAITS = re.compile(r"Synchronize|Memcpy")
_FREES = re.compile(r"Free|cuMem(?!Create)")  # may take long in a warm program too
_MOST, _MUCH = 0.2, 0.3  # in calls that no usual step makes: of marked steps, of a whole window
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
    most = np.bincount(table.name[rows], (table.end - table.start)[rows]).argmax()
    return until, [
        f"The first {seconds((until - start) / 1e9)} are left out, as {STARTS_UP} "
        f"lies there: {counted(int(rows.sum()), 'call')} held the host for "
        f"{seconds(total / 1e9)}, most in {trace.names[most]}."
    ]


def _loads(trace: Trace, least_ns: float) -> Mask:
    """Return the calls that take long while the device does nothing, as when code is loaded."""
    table = trace.runtime
    lasting = table.end - table.start
    idle = lasting - trace.device.spans().covered(table.start, table.end) >= _IDLE * lasting
    waits = named(trace, table, lambda name: _WAITS.search(name) or _FREES.search(name))
    return (lasting >= least_ns) & idle & ~waits


def much_start_up(trace: Trace, steps: Intervals) -> bool:
    """Return True if calls of a start-up take much of a window that has no marks of steps."""
    table = trace.runtime
    rows = begins_context(trace) | _loads(trace, _CONTEXT_NS)
    held = steps.covered(table.start, table.end)[rows & ~named(trace, table, ASKS.match)]
    return bool(held.sum() > _MUCH * steps.total)


def unusual_part(trace: Trace, steps: Intervals, marked: bool) -> tuple[float, str]:
    """Return the seconds of the steps that no usual step has, if they are many, and why."""
    held_ns, call = _earlier_work(trace, Intervals(steps.start[:1], steps.end[:1]))
    if held_ns > _MOST * steps.total:
        return held_ns / 1e9, (
            f"The window begins in the middle of earlier work: {call} waits "
            f"{seconds(held_ns / 1e9)} ({held_ns / steps.total:.0%} of what was recorded) for what "
            "was launched before, which the trace does not show."
        )
    table, least_ns = trace.runtime, max(_MOST * steps.total, _CONTEXT_NS)
    held = steps.covered(table.start, table.end) * _loads(trace, least_ns)
    if not marked or held.sum() <= _MOST * steps.total:
        return 0.0, ""
    # No usual step makes a call that takes so much of all of them while the device does nothing.
    return held.sum() / 1e9, (
        f"The GPU's start-up lies in the window: {trace.names[table.name[held.argmax()]]} holds "
        f"the host {seconds(held.sum() / 1e9)} ({held.sum() / steps.total:.0%} of each step) while "
        "the GPU does nothing, as when code is loaded."
    )


def _earlier_work(trace: Trace, steps: Intervals) -> tuple[int, str]:
    """Return for how long the first call waits for work of before the window; and its name."""
    table = trace.runtime
    waits = named(trace, table, _WAITS.search) & (table.end - table.start >= _WAIT_NS)
    if not waits.any():
        return 0, ""
    row = np.flatnonzero(waits)[table.start[waits].argmin()]
    start, end = table.start[[row]], table.end[[row]]
    idle = steps.covered(start, end) - trace.device.spans().covered(start, end)
    return int(idle[0]), trace.names[table.name[row]]


def usual_part(recording: Recording, trace: TraceStatistics) -> Recording:
    """Return the recording without the driver calls of its unusual part."""
    lost_s = trace.unusual_s
    if not lost_s or not trace.step_s:
        return recording
    rest_s = max(trace.step_s - lost_s, 1e-9)

    def left(held_s: float | None) -> float | None:
        return held_s and max(held_s - lost_s, 0.0)

    rest = replace(
        trace,
        step_s=rest_s,
        blocking_copy_s=left(trace.blocking_copy_s),
        blocking_copy_exposed_s=left(trace.blocking_copy_exposed_s),
        d2h_wait_s=left(trace.d2h_wait_s),
        pageable_wait_s=left(trace.pageable_wait_s),
        sync_s=left(trace.sync_s),
    )
    scale = trace.step_s / rest_s
    driver = max((trace.shares.runtime or 0.0) - lost_s / trace.step_s, 0.0)
    shares = asdict(replace(trace.shares, runtime=driver))
    return replace(
        recording,
        trace=rest,
        shares=Shares(**{name: x and min(x * scale, 1.0) for name, x in shares.items()}),
    )
