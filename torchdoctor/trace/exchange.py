"""The gradients of a trace and the collectives that exchange them -> `records.GradientExchange`."""

import re
from dataclasses import dataclass

import numpy as np

from torchdoctor.schema.traced import CollectiveKind, GradientExchange
from torchdoctor.trace.columns import Ints, Mask, Trace, named
from torchdoctor.trace.foreign import dictionary, whole_number
from torchdoctor.trace.kinds import ACCUMULATED, KERNEL, is_communication
from torchdoctor.trace.nesting import innermost, launch_rows, nest
from torchdoctor.trace.timeline import Steps, Timeline

_KINDS = {
    "all-reduce": re.compile(r"all_?reduce", re.IGNORECASE),
    "reduce-scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all-gather": re.compile(r"all_?gather", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "all-to-all": re.compile(r"all_?to_?all|ep::.*(?:dispatch|combine)", re.IGNORECASE),
    "send and receive": re.compile(r"send|recv", re.IGNORECASE),
}
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|^" + ACCUMULATED)
_LARGE_BYTES = 1 << 20  # of a collective whose time is the links' and not the latency
_NEARLY_ALL = 0.99  # of the gradients must have a size


@dataclass(frozen=True)
class CollectiveCalls:
    """Those that began in the steps, in order of time; `payload` is -1 where it is not known."""

    row: Ints  # of the device's events
    step: Ints
    length_ns: Ints
    kind: list[str]
    payload: Ints

    def of(self, *kinds: str) -> Mask:
        """Return which are of these kinds."""
        return np.array([kind in kinds for kind in self.kind], dtype=bool)

    def bytes(self, rows: Mask) -> float:
        """Return what these exchange, as far as it is known."""
        return float(np.maximum(self.payload[rows], 0).sum())


def gradient_exchange(trace: Trace, timeline: Timeline) -> GradientExchange | None:
    """Return gradients and their exchange; None without device, known steps or a backward pass."""
    steps = timeline.steps
    if not trace.has_device or not steps.known or not steps.total:
        return None
    backward_s = _backward_s(trace, steps)
    if backward_s is None:
        return None
    exchanged = collective_calls(trace, steps)
    reduced = exchanged.of("all-reduce")
    scattered = exchanged.of("reduce-scatter")
    sharded = exchanged.bytes(scattered) > exchanged.bytes(reduced)
    kind, rows = ("reduce-scatter", scattered) if sharded else ("all-reduce", reduced)
    known_from: str | None = kind
    total = exchanged.bytes(rows)
    if not total or (exchanged.payload[rows] < 0).any():
        added = trace.operators.where(
            named(trace, trace.operators, lambda name: name == ACCUMULATED)
        )
        payload = added["payload"][steps.host.index(added.start) >= 0]
        has_payloads = len(payload) > 0 and (payload >= 0).mean() >= _NEARLY_ALL
        total = float(np.maximum(payload, 0).sum()) if has_payloads else 0.0
        known_from = "backward" if total else None
    exchanging = exchanged.of(kind, "all-gather") if sharded else rows
    other = ~exchanging & ~exchanged.of("broadcast")
    ranks = whole_number(dictionary(trace.metadata.get("distributedInfo")).get("world_size"))
    mean, best = _bandwidths(exchanged, rows, ranks or 1, kind)
    count = len(steps)
    last = {int(exchanged.step[row]): row for row in np.flatnonzero(rows)}
    sizes = [int(exchanged.payload[row]) for row in last.values()]
    return GradientExchange(
        ranks=ranks,
        known_from=known_from,
        gradient_bytes=total / count if total else None,
        last_bytes=sum(sizes) / len(sizes) if sizes and min(sizes) >= 0 else None,
        backward_s=backward_s,
        exchange_s=exchanged.length_ns[exchanging].sum() / count / 1e9 if rows.any() else None,
        other_s=exchanged.length_ns[other].sum() / count / 1e9,
        mean_bytes_per_s=mean,
        best_bytes_per_s=best,
    )


def _backward_s(trace: Trace, steps: Steps) -> float | None:
    """Return the time from the first to the last kernel of the backward pass; None: no kernel."""
    table = trace.operators
    runtime = trace.runtime
    device = trace.device
    table = table.where(named(trace, table, _BACKWARD.search))
    within = innermost(table, nest(table), runtime.thread, runtime.start) >= 0
    launch = launch_rows(trace)
    if not within.any() or not len(launch):
        return None
    computes = (device["kind"] == KERNEL) & ~named(trace, device, is_communication)
    rows = np.flatnonzero(computes & (launch >= 0) & within[launch])
    index = steps.index(device.start[rows])
    rows, index = rows[index >= 0], index[index >= 0]
    first = np.full(len(steps), np.iinfo(np.int64).max)
    last = np.zeros(len(steps), dtype=np.int64)
    np.minimum.at(first, index, device.start[rows])
    np.maximum.at(last, index, device.end[rows])
    spans = (last - first)[last > 0]
    return float(spans.sum()) / len(steps) / 1e9 if len(spans) else None


def collective_kinds(trace: Trace, timeline: Timeline) -> list[CollectiveKind]:
    """Return what each kind of collective costs and reaches, the costliest first."""
    calls = collective_calls(trace, timeline.steps)
    count = len(timeline.steps)
    ranks = whole_number(dictionary(trace.metadata.get("distributedInfo")).get("world_size"))
    kinds = []
    for kind in sorted(set(calls.kind)):
        rows = calls.of(kind)
        kinds.append(
            CollectiveKind(
                kind=kind,
                calls_per_step=int(rows.sum()) / count,
                device_s=calls.length_ns[rows].sum() / count / 1e9,
                bytes_per_step=calls.bytes(rows) / count or None,
                best_bytes_per_s=_bandwidths(calls, rows, ranks or 1, kind)[1],
            )
        )
    return sorted(kinds, key=lambda kind: -kind.device_s)


def collective_calls(trace: Trace, steps: Steps) -> CollectiveCalls:
    """Return the collective kernels; older ones have name and size in the host's range alone."""
    device = trace.device
    rows = np.flatnonzero((device["kind"] == KERNEL) & named(trace, device, is_communication))
    rows = rows[np.argsort(device.start[rows], kind="stable")]
    index = steps.index(device.start[rows])
    rows, index = rows[index >= 0], index[index >= 0]
    ranges = trace.annotations.where(named(trace, trace.annotations, is_communication))
    launch = launch_rows(trace)[rows] if len(rows) else rows
    thread, start = (
        np.append(column, -1)[launch] for column in (trace.runtime.thread, trace.runtime.start)
    )
    around = innermost(ranges, nest(ranges), thread, start)
    payload = device["payload"][rows].copy()
    kind = []
    for at, (row, call) in enumerate(zip(rows.tolist(), around.tolist(), strict=True)):
        names = [trace.names[device.name[row]]]
        if call >= 0:
            names.insert(0, trace.names[ranges.name[call]])
            if payload[at] < 0:
                payload[at] = ranges["payload"][call]
        kind.append(_kind(names))
    return CollectiveCalls(rows, index, device.end[rows] - device.start[rows], kind, payload)


def _kind(names: list[str]) -> str:
    """Return the kind by the host's range first: a kernel may have another collective's name."""
    for name in names:
        kinds = [kind for kind, pattern in _KINDS.items() if pattern.search(name)]
        if kinds or name.startswith(("nccl:", "rccl:")):
            return kinds[0] if kinds else "other"
    return "other"


def _bandwidths(
    exchanged: CollectiveCalls, rows: Mask, ranks: int, kind: str
) -> tuple[float | None, float | None]:
    """Return the bus bandwidth of all together, and of the fastest large one; None: not known."""
    large = rows & (exchanged.payload >= _LARGE_BYTES) & (exchanged.length_ns > 0)
    if ranks < 2 or not large.any():
        return None, None
    passes = (2 if kind == "all-reduce" else 1) * (ranks - 1) / ranks
    carried = passes * exchanged.payload[large]
    lengths = exchanged.length_ns[large] / 1e9
    return float(carried.sum() / lengths.sum()), float((carried / lengths).max())
