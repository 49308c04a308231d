"""Which events of a trace a fix may work on: the parts that `FixSpec.touches` asks for by name.

A part is a set of events on the host and on the device. The time in which any of them runs is the
most that a step can lose with them: whatever the step waits for at a moment, it waits for one of
them then, or it does not get shorter there. What else the device does remains in any case.
"""

import re
from dataclasses import dataclass

import msgspec
import numpy as np

from torchdoctor.schema import TracedPart
from torchdoctor.schema.intervals import EMPTY, Intervals, join, subtract, union
from torchdoctor.trace import kinds
from torchdoctor.trace.columns import Ints, Mask, Table, Trace, named, once
from torchdoctor.trace.device import allocates, copy_sides, device_time
from torchdoctor.trace.nesting import innermost, launch_rows, nest, operator_nesting
from torchdoctor.trace.operators import LARGE_OPERATOR_NS, LONG_IDLE_NS, OPTIMIZER, HostWork
from torchdoctor.trace.products import float32_matrix_kernels
from torchdoctor.trace.timeline import Timeline

_CONVOLUTION = re.compile(r"(?:aten::|cudnn|miopen)\w*conv(?!ert)")
_PRODUCT = re.compile(
    r"aten::.*(?:conv(?!ert)|mm(?:_|$)|::_?(?:mv|dot|linear|matmul|einsum)|attention|lstm|gru"
    r"|mkldnn_(?:rnn|linear))"
)
_RANDOM = re.compile(
    r"aten::_?(?:rand|normal|uniform|bernoulli|exponential|multinomial|cauchy|geometric|poisson)"
)
# Operators of torch: what else runs is the program's own.
_TORCH = re.compile(r"aten::|torch::|autograd::|\w+Backward\d*$")
# What is written to zero, and gradients that are added to it.
_ZEROED = re.compile(rf"aten::(?:_foreach_)?zero_$|{kinds.ACCUMULATED}$")
_MOVES = re.compile(r"aten::(?:to|_to_copy|copy_|_?empty|resize_|item|_local_scalar)")
_FEW_SIDES = 1  # of an image longer than one, so that it is a line


@dataclass(frozen=True)
class _Work:
    """The events of a trace, sorted once for all parts."""

    trace: Trace
    timeline: Timeline
    host: HostWork
    inside: Mask  # device events in the steps
    call: Ints  # row of the driver call that launched each of them, -1: none
    operator: Ints  # row of the operator around that call, -1: none

    @property
    def kernels(self) -> Mask:
        """Return which device events compute in the steps."""
        device = self.trace.device
        computing: Mask = self.inside & (device["kind"] == kinds.KERNEL)
        computing &= ~named(self.trace, device, kinds.is_communication)
        return computing

    def launched_in(self, spans: Table) -> Mask:
        """Return which device events of the steps were launched in ranges of their thread."""
        runtime = self.trace.runtime
        row = np.flatnonzero(self.inside & (self.call >= 0))
        called = self.call[row]
        around = innermost(spans, nest(spans), runtime.thread[called], runtime.start[called])
        launched = np.zeros(len(self.inside), dtype=bool)
        launched[row] = around >= 0
        return launched

    def part(
        self, rows: Mask | None, host: Intervals = EMPTY, remains_ns: float = 0.0
    ) -> TracedPart:
        """Return the part of these device events and these times on the host."""
        steps = self.timeline.steps
        device = self.trace.device
        count = len(steps) * 1e9

        def in_steps(intervals: Intervals) -> float:
            return float(intervals.covered(steps.start, steps.end).sum()) / count

        if rows is None:
            rows = np.zeros(len(device), dtype=bool)
        part_spans = device.spans(rows)
        beside = device.spans(~rows)
        sizes = device["bytes"][rows & (device["kind"] == kinds.MEMCPY)]
        known_sizes = sizes[sizes >= 0]
        return TracedPart(
            seconds=in_steps(join(part_spans, host)),
            device_s=in_steps(part_spans),
            beside_s=in_steps(beside),
            remains_s=remains_ns / count,
            bytes=int(known_sizes.sum()) // len(steps) if len(known_sizes) else None,
        )


