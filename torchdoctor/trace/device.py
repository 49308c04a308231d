"""What the device did in the steps: kernels, copies, and the driver calls that hold the host."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.schema import KernelTime, RuntimeCall
from torchdoctor.schema.intervals import Intervals, exposed_in_order, intersect, union
from torchdoctor.trace import kinds
from torchdoctor.trace.columns import Ints, Mask, Table, Trace, named, once, rows_by
from torchdoctor.trace.loop_marks import is_step
from torchdoctor.trace.nesting import innermost, launch_rows, operator_nesting
from torchdoctor.trace.timeline import ASKS, Steps, Timeline, begins_context

SHORT_KERNEL_NS = 10_000
_LISTED = 8
_LETTERS = 60
# What a copy call costs that only queues the copy: about 10 us with the profiler's own share.
COPY_LAUNCH_NS = 20_000
# "Memcpy HtoD (Pageable -> Device)", and of ROCm's older versions "CopyHostToDevice".
_SIDES = re.compile(r"\((\w+) ?-> ?(\w+)\)|Copy(Host|Device)To(Host|Device)")
# Memory of the device is asked of the driver, or given back to it: what a warm allocator avoids.
_ALLOCATION = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?!.*(?:Host|Async))|cuMem(?:Create|Map|Unmap|Release|SetAccess)"
)
_GIVES_BACK = re.compile(r"Free|MemUnmap|MemRelease")
_WAITS = re.compile(r"(?:cuda|hip|cu)(?:\w*Synchronize|Memcpy|Malloc|Free|Mem[A-Z])")
_AS_WRITTEN = {"aten::_local_scalar_dense": "aten::item"}  # what the user's code says
_EMPTY = re.compile(r"aten::(?:_?empty|resize_)")  # operators that get a tensor its memory
_LEAST_BYTES = 2 << 20  # of what PyTorch's caching allocator asks of the driver
_LOOKED_AT = 24  # calls within each other count once, which changes their order
_PROOF = 10
_NEARLY_EACH = 0.5


def summarise_device(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: kernels, synchronisation and tensor cores."""
    steps = timeline.steps
    count = len(timeline.steps)
    in_steps = steps.index(trace.device.start) >= 0
    is_kernel = in_steps & (trace.device["kind"] == kinds.KERNEL)
    kernels = trace.device.where(is_kernel)
    length = kernels.end - kernels.start
    waits, reads = _waits(trace)
    waiting = np.append(*(steps.inside(t) for t in (trace.runtime.where(waits), reads)))
    return {
        "kernels_per_step": len(kernels) / count,
        "graph_kernels_per_step": _of_graphs(trace, is_kernel) / count,
        "short_kernels_share": float((length < SHORT_KERNEL_NS).mean()) if len(length) else None,
        "kernel_median_us": float(np.median(length)) / 1000 if len(length) else None,
        "gpu_busy_share": _busy_share(trace.device, steps),
        "kernels": _longest_kernels(trace, is_kernel, count),
        "after_sync_s": _idle_after_waits(trace, steps) / count / 1e9,
        "sync_s": float(waiting.sum()) / count / 1e9,
        "syncs_per_step": int((waiting > 0).sum()) / count,
    }


def _waits(trace: Trace) -> tuple[Mask, Table]:
    """Return which driver calls wait for the device, and reads of values that show no such call."""
    waits = named(trace, trace.runtime, kinds.SYNC_CALL.match)
    reads = trace.operators.where(named(trace, trace.operators, kinds.READS_VALUE.__eq__))
    begins = np.sort(trace.runtime.start[waits])
    called = np.searchsorted(begins, reads.end) > np.searchsorted(begins, reads.start)
    return waits, reads.where(~called)


def _of_graphs(trace: Trace, kernels: Mask) -> int:
    """Return how many kernels a captured graph launched."""
    graphs = np.append(named(trace, trace.runtime, lambda name: "GraphLaunch" in name), False)
    return int(graphs[launch_rows(trace)[kernels]].sum())


