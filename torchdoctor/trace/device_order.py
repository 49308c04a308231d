"""Device events of some steps in stream order, and what each of them waits for.

An event starts when its launch has reached the device, and the events before it on its stream and
of other streams that it waits for have ended. What is later is a wait of unknown cause.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from torchdoctor.trace.columns import Mask, Trace
from torchdoctor.trace.kinds import KERNEL, MEMCPY, is_communication
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.threads import named
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words.intervals import Ints

CLOCK_NS = 5_000  # by how much the clocks of host and device may disagree
UNEXPLAINED_NS = 20_000  # a start this much later than explained waits for something unknown
_QUEUED_GAP_NS = 20_000  # a longer gap between queued events has a cause of its own
_LONGEST_LATENCY_NS = 100_000  # of a launch on an idle stream; longer waits for something else
LONG_CALL_NS = 20_000  # of a launch; a usual one takes 3 to 10 us
NEVER = np.iinfo(np.int64).min // 4
_WAIT_EVENT = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")


class Cost(IntEnum):
    """What time can belong to; a what-if takes one of them away. FIXED stays in all of them."""

    LOADER, COPY, COMMUNICATION, GPU, CPU, RUNTIME, FIXED = range(7)


@dataclass(frozen=True, kw_only=True)
class DeviceEvents:
    """Device events in order of stream, then start; indexes are into these columns, -1: none.

    The first event of a stream may be `earlier`: launched before the window, still in its way.
    """

    start: Ints
    end: Ints
    stream: Ints  # dense numbers of (device, stream)
    cost: Ints  # class of the time that it takes
    name: Ints  # interned
    call: Ints  # row of the launching runtime call, -1: earlier, or not recorded
    called: Ints  # when that call began; NEVER: no such call
    submitted: Ints  # when the launch reached the queue, inside its call; NEVER: not known
    step: Ints  # of the window, -1: none
    earlier: Mask
    latency: Ints  # usual time from `submitted` to the start on an idle stream
    gap: Ints  # usual time from the end of the event before
    stream_first: Ints  # per stream: index of its first event; one more entry ends the last

    def __len__(self) -> int:
        return len(self.start)

    def streams(self) -> Iterator[tuple[int, int]]:
        """Return the first event of each stream, and that of the next one."""
        return itertools.pairwise(self.stream_first.tolist())

    @property
    def previous(self) -> Ints:
        """Return the event before on the same stream, or -1."""
        before = np.arange(len(self)) - 1
        before[self.stream_first[:-1]] = -1
        return before

    def last_called_before(self, times: Ints) -> Ints:
        """Return the last event that was launched before each moment by stream, or -1."""
        last_event = np.full((len(times), len(self.stream_first) - 1), -1)
        for stream, (first, last) in enumerate(self.streams()):
            called = np.maximum.accumulate(self.called[first:last])
            place = np.searchsorted(called, times, side="left") - 1
            last_event[:, stream] = np.where(place >= 0, first + place, -1)
        return last_event


def device_events(trace: Trace, timeline: Timeline, first: int, last: int) -> DeviceEvents:
    """Return the device events that these steps launched, and earlier work that delays them."""
    steps, device = timeline.steps, trace.device
    row = launch_rows(trace)
    launched = row >= 0
    called = np.where(launched, trace.runtime.start[row], NEVER) if len(trace.runtime) else row
    begin, end = steps.host_start[first], steps.host_end[last]
    inside = launched & (called >= begin) & (called < end)
    # Without a launch an event can only be placed by its own time.
    inside |= ~launched & (device.start >= begin) & (device.start < steps.end[last])
    earlier = launched & (called < begin) & (device.end > begin)
    rows = np.flatnonzero(inside | earlier)
    stream = _dense(_dense(device["device"][rows]) * len(device) + _dense(device["stream"][rows]))
    order = np.lexsort((device.end[rows], device.start[rows], stream))
    rows, stream = rows[order], stream[order]
    table, row, earlier = device.where(rows), row[rows], earlier[rows]
    known = (row >= 0) & ~earlier
    returned = np.where(known, trace.runtime.end[row], NEVER) if len(trace.runtime) else row
    step = np.searchsorted(steps.host_start, called[rows], side="right") - 1
    counted = known & (step >= first) & (returned <= steps.host_end[np.maximum(step, 0)])
    counted |= (row < 0) & (not steps.known)
    collective = named(trace, table, is_communication)
    of_kernels = np.where(collective, Cost.COMMUNICATION, Cost.GPU)
    copies = np.where(table["kind"] == MEMCPY, Cost.COPY, Cost.FIXED)
    events = DeviceEvents(
        start=table.start,
        end=table.end,
        stream=stream,
        cost=np.where(table["kind"] == KERNEL, of_kernels, copies),
        name=table.name,
        call=np.where(earlier, -1, row),
        called=np.where(known, called[rows], NEVER),
        submitted=np.where(known, called[rows], NEVER),
        step=np.where(counted, np.maximum(step - first, 0), -1),
        earlier=earlier,
        latency=np.zeros(len(table), dtype=np.int64),
        gap=np.zeros(len(table), dtype=np.int64),
        stream_first=np.searchsorted(stream, np.arange(int(stream.max(initial=-1)) + 2)),
    )
    return _with_usual_delays(events, table["kind"], returned)


def _dense(values: Ints) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1]).reshape(-1)


def _with_usual_delays(events: DeviceEvents, kind: Ints, returned: Ints) -> DeviceEvents:
    """Return the events with the usual launch latency and queued gap of each kind."""
    previous = events.previous
    latencies, gaps = np.zeros((2, len(events)), dtype=np.int64)
    freed = np.where(previous >= 0, events.end[previous], NEVER)
    known = events.call >= 0
    idle = known & (freed <= events.called)
    after_call = events.start - events.called
    for number in np.unique(kind):
        of_kind = kind == number
        direct = after_call[of_kind & idle & (returned - events.called < LONG_CALL_NS)]
        direct = direct[direct < _LONGEST_LATENCY_NS]
        # The lower quartile: above it are launches that waited for something else as well.
        latency = int(np.percentile(direct, 25, method="lower")) if len(direct) else CLOCK_NS
        latencies[of_kind] = latency
        gap = events.start - freed
        queued = of_kind & known & (events.called + latency < freed) & (gap < _QUEUED_GAP_NS)
        queued &= gap > -CLOCK_NS
        gaps[of_kind] = round(float(gap[queued].mean())) if queued.any() else 1_000
    # Events that overlap on their stream do not wait for the end of the one before.
    overlap = (previous >= 0) & (events.start < freed - CLOCK_NS // 2)
    gaps[overlap] = (events.start - freed)[overlap]
    # A long call submits somewhere inside: on an idle stream the start tells where.
    long = known & (returned - events.called >= LONG_CALL_NS) & (freed <= events.called + CLOCK_NS)
    at = np.clip(events.start - latencies, events.called, np.maximum(returned, events.called))
    submitted = np.where(long, at, events.called)
    order = np.argsort(events.start, kind="stable")  # of a call (a graph launches many) the first
    _, first, group = np.unique(events.call[order], return_index=True, return_inverse=True)
    of_call = np.empty(len(events), dtype=np.int64)
    of_call[order] = order[first][group.reshape(-1)]
    submitted = np.where(known, submitted[of_call], submitted)
    return replace(events, latency=latencies, gap=gaps, submitted=submitted)


def cross_stream_waits(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    """Return the events that wait for one of another stream, by calls or by times, and those."""
    called = _declared_waits(trace, events)
    late = start_later_by(events, *called)
    inferred = _inferred_waits(events, np.flatnonzero(late > CLOCK_NS))
    return np.append(called[0], inferred[0]), np.append(called[1], inferred[1])


def start_later_by(events: DeviceEvents, waiting: Ints, awaited: Ints) -> Ints:
    """Return how much later each event starts than its launch, stream and waits explain."""
    previous = events.previous
    begin = events.submitted + events.latency
    after = np.where(previous >= 0, events.end[previous] + events.gap, NEVER)
    begin = np.maximum(begin, after)
    np.maximum.at(begin, waiting, events.end[awaited])
    return np.where(begin > NEVER // 2, events.start - begin, 0)


def _declared_waits(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    calls = trace.runtime.where(named(trace, trace.runtime, _WAIT_EVENT.match))
    known = np.flatnonzero(events.call >= 0)
    none = np.zeros(0, dtype=np.int64)
    if not len(calls) or not len(known):
        return none, none
    thread = trace.runtime.thread[events.call[known]].astype(np.int64)
    order = np.lexsort((events.called[known], thread))
    known, thread = known[order], thread[order]
    waiting = []
    for number in np.unique(calls.thread):  # the next launch of the same thread is what waits
        own = known[thread == number]
        times = calls.start[calls.thread == number]
        times = times[times >= events.called[own[0]]] if len(own) else times[:0]
        place = np.searchsorted(events.called[own], times)
        waiting.append(own[np.unique(place[place < len(own)])])
    event = np.concatenate(waiting)
    candidate = events.last_called_before(events.called[event])
    good = (candidate >= 0) & (events.stream[event][:, None] != events.stream[candidate])
    start = events.start[event][:, None]
    good &= events.end[candidate] <= start + CLOCK_NS
    # Which streams were meant: the one used last before, and those that ended just then.
    recent = np.where(good, events.called[candidate], NEVER)
    meant = recent == recent.max(axis=1, keepdims=True)
    which, stream = np.nonzero(good & (meant | (events.end[candidate] >= start - UNEXPLAINED_NS)))
    return event[which], candidate[which, stream]


def _inferred_waits(events: DeviceEvents, late: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(events.end, kind="stable")
    place = np.searchsorted(events.end[order], events.start[late] + 1_000, side="right") - 1
    whom = order[np.maximum(place, 0)]
    good = (place >= 0) & (events.end[whom] >= events.start[late] - UNEXPLAINED_NS)
    good &= events.stream[whom] != events.stream[late]
    good &= events.start[whom] < events.start[late]
    return late[good], whom[good]
