"""What calls of the host wait for on the device, which no runtime records.

Four kinds of calls wait, each for other events:

- a copy call, until its own copy is done or, from pageable memory, has begun;
- a launch into a full queue, until an earlier event of its stream begins;
- a synchronisation of a device or a stream, or a call that frees memory and takes long, for the
  events that were launched last before it: of all streams, or of the one that was meant;
- a synchronisation with an event, for what ended right before it returned.

Stream order, what was launched before, and times decide which events these are.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchdoctor.schema.intervals import Ints
from torchdoctor.trace.columns import Mask, Trace, named
from torchdoctor.trace.device_order import CLOCK_NS, LONG_CALL_NS, Cost, DeviceEvents
from torchdoctor.trace.kinds import COPY_CALL

_DEVICE_SYNC = re.compile(r"(?:cuda|hip)(?:Device|Thread)Synchronize|(?:cu|hip)CtxSynchronize")
_STREAM_SYNC = re.compile(r"(?:cuda|hip|cu)StreamSynchronize")
_EVENT_SYNC = re.compile(r"(?:cuda|hip|cu)EventSynchronize")
_FREEING = re.compile(r"(?:cuda|hip)(?:Free|Malloc|Host|Unregister)|cuMem(?:Free|Alloc|HostAlloc)")
_FULL_QUEUE = 512  # launches that have not begun: queues take about a thousand
_WAKE_UP_NS = 100_000  # after the awaited event the call has returned by then
_DRIFT_NS = LONG_CALL_NS  # an awaited event may end so much after the call: clocks drift apart
_AT_NO_TIME = np.iinfo(np.int64).max
_OF_SAME_THREAD = 1 << 60  # above all times: a launch of the same thread goes before any other


@dataclass(frozen=True)
class HostWaits:
    """One entry per call and device event: `call` is a row of `Trace.runtime`."""

    call: Ints
    event: Ints  # index into the device events
    cost: Ints  # class of the time after the wait, and of the wait itself


class _Waits(NamedTuple):
    """Rows of calls, and beside each the index of an event that it waits for."""

    call: Ints
    event: Ints


def host_waits(trace: Trace, events: DeviceEvents, rows: Ints) -> HostWaits:
    """Return what the calls `rows` of `trace.runtime` wait for on the device."""
    waits = (
        (Cost.COPY, _copies(trace, events)),
        (Cost.CPU, _full_queues(trace, events)),
        (Cost.RUNTIME, _synchronisations(trace, events, rows)),
        (Cost.RUNTIME, _event_synchronisations(trace, events, rows)),
    )
    return HostWaits(
        call=np.concatenate([pairs.call for _, pairs in waits]),
        event=np.concatenate([pairs.event for _, pairs in waits]),
        cost=np.concatenate([np.full(len(pairs.call), cost) for cost, pairs in waits]),
    )


def _copies(trace: Trace, events: DeviceEvents) -> _Waits:
    """Return the copy calls that return when their copy is done, or (pageable) well under way."""
    runtime = trace.runtime
    copies = np.flatnonzero((events.cost == Cost.COPY) & (events.call >= 0))
    call = events.call[copies]
    returned = runtime.end[call]
    is_copy_call = _matching(trace, call, COPY_CALL)
    # "Pageable" or "pageable", by release
    pageable = np.array(["ageable" in trace.names[name] for name in events.name[copies]], bool)
    done = events.end[copies] <= returned  # exactly: most calls return just before
    under_way = pageable & (events.start[copies] <= returned)
    waits = is_copy_call & (done | under_way)
    return _Waits(call[waits], copies[waits])


def _full_queues(trace: Trace, events: DeviceEvents) -> _Waits:
    """Return the launch calls that block because the queue is full: an earlier event must begin."""
    runtime = trace.runtime
    launched = np.flatnonzero((events.call >= 0) & (events.cost != Cost.COPY))
    call = events.call[launched]
    took_long = runtime.end[call] - runtime.start[call] >= LONG_CALL_NS
    calls = []
    awaited = []
    for event in launched[took_long].tolist():  # few
        launching = int(events.call[event])
        first = int(events.stream_first[events.stream[event]])
        starts = events.start[first:event]
        begun = int(np.searchsorted(starts, runtime.end[launching], side="right"))
        queued = len(starts) - begun
        if queued >= _FULL_QUEUE and begun > 0:
            calls.append(launching)
            awaited.append(first + begun - 1)
    return _Waits(np.array(calls, dtype=np.int64), np.array(awaited, dtype=np.int64))


def _synchronisations(trace: Trace, events: DeviceEvents, rows: Ints) -> _Waits:
    """Return the waits of calls that synchronise, some on the way to something else (cudaFree)."""
    runtime = trace.runtime
    of_one_stream = _matching(trace, rows, _STREAM_SYNC)
    synchronises = of_one_stream | _matching(trace, rows, _DEVICE_SYNC)
    synchronises |= _takes_long(trace, rows) & _matching(trace, rows, _FREEING)
    calls = rows[synchronises]
    of_one_stream = of_one_stream[synchronises]
    last = events.last_called_before(runtime.start[calls])  # (call, stream)
    ended = np.where(last >= 0, events.end[last], _AT_NO_TIME)
    waits = ended <= runtime.end[calls][:, None] + _DRIFT_NS
    if of_one_stream.any():
        waits &= ~of_one_stream[:, None] | _awaited_streams(trace, events, calls, last, ended)
    row, stream = np.nonzero(waits)
    return _Waits(calls[row], last[row, stream])


def _awaited_streams(
    trace: Trace, events: DeviceEvents, calls: Ints, last: Ints, ended: Ints
) -> Mask:
    """Return which streams a call may wait for, by call and stream.

    It is the one used last, by the call's own thread if that used any. Where this does not explain
    when a long call returned, it may also be any whose last event ended just then.
    """
    runtime = trace.runtime
    begin = runtime.start[calls][:, None]
    end = runtime.end[calls][:, None]
    is_launched = last >= 0
    thread = runtime.thread[calls][:, None]
    by_same_thread = (events.call[last] >= 0) & (runtime.thread[events.call[last]] == thread)
    recency = np.where(is_launched, events.called[last], -1)
    recency[is_launched & by_same_thread] += _OF_SAME_THREAD
    used_last = recency == recency.max(axis=1, initial=0, keepdims=True)
    explains = (ended > begin) & (ended <= end + CLOCK_NS) & (ended >= end - _WAKE_UP_NS)
    explains &= end - begin >= LONG_CALL_NS
    is_explained = (used_last & explains).any(axis=1, keepdims=True)
    awaited: Mask = used_last | (explains & ~is_explained)
    return awaited


def _event_synchronisations(trace: Trace, events: DeviceEvents, rows: Ints) -> _Waits:
    """Return the waits of cudaEventSynchronize: for the event that ended right before."""
    runtime = trace.runtime
    calls = rows[_matching(trace, rows, _EVENT_SYNC) & _takes_long(trace, rows)]
    by_end = np.argsort(events.end, kind="stable")
    place = np.searchsorted(events.end[by_end], runtime.end[calls] + CLOCK_NS, side="right") - 1
    calls = calls[place >= 0]
    awaited = by_end[place[place >= 0]]
    earliest = np.maximum(runtime.end[calls] - _WAKE_UP_NS, runtime.start[calls])
    waits = events.end[awaited] >= earliest
    return _Waits(calls[waits], awaited[waits])


def _matching(trace: Trace, rows: Ints, pattern: re.Pattern[str]) -> Mask:
    return named(trace, trace.runtime, pattern.match)[rows]


def _takes_long(trace: Trace, rows: Ints) -> Mask:
    long: Mask = trace.runtime.end[rows] - trace.runtime.start[rows] >= LONG_CALL_NS
    return long