def _idle_after_waits(trace: Trace, steps: Steps) -> int:
    """Return the ns that the device idles after waits of the host, by which it would be ahead."""
    runtime = trace.runtime
    device = trace.device
    waits, reads = _waits(trace)
    copies = np.flatnonzero(device["kind"] == kinds.MEMCPY)
    to_host = copies[copy_sides(trace, device.where(copies))[1] != "device"]
    call = launch_rows(trace)[to_host]
    waits[call[call >= 0]] = True
    start = np.append(runtime.start[waits], reads.start)
    end = np.append(runtime.end[waits], reads.end)
    order = np.argsort(start, kind="stable")
    order = order[steps.index(start[order]) >= 0]
    start, end = start[order], end[order]
    begins = np.append(np.sort(device.start), np.iinfo(np.int64).max)
    following = np.minimum(
        begins[np.searchsorted(begins, end)], steps.end[np.maximum(steps.index(start), 0)]
    )
    idle = np.where(device.spans().contain(end), 0, np.maximum(following - end, 0))
    idle[:-1][following[:-1] == following[1:]] = 0  # after the last of several waits alone
    ahead = np.cumsum(end - start - idle)
    return int(idle.sum() + ahead.min(initial=0))


def _longest_kernels(trace: Trace, rows: Mask, steps: int) -> list[KernelTime]:
    rows = rows & ~named(trace, trace.device, kinds.is_communication)
    names = trace.device.name[rows]
    each = np.bincount(names)
    spent = np.bincount(names, weights=device_time(trace)[rows])
    calls: Counter[str] = Counter()
    took: Counter[str] = Counter()
    for number in np.flatnonzero(each).tolist():
        name = kinds.short_name(trace.names[number])[:_LETTERS]  # of one family: together
        calls[name] += int(each[number])
        took[name] += int(spent[number])
    return [
        KernelTime(name=name, calls_per_step=calls[name] / steps, device_s=ns / steps / 1e9)
        for name, ns in took.most_common(_LISTED)
    ]


@once
def device_time(trace: Trace) -> Ints:
    """Return what each device event adds to the time in which any runs; computing kernels first."""
    device = trace.device
    computing = (device["kind"] == kinds.KERNEL) & ~named(trace, device, kinds.is_communication)
    added = np.zeros(len(device), dtype=np.int64)
    added[computing] = exposed_in_order(device.start[computing], device.end[computing])
    start = device.start[~computing]
    end = device.end[~computing]
    under = device.spans(computing).covered(start, end)
    added[~computing] = np.minimum(exposed_in_order(start, end), end - start - under)
    return added


def _busy_share(device: Table, steps: Steps) -> float | None:
    """Return the share of the steps in which a kernel runs, mean over the devices."""
    if not steps.total:
        return None
    kernels = device.where(device["kind"] == kinds.KERNEL)
    busy = [_covered(kernels.where(rows), steps) for rows in rows_by(kernels["device"]).values()]
    return sum(busy) / len(np.unique(device["device"])) / steps.total


