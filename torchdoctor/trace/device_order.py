"""Device events of a window of steps in stream order, and what each waits for on the device.

1. `device_events` takes the events that the steps launched, and earlier work still in their way,
   puts them in order of stream, then start, and learns what latency and gap are usual.
2. `cross_stream_waits` finds the events that wait for one of another stream: because a call says
   so, or because nothing else explains when they start.
3. `start_later_by` tells how much of a start all of this leaves unexplained.

The rule behind it: an event starts when its launch has reached the device, and the events before it
on its stream and of other streams that it waits for have ended. What is later is a wait of unknown
cause. What calls of the host wait for is in `host_waits.py`.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from torchdoctor.schema.intervals import Ints
from torchdoctor.trace.columns import Mask, Table, Trace, named, rows_by
from torchdoctor.trace.kinds import KERNEL, MEMCPY, is_communication
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.timeline import Steps, Timeline

CLOCK_NS = 5_000  # by how much the clocks of host and device may disagree
UNEXPLAINED_NS = 20_000  # a start this much later than explained waits for something unknown
LONG_CALL_NS = 20_000  # of a launch; a usual one takes 3 to 10 us
NEVER = np.iinfo(np.int64).min // 4  # before all times, and far from an overflow when subtracted
_QUEUED_GAP_NS = 20_000  # a longer gap between queued events has a cause of its own
_USUAL_GAP_NS = 1_000  # where no event of a kind was queued
_LONGEST_LATENCY_NS = 100_000  # of a launch on an idle stream; longer waits for something else
_ENDS_AT_START_NS = 1_000  # an awaited event may seem to end so much after the start it allows
_MOST_PAIRS = 10_000_000  # of a call that waits and a stream: 80 MB for each column
_WAIT_EVENT = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")
_WAITING = re.compile(r"Synchronize|WaitEvent|Free|Malloc|Alloc|Unregister")


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

    @property
    def stream_free(self) -> Ints:
        """Return when the event before on the same stream ended; NEVER: there is none."""
        previous = self.previous
        return np.where(previous >= 0, self.end[previous], NEVER)

    def last_called_before(self, times: Ints) -> Ints:
        """Return the last event that was launched before each moment by stream, or -1."""
        last_event = np.full((len(times), len(self.stream_first) - 1), -1)
        for stream, (first, last) in enumerate(self.streams()):
            called = np.maximum.accumulate(self.called[first:last])
            place = np.searchsorted(called, times, side="left") - 1
            last_event[:, stream] = np.where(place >= 0, first + place, -1)
        return last_event


def too_many_pairs(trace: Trace) -> bool:
    """Return True where to ask of each call which streams it awaits takes too long, and memory."""
    device = trace.device
    streams = np.unique(np.stack([device["device"], device["stream"]]), axis=1).shape[1]
    calls = int(named(trace, trace.runtime, _WAITING.search).sum())
    return bool(streams * calls > _MOST_PAIRS)


def device_events(trace: Trace, timeline: Timeline, first: int, last: int) -> DeviceEvents:
    """Return the device events that these steps launched, and earlier work that delays them."""
    steps = timeline.steps
    launch = launch_rows(trace)
    inside, earlier = _chosen(trace, steps, launch, first, last)
    rows = np.flatnonzero(inside | earlier)
    stream = _stream_numbers(trace.device.where(rows))
    order = np.lexsort((trace.device.end[rows], trace.device.start[rows], stream))
    rows = rows[order]
    stream = stream[order]
    launch = launch[rows]
    earlier = earlier[rows]
    table = trace.device.where(rows)
    # What launched an earlier event does not matter any more: it is on its way.
    call = np.where(earlier, -1, launch)
    called = _times_at(trace.runtime.start, call)
    returned = _times_at(trace.runtime.end, call)
    events = DeviceEvents(
        start=table.start,
        end=table.end,
        stream=stream,
        cost=_costs(trace, table),
        name=table.name,
        call=call,
        called=called,
        submitted=called,
        step=_steps_of_launches(steps, first, call, called, returned, launch < 0),
        earlier=earlier,
        latency=np.zeros(len(table), dtype=np.int64),
        gap=np.zeros(len(table), dtype=np.int64),
        stream_first=np.searchsorted(stream, np.arange(int(stream.max(initial=-1)) + 2)),
    )
    events = _with_usual_delays(events, table["kind"], returned)
    return replace(events, submitted=_submission_times(events, returned))


def _chosen(trace: Trace, steps: Steps, launch: Ints, first: int, last: int) -> tuple[Mask, Mask]:
    """Return which device events the steps launched, and which were before and delay them."""
    device = trace.device
    begin = steps.host_start[first]
    called = _times_at(trace.runtime.start, launch)
    launched = launch >= 0
    inside = launched & (called >= begin) & (called < steps.host_end[last])
    # Without a launch an event can only be placed by its own time.
    inside |= ~launched & (device.start >= begin) & (device.start < steps.end[last])
    earlier = launched & (called < begin) & (device.end > begin)
    return inside, earlier


def _times_at(column: Ints, rows: Ints) -> Ints:
    """Return the times of a column at these rows, NEVER where the row is -1."""
    if not len(column):
        return np.full(len(rows), NEVER)
    return np.where(rows >= 0, column[rows], NEVER)


def _stream_numbers(device: Table) -> Ints:
    """Return the (device, stream) of each event as a number, from 0 on without gaps."""
    device_number = _dense(device["device"])
    return _dense(device_number * len(device) + _dense(device["stream"]))


def _dense(values: Ints) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1]).reshape(-1)


def _costs(trace: Trace, table: Table) -> Ints:
    """Return the class of the time that each device event takes; setting memory is FIXED."""
    is_kernel = table["kind"] == KERNEL
    cost = np.full(len(table), Cost.FIXED)
    cost[table["kind"] == MEMCPY] = Cost.COPY
    cost[is_kernel] = Cost.GPU
    cost[is_kernel & named(trace, table, is_communication)] = Cost.COMMUNICATION
    return cost


def _steps_of_launches(
    steps: Steps, first: int, call: Ints, called: Ints, returned: Ints, unrecorded: Mask
) -> Ints:
    """Return the step of the window that each event was launched in, or -1.

    A call that a step's end cuts belongs to no step. Nor does an event whose launch is unrecorded,
    unless the trace has no steps: then all of it stands for one.
    """
    step = np.searchsorted(steps.host_start, called, side="right") - 1
    belongs = (call >= 0) & (step >= first) & (returned <= steps.host_end[np.maximum(step, 0)])
    if not steps.known:
        belongs |= unrecorded
    return np.where(belongs, np.maximum(step - first, 0), -1)


def _with_usual_delays(events: DeviceEvents, kind: Ints, returned: Ints) -> DeviceEvents:
    """Return the events with the usual launch latency and queued gap of each kind."""
    launched = events.call >= 0
    stream_free = events.stream_free
    since_call = events.start - events.called
    since_free = events.start - stream_free
    found_idle = launched & (stream_free <= events.called)
    is_quick = returned - events.called < LONG_CALL_NS
    shows_latency = found_idle & is_quick & (since_call < _LONGEST_LATENCY_NS)
    usual_gap = (since_free > -CLOCK_NS) & (since_free < _QUEUED_GAP_NS)
    latencies = np.zeros(len(events), dtype=np.int64)
    gaps = np.zeros(len(events), dtype=np.int64)
    for number in np.unique(kind):
        of_kind = kind == number
        latency = _usual_latency(since_call[of_kind & shows_latency])
        was_queued = launched & (events.called + latency < stream_free)
        latencies[of_kind] = latency
        gaps[of_kind] = _usual_gap(since_free[of_kind & was_queued & usual_gap])
    # Events that overlap on their stream do not wait for the end of the one before.
    overlaps = (events.previous >= 0) & (since_free < -(CLOCK_NS // 2))
    gaps[overlaps] = since_free[overlaps]
    return replace(events, latency=latencies, gap=gaps)


def _usual_latency(latencies: Ints) -> int:
    """Return the lower quartile: above it are launches that waited for something else as well."""
    if not len(latencies):
        return CLOCK_NS
    return int(np.percentile(latencies, 25, method="lower"))


def _usual_gap(gaps: Ints) -> int:
    if not len(gaps):
        return _USUAL_GAP_NS
    return round(float(gaps.mean()))


def _submission_times(events: DeviceEvents, returned: Ints) -> Ints:
    """Return when each launch reached the queue: where its call began, unless that took long.

    A long call submits somewhere inside: on an idle stream the start tells where.
    """
    launched = events.call >= 0
    is_long = launched & (returned - events.called >= LONG_CALL_NS)
    found_idle = events.stream_free <= events.called + CLOCK_NS
    latest = np.maximum(returned, events.called)
    shown_by_start = np.clip(events.start - events.latency, events.called, latest)
    submitted = np.where(is_long & found_idle, shown_by_start, events.called)
    return np.where(launched, submitted[_first_of_call(events)], submitted)


def _first_of_call(events: DeviceEvents) -> Ints:
    """Return for each event the first that its call launched; the launch of a graph has many."""
    by_start = np.argsort(events.start, kind="stable")
    _, first, group = np.unique(events.call[by_start], return_index=True, return_inverse=True)
    first_of_call = np.empty(len(events), dtype=np.int64)
    first_of_call[by_start] = by_start[first][group.reshape(-1)]
    return first_of_call


def cross_stream_waits(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    """Return the events that wait for one of another stream, by calls or by times, and those."""
    declared_waiting, declared_awaited = _declared_waits(trace, events)
    late = start_later_by(events, declared_waiting, declared_awaited)
    inferred_waiting, inferred_awaited = _inferred_waits(events, np.flatnonzero(late > CLOCK_NS))
    waiting = np.append(declared_waiting, inferred_waiting)
    awaited = np.append(declared_awaited, inferred_awaited)
    return waiting, awaited


def start_later_by(events: DeviceEvents, waiting: Ints, awaited: Ints) -> Ints:
    """Return how much later each event starts than its launch, stream and waits explain.

    0 for an event of which none of these is known.
    """
    arrived = events.submitted + events.latency
    stream_ready = np.where(events.previous >= 0, events.stream_free + events.gap, NEVER)
    explained = np.maximum(arrived, stream_ready)
    np.maximum.at(explained, waiting, events.end[awaited])
    return np.where(explained > NEVER // 2, events.start - explained, 0)


def _declared_waits(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    """Return the events that wait because of a cudaStreamWaitEvent, and those of other streams.

    Which stream is awaited is not recorded. It was meant if it was used last before, or if it ended
    just when the waiting event began.
    """
    event = _launched_after_waits(trace, events)
    if not len(event):
        return event, event
    start = events.start[event][:, None]
    candidate = events.last_called_before(events.called[event])  # (event, stream)
    possible = candidate >= 0
    possible &= events.stream[event][:, None] != events.stream[candidate]
    possible &= events.end[candidate] <= start + CLOCK_NS
    called = np.where(possible, events.called[candidate], NEVER)
    used_last = called == called.max(axis=1, keepdims=True)
    ended_just_then = events.end[candidate] >= start - UNEXPLAINED_NS
    row, stream = np.nonzero(possible & (used_last | ended_just_then))
    return event[row], candidate[row, stream]


def _launched_after_waits(trace: Trace, events: DeviceEvents) -> Ints:
    """Return the events that a thread launched next after a call which lets a stream wait."""
    calls = trace.runtime.where(named(trace, trace.runtime, _WAIT_EVENT.match))
    launched = np.flatnonzero(events.call >= 0)
    thread = trace.runtime.thread[events.call[launched]].astype(np.int64)
    order = np.lexsort((events.called[launched], thread))
    launched = launched[order]
    launches_of = rows_by(thread[order])
    waiting = [np.zeros(0, dtype=np.int64)]
    for number, rows in rows_by(calls.thread).items():
        if number not in launches_of:
            continue
        launches = launched[launches_of[number]]
        called = events.called[launches]
        waits = calls.start[rows]
        waits = waits[waits >= called[0]]  # the next launch of one before may be outside the window
        following = np.searchsorted(called, waits)
        waiting.append(launches[np.unique(following[following < len(launches)])])
    return np.concatenate(waiting)


def _inferred_waits(events: DeviceEvents, late: Ints) -> tuple[Ints, Ints]:
    """Return which of the `late` events start just when one of another stream has ended."""
    by_end = np.argsort(events.end, kind="stable")
    start = events.start[late]
    place = np.searchsorted(events.end[by_end], start + _ENDS_AT_START_NS, side="right") - 1
    awaited = by_end[np.maximum(place, 0)]
    waits = place >= 0
    waits &= events.end[awaited] >= start - UNEXPLAINED_NS
    waits &= events.stream[awaited] != events.stream[late]
    waits &= events.start[awaited] < start
    return late[waits], awaited[waits]
