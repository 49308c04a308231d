"""Calls in which the host waits for the device, and the device events that they wait for.

The runtime does not record what a call waited for. Stream order, what was launched before, and
the times decide: an event that ends after the call has returned was not waited for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.device_order import CLOCK_NS, COPY, CPU, LONG_CALL_NS, RUNTIME, DeviceEvents
from torchdoctor.trace.threads import named_by
from torchdoctor.words.intervals import Ints

COPY_CALL = re.compile(r"(?:cuda|hip|cu)Memcpy")
_DEVICE_SYNC = re.compile(r"(?:cuda|hip)(?:Device|Thread)Synchronize|(?:cu|hip)CtxSynchronize")
_STREAM_SYNC = re.compile(r"(?:cuda|hip|cu)StreamSynchronize")
_EVENT_SYNC = re.compile(r"(?:cuda|hip|cu)EventSynchronize")
_FREEING = re.compile(r"(?:cuda|hip)(?:Free|Malloc|Host|Unregister)|cuMem(?:Free|Alloc|HostAlloc)")
_FULL_QUEUE = 512  # launches that have not begun: queues take about a thousand
_WAKE_UP_NS = 100_000  # after the awaited event the call has returned by then


@dataclass(frozen=True)
class HostWaits:
    """One entry per call and device event: `call` is a row of `Trace.runtime`."""

    call: Ints
    event: Ints  # index into the device events
    cost: Ints  # class of the time after the wait, and of the wait itself

    def __len__(self) -> int:
        return len(self.call)


def host_waits(trace: Trace, events: DeviceEvents, rows: Ints) -> HostWaits:
    """What the calls `rows` of `trace.runtime` wait for on the device."""
    found = [
        _synchronisations(trace, events, rows),
        _event_synchronisations(trace, events, rows),
        _copies(trace, events),
        _full_queues(trace, events),
    ]
    call, event = (np.concatenate(parts) for parts in zip(*(f[:2] for f in found), strict=True))
    cost = np.concatenate([np.full(len(f[0]), f[2]) for f in found])
    return HostWaits(call, event, cost)


def stuck_ns(trace: Trace, events: DeviceEvents, rows: Ints, waits: HostWaits) -> int:
    """How long the calls `rows` synchronised or copied with nothing running that they wait for."""
    runtime = trace.runtime
    wanted = np.zeros(len(rows), dtype=bool)
    for pattern in (_STREAM_SYNC, _DEVICE_SYNC, _EVENT_SYNC, COPY_CALL):
        wanted |= _matching(trace, rows, pattern)
    done = runtime.start.copy()
    np.maximum.at(done, waits.call, events.end[waits.event])
    left = (runtime.end - done)[rows[wanted]]
    return int(left[left > _WAKE_UP_NS].sum())


def _matching(trace: Trace, rows: Ints, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    return named_by(trace, trace.runtime, lambda name: pattern.match(name) is not None)[rows]


def _synchronisations(trace: Trace, events: DeviceEvents, rows: Ints) -> tuple[Ints, Ints, int]:
    """Synchronising a stream or the device, and calls that synchronise on the way (cudaFree)."""
    runtime = trace.runtime
    stream_only = _matching(trace, rows, _STREAM_SYNC)
    wanted = stream_only | _matching(trace, rows, _DEVICE_SYNC)
    long = runtime.end[rows] - runtime.start[rows] >= LONG_CALL_NS
    wanted |= long & _matching(trace, rows, _FREEING)
    calls, stream_only = rows[wanted], stream_only[wanted]
    last = events.last_called_before(runtime.start[calls])
    ended = np.where(last >= 0, events.end[last], np.iinfo(np.int64).max)
    waited = ended <= runtime.end[calls][:, None] + CLOCK_NS
    if stream_only.any():
        waited &= ~stream_only[:, None] | _awaited_streams(trace, events, calls, last, ended)
    which, stream = np.nonzero(waited)
    return calls[which], last[which, stream], RUNTIME


def _awaited_streams(
    trace: Trace, events: DeviceEvents, calls: Ints, last: Ints, ended: Ints
) -> NDArray[np.bool_]:
    """Per stream synchronisation the streams that it may wait for, as no trace says which.

    That of the thread's last launch; and where the call returned right after an event of another
    stream, that one.
    """
    runtime = trace.runtime
    begin, end = runtime.start[calls][:, None], runtime.end[calls][:, None]
    called = np.where(last >= 0, events.called[last], -1)
    same_thread = np.where(
        events.call[last] >= 0,
        runtime.thread[events.call[last]] == runtime.thread[calls][:, None],
        False,
    )
    rank = np.where(last >= 0, called + same_thread * (1 << 60), -1)
    latest = rank == rank.max(axis=1, initial=0, keepdims=True)
    explains = (ended > begin) & (ended <= end + CLOCK_NS) & (ended >= end - _WAKE_UP_NS)
    explains &= end - begin >= LONG_CALL_NS
    own_explains = (latest & explains).any(axis=1, keepdims=True)
    return latest | (explains & ~own_explains)


def _event_synchronisations(
    trace: Trace, events: DeviceEvents, rows: Ints
) -> tuple[Ints, Ints, int]:
    """cudaEventSynchronize that blocked: it waits for what ended right before it returned."""
    runtime = trace.runtime
    calls = rows[_matching(trace, rows, _EVENT_SYNC)]
    calls = calls[runtime.end[calls] - runtime.start[calls] >= LONG_CALL_NS]
    order = np.argsort(events.end, kind="stable")
    place = np.searchsorted(events.end[order], runtime.end[calls] + CLOCK_NS, side="right") - 1
    event = order[np.maximum(place, 0)] if len(order) else place
    good = place >= 0
    good[good] = events.end[event[good]] >= np.maximum(
        runtime.end[calls[good]] - _WAKE_UP_NS, runtime.start[calls[good]]
    )
    return calls[good], event[good], RUNTIME


def _copies(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints, int]:
    """Copy calls that return when their copy is done, or (pageable memory) well under way."""
    runtime = trace.runtime
    copies = np.flatnonzero((events.cost == COPY) & (events.call >= 0))
    call = events.call[copies]
    is_copy_call = _matching(trace, call, COPY_CALL)
    pageable = np.array(["ageable" in name for name in trace.names], dtype=bool)
    done = events.end[copies] <= runtime.end[call]  # exactly: most calls return just before
    under_way = pageable[events.name[copies]] & (events.start[copies] <= runtime.end[call])
    good = is_copy_call & (done | under_way)
    return call[good], copies[good], COPY


def _full_queues(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints, int]:
    """Launch calls that block because the queue is full: an earlier event has to begin first."""
    runtime = trace.runtime
    launched = np.flatnonzero((events.call >= 0) & (events.cost != COPY))
    call = events.call[launched]
    length = runtime.end[call] - runtime.start[call]
    launched = launched[length >= LONG_CALL_NS]
    calls, waited = [], []
    for event in launched.tolist():  # few: launches that took long
        first = int(events.stream_first[events.stream[event]])
        returned = runtime.end[events.call[event]]
        begun = first + int(np.searchsorted(events.start[first:event], returned, side="right"))
        if event - begun >= _FULL_QUEUE and begun > first:
            calls.append(int(events.call[event]))
            waited.append(begun - 1)
    return np.array(calls, dtype=np.int64), np.array(waited, dtype=np.int64), CPU