def traced_parts(trace: Trace, timeline: Timeline, host: HostWork) -> dict[str, TracedPart]:
    """Return the parts that have any time in the steps, by name."""
    if not timeline.steps.total:
        return {}
    call = launch_rows(trace)
    operator = np.full(len(call), -1)
    rows = np.flatnonzero(call >= 0)
    runtime = trace.runtime
    operator[rows] = innermost(
        trace.operators,
        operator_nesting(trace),
        runtime.thread[call[rows]],
        runtime.start[call[rows]],
    )
    inside = timeline.steps.index(trace.device.start) >= 0
    work = _Work(trace, timeline, host, inside, call, operator)
    parts = {"loader": work.part(None, timeline.branches["data_loader"])}
    parts |= _on_device(work) if trace.has_device else _on_host(work)
    return {name: part for name, part in parts.items() if part.seconds > 0}


def _on_device(work: _Work) -> dict[str, TracedPart]:
    trace = work.trace
    kernels = work.kernels
    convolutions, flat = _convolutions(trace)
    in_flat = work.launched_in(flat)
    in_images = work.launched_in(convolutions) & ~in_flat
    # Of what no operator of the trace launched (graphs, lost events), names tell.
    unknown = kernels & (work.operator < 0)
    convolving = named(trace, trace.device, kinds.convolves) & unknown
    products = kernels & named(trace, trace.device, kinds.is_matrix_work)
    float32 = kernels & float32_matrix_kernels(trace)
    fused, remains_ns = _fusible(work, kernels & ~products)
    optimizer = _marks(trace, OPTIMIZER[:1])
    zeroing = _marks(trace, OPTIMIZER[1:])
    zeros = _outermost(trace, work.host.table, _ZEROED)
    random = _random_on_host(work)
    memset = work.inside & (trace.device["kind"] == kinds.MEMSET)
    double = products & named(
        trace, trace.device, lambda name: "float64" in kinds.kernel_kinds(name)
    )
    return {
        "convolutions": work.part(kernels & (in_images | convolving)),
        "flat convolutions": work.part(kernels & in_flat),
        "products": work.part(products),
        "float32 products": work.part(float32),
        "float64 products": work.part(double),
        "elementwise": work.part(fused, EMPTY, remains_ns),
        "model": work.part(fused, subtract(_dispatch(work), random), remains_ns),
        "optimizer": work.part(work.launched_in(optimizer), optimizer.spans()),
        "zeroing": work.part(
            work.launched_in(zeroing) | work.launched_in(zeros) | memset,
            join(zeroing.spans(), zeros.spans()),
        ),
        "launches": work.part(None, _launches(work)),
        "biases of convolutions": work.part(kernels & _biases(work, in_images | in_flat)),
        "allocation": work.part(None, trace.runtime.spans(allocates(trace))),
        "random numbers": work.part(None, random),
        **_copies(work),
    }


def _on_host(work: _Work) -> dict[str, TracedPart]:
    trace = work.trace
    table = work.host.table
    convolutions, flat = _convolutions(trace)
    random = _outermost(trace, table, _RANDOM)
    products = _outermost(trace, table, _PRODUCT)
    optimizer = _marks(trace, OPTIMIZER[:1])
    zeros = _outermost(trace, table, _ZEROED)
    # An operator around a collective waits for other ranks there.
    exchange = work.timeline.branches["communication"]
    fused = subtract(_fusible_on_host(work), exchange)
    called = join(products.spans(), random.spans(), exchange)
    return {
        "convolutions": work.part(None, subtract(convolutions.spans(), flat.spans())),
        "flat convolutions": work.part(None, flat.spans()),
        "products": work.part(None, products.spans()),
        "random numbers": work.part(None, random.spans()),
        "elementwise": work.part(None, fused),
        "model": work.part(None, subtract(join(fused, _dispatch(work)), called)),
        "optimizer": work.part(None, optimizer.spans()),
        "zeroing": work.part(None, join(_marks(trace, OPTIMIZER[1:]).spans(), zeros.spans())),
    }