def summarise_copies(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: copies, and how long they block the host."""
    steps, count = timeline.steps, len(timeline.steps)
    inside = (steps.index(trace.device.start) >= 0) & (trace.device["kind"] == kinds.MEMCPY)
    copies, call = trace.device.where(inside), launch_rows(trace)[inside]
    sources, targets = copy_sides(trace, copies)
    to_device = (sources != "device") & (targets == "device")
    to_host = (sources == "device") & (targets != "device")
    pageable = to_device & (sources == "pageable")
    runtime = trace.runtime
    # How long each call holds the host in a copy, beyond queueing it, within the steps.
    lasting = np.minimum(runtime.start + COPY_LAUNCH_NS, runtime.end)
    held_ns = steps.inside(replace(runtime, start=lasting))
    held_ns *= named(trace, runtime, kinds.COPY_CALL.match)
    held = union(lasting[held_ns > 0], runtime.end[held_ns > 0])
    exposed = intersect(held, timeline.exposed_intervals["runtime"])

    def wait_s(rows: Mask) -> float:
        calls = np.unique(call[rows & (call >= 0)])
        return float(held_ns[calls].sum()) / count / 1e9

    def bytes_of(rows: Mask) -> int | None:
        sizes = copies["bytes"][rows]
        unknown = len(sizes) > 0 and bool((sizes < 0).all())
        return None if unknown else int(sizes[sizes >= 0].sum()) // count

    return {
        "h2d_bytes": bytes_of(to_device),
        "d2h_bytes": bytes_of(to_host),
        "pageable_copies": float(pageable.sum()) / count,
        "pageable_wait_s": wait_s(pageable),
        "d2h_copies": float(to_host.sum()) / count,
        "d2h_wait_s": wait_s(to_host),
        "blocking_copy_s": float(held_ns.sum()) / count / 1e9,
        "blocking_copy_range": _range_of(trace, held_ns),
        "blocking_copy_exposed_s": exposed.total / count / 1e9,
    }


def _range_of(trace: Trace, held_ns: Ints) -> str | None:
    """Return the shortest of the program's ranges that most of the calls' time lies in."""
    runtime = trace.runtime
    marks = trace.annotations
    marks = marks.where(~named(trace, marks, is_step))
    within = np.zeros(len(marks))
    holding = np.flatnonzero(held_ns > 0)
    calls_of = rows_by(runtime.thread[holding])
    for thread, rows in rows_by(marks.thread).items():
        calls = holding[calls_of.get(thread, [])]
        calls = calls[np.argsort(runtime.start[calls])]
        until = np.append(0, np.cumsum(held_ns[calls]))
        begins = runtime.start[calls]
        first, last = (np.searchsorted(begins, times[rows]) for times in (marks.start, marks.end))
        within[rows] = until[last] - until[first]
    held = np.bincount(marks.name, within)
    lasting = np.bincount(marks.name, marks.end - marks.start)
    most = np.flatnonzero((held > 0) & (held >= held_ns.sum() / 2))
    return trace.names[most[lasting[most].argmin()]] if len(most) else None


def copy_sides(trace: Trace, copies: Table) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Return source and target memory of every copy: "pageable", "pinned", "device" or ""."""
    names, row = np.unique(copies.name, return_inverse=True)
    sides = []
    for number in names.tolist():
        match = _SIDES.search(trace.names[number])
        sides.append([side.lower() for side in match.groups() if side] if match else ["", ""])
    table = np.array(sides or [["", ""]])[row]
    return table[:, 0], table[:, 1]


_ASKED, _OTHER = 1, 0  # what came before a call that frees


def runtime_calls(trace: Trace, timeline: Timeline) -> list[RuntimeCall]:
    """Return the calls that take most host time in the steps, at most eight."""
    steps = timeline.steps
    table = trace.runtime
    if not len(table):
        return []
    rows = table.where(steps.inside(table) > 0)
    # Who launches a kernel is told by the operators; who waits is what is asked here.
    waits = named(trace, rows, _WAITS.match)
    inside = innermost(trace.operators, operator_nesting(trace), rows.thread, rows.start)
    names = len(trace.names)
    operators = np.append(trace.operators.name, names).astype(np.int64)  # -1: the last, no operator
    operator = operators[np.where(waits, inside, -1)]
    key, group = np.unique(rows.name.astype(np.int64) * (names + 1) + operator, return_inverse=True)
    calls = np.bincount(group, minlength=len(key))
    spent = np.bincount(group, weights=rows.end - rows.start, minlength=len(key))
    listed = []
    for row in np.argsort(-spent, kind="stable")[:_LOOKED_AT]:
        name, under = divmod(int(key[row]), names + 1)
        inside_name = trace.names[under] if under < names else None
        equal_calls = rows.where(group.reshape(-1) == row)
        listed.append(
            RuntimeCall(
                name=trace.names[name],
                operator=_AS_WRITTEN.get(inside_name or "", inside_name),
                calls_per_step=float(calls[row]) / len(steps),
                host_s=_covered_by_threads(equal_calls, steps) / len(steps) / 1e9,
                covered_s=_covered(equal_calls, steps) / len(steps) / 1e9,
                threads=len(np.unique(equal_calls.thread)),
            )
        )
    return sorted(listed, key=lambda call: -call.host_s)[:_LISTED]


def _covered(table: Table, steps: Steps) -> float:
    """Return the nanoseconds of the steps in which one of these is under way."""
    return float(intersect(table.spans(), Intervals(steps.start, steps.end)).total)


def _covered_by_threads(table: Table, steps: Steps) -> float:
    """Return the sum over the threads of the time that each spends in these calls."""
    moments = np.unique(np.concatenate([table.start, table.end]))
    size = len(moments) + 1
    of_thread = table.thread.astype(np.int64) * size  # so that no time of two threads touches
    starts, ends = (np.searchsorted(moments, times) for times in (table.start, table.end))
    spans = union(of_thread + starts, of_thread + ends)
    begun = moments[spans.start % size]
    ended = moments[spans.end % size]
    return float(Intervals(steps.start, steps.end).covered(begun, ended).sum())


def allocates(trace: Trace) -> Mask:
    """Return which driver calls ask for memory of the device or give it back, once it is warm."""
    return named(trace, trace.runtime, _ALLOCATION.match) & ~begins_context(trace)


def allocation(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: memory asked of the driver, but to make the context."""
    steps = timeline.steps
    table = trace.runtime
    if not len(table):
        return {}
    lasting = steps.inside(table)
    kept = (lasting > 0) & allocates(trace)
    rows, lasting = table.where(kept), lasting[kept]
    inside = innermost(trace.operators, operator_nesting(trace), rows.thread, rows.start)
    gives_back = named(trace, rows, _GIVES_BACK.search)
    before, which = _call_before(trace, rows)
    asks = ~gives_back
    # Memory was full: the driver was asked, nothing was launched, memory given back, asked again.
    last_asked = np.full(len(trace.operators) + 1, np.iinfo(np.int64).min)  # -1: no operator
    np.maximum.at(last_asked, inside[asks], rows.start[asks])
    retried = gives_back & (inside >= 0) & (rows.start < last_asked[inside]) & (before == _ASKED)
    apart = len(np.unique(which[gives_back & (before == _OTHER)]))
    uncached = _uncached(trace, rows, inside, asks, apart)
    return {
        "allocations_per_step": len(rows) / len(steps),
        "allocation_s": float(lasting.sum()) / len(steps) / 1e9,
        "allocator_retries_per_step": len(np.unique(inside[retried])) / len(steps),
        "releases_per_step": int((gives_back & (inside < 0)).sum()) / len(steps),
        "uncached_per_step": uncached / len(steps),
    }


def _call_before(trace: Trace, rows: Table) -> tuple[Ints, Ints]:
    """Return what each call's thread last did before it (launch or ask for memory), and its row."""
    runtime = trace.runtime
    kind = np.full(len(trace.names), -1)
    for number in np.unique(runtime.name).tolist():
        name = trace.names[number]
        kind[number] = _ASKED if ASKS.match(name) else _OTHER if "Launch" in name else -1
    calls_of_kind = runtime.where(kind[runtime.name] >= 0)
    order = np.lexsort((calls_of_kind.start, calls_of_kind.thread))
    span = int(max(runtime.end.max(initial=0), 0)) + 1
    key = calls_of_kind.thread[order].astype(np.int64) * span + calls_of_kind.start[order]
    place = np.searchsorted(key, rows.thread.astype(np.int64) * span + rows.start) - 1
    if not len(order):
        return np.full(len(rows), -1), np.full(len(rows), -1)
    last = order[np.maximum(place, 0)]
    same = (place >= 0) & (calls_of_kind.thread[last] == rows.thread)
    return np.where(same, kind[calls_of_kind.name[last]], -1), last


def _uncached(trace: Trace, rows: Table, inside: Ints, asks: Mask, apart: int) -> int:
    """Return the calls for a tensor's memory that PyTorch's caching allocator would not make."""
    empty = named(trace, trace.operators, _EMPTY.match)
    of_tensor = asks & (inside >= 0) & np.append(empty, False)[inside]
    small = of_tensor & (rows["bytes"] >= 0) & (rows["bytes"] < _LEAST_BYTES)
    if small.sum() >= _PROOF:
        return int(small.sum())
    each = of_tensor.sum() >= max(_PROOF, _NEARLY_EACH * empty.sum())
    return int(of_tensor.sum()) if each and apart >= _NEARLY_EACH * of_tensor.sum() else 0