def _outermost(trace: Trace, table: Table, wanted: re.Pattern[str]) -> Table:
    """Return the operators of such a name that no other one of such a name calls."""
    operators = table.where(named(trace, table, wanted.match))
    return operators.where(nest(operators).parent < 0)


@once
def _convolutions(trace: Trace) -> tuple[Table, Table]:
    """Return the outermost convolutions, and those of them that run along one side alone."""
    table = _outermost(trace, trace.operators, _CONVOLUTION)
    names = table.name.tolist()
    flat_sizes = {}
    for number in np.unique(table["shapes"]).tolist():
        flat_sizes[number] = number >= 0 and _is_flat(trace.shapes[number])
    flat = [
        "conv1d" in trace.names[name] or "conv_transpose1d" in trace.names[name] or flat_sizes[size]
        for name, size in zip(names, table["shapes"].tolist(), strict=True)
    ]
    return table, table.where(np.array(flat, dtype=bool))


def _is_flat(text: bytes) -> bool:
    """Return True if sizes of a convolution's inputs have one side that is longer than one."""
    try:
        shapes = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    shapes = shapes if isinstance(shapes, list) else []
    image = next((shape for shape in shapes if isinstance(shape, list) and len(shape) > 2), [])
    sides = [side for side in image[2:] if isinstance(side, int)]
    return bool(sides) and sum(side > 1 for side in sides) <= _FEW_SIDES


def _marks(trace: Trace, prefixes: tuple[str, ...]) -> Table:
    """Return the ranges of the program that begin so, as one table."""
    annotations, operators = (
        table.where(named(trace, table, lambda name: name.startswith(prefixes)))
        for table in trace.ranges
    )
    return operators if len(operators) > len(annotations) else annotations


def _fusible(work: _Work, kernels: Mask) -> tuple[Mask, float]:
    """Return the kernels that a compiler fuses, and the ns of the longest of each chain.

    A kernel that no operator of torch launched is the program's own: no compiler knows it.
    """
    trace = work.trace
    device = work.trace.device
    torch_own = named(trace, trace.operators, _TORCH.match)
    fusible = kernels & np.append(torch_own, False)[work.operator]
    fusible &= ~work.launched_in(_marks(trace, OPTIMIZER))
    order = np.lexsort((device.start, device["stream"], device["device"]))
    order = order[work.inside[order]]
    is_fusible = fusible[order]
    begins = is_fusible.copy()
    begins[1:] &= ~(
        is_fusible[:-1]
        & (np.diff(device["stream"][order]) == 0)
        & (np.diff(device["device"][order]) == 0)
    )
    return fusible, _longest_of_each(begins[is_fusible], device_time(trace)[order][is_fusible])


def _longest_of_each(begins: Mask, lasting: Ints) -> float:
    """Return the sum of the longest member of each chain; a chain begins where it is marked."""
    if not len(lasting):
        return 0.0
    return float(np.maximum.reduceat(lasting, np.flatnonzero(begins)).sum())


def _fusible_on_host(work: _Work) -> Intervals:
    """Return when a CPU is in operators that a compiler fuses."""
    trace = work.trace
    table = work.host.table.where(work.host.working)
    stays = named(
        trace, table, lambda name: any(p.match(name) for p in (_PRODUCT, _RANDOM, _MOVES))
    )
    fusible = ~stays & named(trace, table, _TORCH.match)
    fusible &= ~_marks(trace, OPTIMIZER).spans().contain(table.start)
    return table.spans(fusible)


def _dispatch(work: _Work) -> Intervals:
    """Return when the host only hands work out: operators that launch it, and Python between.

    What an operator computes itself is no such time, nor a wait for the device or for its memory.
    """
    trace = work.trace
    host = work.host
    runtime = work.trace.runtime
    table = host.table
    large = host.large | (host.nesting.leaves & (table.end - table.start >= LARGE_OPERATOR_NS))
    # What launches something only waits until the queue takes it.
    computes = large.copy()
    called = work.call[work.call >= 0]
    around = innermost(table, host.nesting, runtime.thread[called], runtime.start[called])
    around = np.unique(around[around >= 0])
    while len(around):  # and whatever calls it, a level each round
        computes[around] = False
        around = np.unique(host.nesting.parent[around])
        around = around[around >= 0]
    # Ranges of the program's own name what it does; Python is between the operators in them.
    called_for = table.spans(host.nesting.leaves | named(trace, table, _TORCH.match))
    loading = work.timeline.branches["data_loader"]
    within = union(work.timeline.steps.host_start, work.timeline.steps.host_end)
    gaps = subtract(within, join(called_for, runtime.spans(), loading))
    short = gaps.end - gaps.start < LONG_IDLE_NS
    handing = join(called_for, Intervals(gaps.start[short], gaps.end[short]))
    waits = named(
        trace, runtime, lambda name: kinds.SYNC_CALL.match(name) or kinds.COPY_CALL.match(name)
    )
    elsewhere = join(
        table.spans(computes),
        runtime.spans(waits | allocates(trace)),
        _marks(trace, OPTIMIZER).spans(),
        loading,
    )
    return subtract(handing, elsewhere)


def _launches(work: _Work) -> Intervals:
    """Return when the host hands work out, or is in a call that launches a kernel by itself."""
    trace = work.trace
    device = work.trace.device
    kernels = work.inside & (work.call >= 0) & (device["kind"] == kinds.KERNEL)
    called, kernels_of = np.unique(work.call[kernels], return_counts=True)
    single = trace.runtime.spans(called[kernels_of == 1])  # a call of many launched a graph
    return join(_dispatch(work), subtract(single, _marks(trace, OPTIMIZER).spans()))


def _biases(work: _Work, convolving: Mask) -> Mask:
    """Return the kernels of convolutions that add a bias, or sum up its gradient."""
    name = re.compile(r"elementwise|reduce_kernel|bias", re.I)
    return convolving & named(
        work.trace, work.trace.device, lambda kernel_name: bool(name.search(kernel_name))
    )


def _random_on_host(work: _Work) -> Intervals:
    """Return when operators make random numbers on the host: they launch nothing."""
    trace = work.trace
    table = _outermost(work.trace, work.host.table, _RANDOM)
    runtime = trace.runtime
    called = work.call[work.call >= 0]
    around = innermost(table, nest(table), runtime.thread[called], runtime.start[called])
    on_host = np.ones(len(table), dtype=bool)
    on_host[around[around >= 0]] = False
    return table.spans(on_host)


def _copies(work: _Work) -> dict[str, TracedPart]:
    """Return copies from and to pageable memory, and those to the device, with the host's calls.

    A call that waits until the device has done other work would wait for that in any case.
    """
    trace = work.trace
    device = work.trace.device
    rows = np.flatnonzero(work.inside & (device["kind"] == kinds.MEMCPY))
    source, target = copy_sides(trace, device.where(rows))
    kinds_of_copy = {
        "pageable copies to the device": (source == "pageable") & (target == "device"),
        "pageable copies to the host": (source == "device") & (target == "pageable"),
        "copies to the device": (source != "device") & (target == "device"),
    }
    parts = {}
    for name, of_kind in kinds_of_copy.items():
        chosen = np.zeros(len(device), dtype=bool)
        chosen[rows[of_kind]] = True
        calls = np.unique(work.call[chosen & (work.call >= 0)])
        held = subtract(trace.runtime.spans(calls), device.spans(~chosen))
        parts[name] = work.part(chosen, held)
    return parts
