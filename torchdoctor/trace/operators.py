"""CPU operators of the steps and the time outside all of them; torch.compile, and what it fuses.

Nearly every operator calls others. A *working* operator spends at least half of its time itself;
the outermost working operators are what the user's code asked for and what is counted.
"""

import itertools
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.queries.stacks import FRAME
from torchdoctor.schema import (
    Location,
    Operator,
    PointwiseChain,
    PointwiseChains,
    TracedCompilation,
)
from torchdoctor.schema.intervals import Intervals, join, subtract, union
from torchdoctor.schema.traced import LISTED_OPERATORS
from torchdoctor.trace.columns import Ints, Mask, Table, Trace, named
from torchdoctor.trace.device import device_time
from torchdoctor.trace.kinds import kernel_kinds
from torchdoctor.trace.loop_marks import of_fetching_thread
from torchdoctor.trace.nesting import Nesting, innermost, launch_rows, nest, operator_nesting
from torchdoctor.trace.product_sizes import product_sizes
from torchdoctor.trace.python import user_frame
from torchdoctor.trace.timeline import Steps, Timeline

# A slow core does this in under 50 us: 5 GFLOP/s, and 25 ns for each result of an exponential.
_FEWEST_FLOPS = 250_000
_FEWEST_ELEMENTS = 2_000
# What computes about once for each element of its inputs, broadcast.
_BY_ELEMENT = re.compile(
    r"aten::_?(add|sub|rsub|mul|div|neg|abs|sign|exp|log|log1p|sqrt|rsqrt|pow|reciprocal|tanh|relu"
    r"|sigmoid|gelu|silu|elu|leaky_relu|clamp|clamp_min|clamp_max|threshold|(log_)?softmax"
    r"|(log_)?softmax_backward_data|(tanh|sigmoid|gelu|silu|elu|threshold|leaky_relu)_backward"
    r"|nll_loss_(forward|backward)|mse_loss(_backward)?|sum|mean|dot|norm|linalg_vector_norm|max"
    r"|min|amax|amin|argmax|eq|ne|lt|gt|le|ge|where|lerp|addcmul|addcdiv|fill|zero|copy|cat|stack"
    r"|native_(layer|batch)_norm(_backward)?)_?"
)
LARGE_OPERATOR_NS = 50_000  # under this, dispatch costs as much as the work
_WORKING_SHARE = 0.5
_WHOLE_STEP_SHARE = 0.8  # a range around the user's whole step is no operator
_INTERRUPTED = 5.0  # times its usual length: the operator lost its CPU, it did not compute
_GATHERS = re.compile(r"aten::_?(embedding|index|gather|scatter|take)")  # hardly any arithmetic
LONG_IDLE_NS = 500_000  # longer than dispatch and a module's Python take between two operators
_ANNOTATION_PREFIXES = ("ProfilerStep#", "enumerate(Data", "Optimizer.")  # "Operator" in 2020
_REGION = re.compile(r"Torch-Compiled Region(: |$)")
# Names of torch 2.1 to today; a frame's compilation, and all that takes time in compiling.
_FRAME = re.compile(
    r"(_compile\.(<locals>\.)?)?_?compile_inner \(dynamo_timed\)|_compile \(dynamo_timed\)"
)
_TIMED = re.compile(r".*\(dynamo_timed\)|entire_(frame|backward)_compile")
_VERSION = re.compile(r"(?:entire_frame_compile|dynamo)_data: .*compile_id=!?\d+/(\d+)")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
OPTIMIZER = ("Optimizer.step", "Optimizer.zero_grad")
_LISTED = 3
_OPERATORS = 8


def too_small(trace: Trace, table: Table) -> Mask:
    """Return True for each row whose recorded sizes rule out that it computes much."""
    rows = np.column_stack([table.name, table["shapes"], table["product"]]).astype(np.int64)
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    by_element = [_BY_ELEMENT.fullmatch(name) is not None for name in trace.names]
    small = np.zeros(len(kinds), dtype=bool)
    for number, (name, shapes, product) in enumerate(kinds.tolist()):
        if product >= 0:
            sizes = product_sizes(trace.products[product], 0, {})
            small[number] = sizes is not None and sizes.flops < _FEWEST_FLOPS
        elif shapes >= 0 and by_element[name]:
            elements = _broadcast(trace.shapes[shapes])
            small[number] = elements is not None and elements < _FEWEST_ELEMENTS
    return np.take(small, kind.reshape(-1))


def _broadcast(text: bytes) -> int | None:
    """Return the elements of the inputs broadcast to each other; None: not all are known."""
    try:
        shapes = msgspec.json.decode(text, type=list[list[int]])
    except msgspec.DecodeError:  # lists of tensors among them
        return None
    if not any(shapes):
        return None
    aligned = itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return math.prod(map(max, aligned))


@dataclass(frozen=True)
class HostWork:
    """What the host does in the steps: operators, which of them count, and the gaps between."""

    table: Table
    nesting: Nesting
    working: Mask  # outermost working ones, loaders left out
    large: Mask  # those of them that compute
    gaps: Intervals  # outside any operator, driver call and loader


def host_work(trace: Trace, timeline: Timeline) -> HostWork:
    """Return the operators of the steps, and the gaps between them."""
    host = timeline.steps.host
    table = trace.operators
    operators = ~named(trace, table, lambda name: name.startswith(_ANNOTATION_PREFIXES))
    operators &= ~of_fetching_thread(trace, table)
    table = table.where(operators & (host.index(table.start) >= 0))
    branches = ["runtime", "data_loader"] + ([] if trace.has_device else ["communication"])
    busy_times = join(table.spans(), *(timeline.branches[branch] for branch in branches))
    nesting = nest(table)
    working = np.zeros(len(table), dtype=bool)
    large = working
    if len(table):
        working = _outermost_working(table, nesting, timeline.steps)
        working &= ~timeline.branches["data_loader"].contain(table.start)
        large = working & (table.end - table.start >= LARGE_OPERATOR_NS)
        large &= _usual_length(table, working) >= LARGE_OPERATOR_NS / _INTERRUPTED
        large[large] &= ~too_small(trace, table.where(large))
    gaps = subtract(union(host.start, host.end), busy_times)
    return HostWork(table, nesting, working, large, gaps)


def summarise_operators(
    trace: Trace, timeline: Timeline, work: HostWork | None = None
) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: what ran on the host inside the steps, and between."""
    work = work or host_work(trace, timeline)
    count = len(timeline.steps)
    host = timeline.steps.host
    table = work.table
    length = work.gaps.end - work.gaps.start
    idle, outside = (int(ns.sum()) / count / 1e9 for ns in (length, length[length >= LONG_IDLE_NS]))
    if not len(table):
        return {"python_s": idle, "outside_s": outside}
    lengths = (table.end - table.start)[work.working]
    in_large = table.spans(work.large)
    in_all = table.spans(work.working)
    device_ns = _device_time(trace, timeline, table, work.nesting)
    gathers = named(trace, table, _GATHERS.match)
    if device_ns is None:
        gather_ns = _inside(table.spans(work.large & gathers), host)
    else:
        gather_ns = device_ns[np.unique(table.name[gathers])].sum()
    return {
        "operator_calls_per_step": len(lengths) / count,
        "operator_median_us": float(np.median(lengths)) / 1000 if len(lengths) else None,
        "compute_s": _inside(in_large, host) / count / 1e9,
        "gather_s": float(gather_ns) / count / 1e9,
        "small_operator_s": (_inside(in_all, host) - _inside(in_large, host)) / count / 1e9,
        "python_s": idle,
        "outside_s": outside,
        "operators": _top_operators(trace, table, work.nesting, device_ns, count),
    }


def _inside(intervals: Intervals, steps: Steps) -> int:
    return int(intervals.covered(steps.start, steps.end).sum())


def _outermost_working(table: Table, nesting: Nesting, steps: Steps) -> Mask:
    length = table.end - table.start
    working = nesting.leaves | (nesting.self_ns >= _WORKING_SHARE * length)
    working &= nesting.leaves | (length < _WHOLE_STEP_SHARE * steps.total / len(steps))
    has_parent = nesting.parent >= 0
    inner = np.zeros(len(table), dtype=bool)
    while True:  # hands "inside a working operator" down, a level each round
        handed = has_parent & (working | inner)[nesting.parent]
        if (handed == inner).all():
            return working & ~inner
        inner = handed


def _usual_length(table: Table, working: Mask) -> NDArray[Any]:
    """Return each row's median length (ns) over working operators of its name and input sizes."""
    rows = np.flatnonzero(working)
    usual = np.zeros(len(table))
    shapes = table["shapes"][rows].astype(np.int64)
    kind = table.name[rows].astype(np.int64) * (int(shapes.max(initial=0)) + 2) + shapes + 1
    length = (table.end - table.start)[rows]
    order = np.lexsort((length, kind))
    _, first, group, count = np.unique(
        kind[order], return_index=True, return_inverse=True, return_counts=True
    )
    medians = length[order][first + count // 2]
    usual[rows[order]] = medians[group.reshape(-1)]
    return usual


def _top_operators(
    trace: Trace, table: Table, nesting: Nesting, device_ns: NDArray[Any] | None, steps: int
) -> list[Operator]:
    names = len(trace.names)
    calls = np.bincount(table.name, minlength=names)
    self_ns = np.bincount(table.name, weights=nesting.self_ns, minlength=names)
    time = self_ns if device_ns is None else np.maximum(self_ns, device_ns)
    ranking = np.argsort(-time, kind="stable")[:LISTED_OPERATORS]
    calling = _make_driver_calls(trace, table, nesting)
    calling_ns = np.bincount(table.name, weights=nesting.self_ns * calling, minlength=names)
    return [
        Operator(
            name=trace.names[name],
            calls_per_step=float(calls[name]) / steps,
            self_s=float(self_ns[name]) / steps / 1e9,
            calling_s=float(calling_ns[name]) / steps / 1e9,
            device_s=None if device_ns is None else float(device_ns[name]) / steps / 1e9,
            shapes=_costliest_shapes(trace, table, nesting, int(name)),
        )
        for name in ranking
        if calls[name]
    ]


def _make_driver_calls(trace: Trace, table: Table, nesting: Nesting) -> Mask:
    """Return the operators that make driver calls, by themselves or in operators that they call."""
    calls = trace.runtime
    calling = np.zeros(len(table), dtype=bool)
    rows = np.unique(innermost(table, nesting, calls.thread, calls.start))
    rows = rows[rows >= 0]
    while len(rows):  # up the levels, until all of them are known
        calling[rows] = True
        above = np.unique(nesting.parent[rows])
        rows = above[(above >= 0) & ~calling[above]]
    return calling


def _device_time(
    trace: Trace, timeline: Timeline, table: Table, nesting: Nesting
) -> NDArray[Any] | None:
    """Return the device time by the name of the operator that launched it; overlaps count once."""
    if not trace.has_device:
        return None
    call = launch_rows(trace)
    runtime = trace.runtime
    rows = np.flatnonzero((call >= 0) & (timeline.steps.index(trace.device.start) >= 0))
    call = call[rows]
    operator = innermost(table, nesting, runtime.thread[call], runtime.start[call])
    names = table.name[operator[operator >= 0]]
    spent = device_time(trace)[rows[operator >= 0]]
    return np.bincount(names, weights=spent, minlength=len(trace.names))


def _costliest_shapes(trace: Trace, table: Table, nesting: Nesting, name: int) -> str | None:
    """Return the input sizes that cost most, as "[32, 3, 64, 64], [64, 3, 7, 7]"."""
    rows = np.flatnonzero(table.name == name)
    shapes: Ints = table["shapes"][rows]
    has_shapes = shapes >= 0
    if not has_shapes.any():
        return None
    spent = np.bincount(shapes[has_shapes], weights=nesting.self_ns[rows][has_shapes] + 1.0)
    try:
        sizes = msgspec.json.decode(trace.shapes[int(spent.argmax())])
    except msgspec.DecodeError:
        return None
    written = [str(size) for size in sizes if size] if isinstance(sizes, list) else []
    return ", ".join(written) or None


def traced_compilation(trace: Trace, timeline: Timeline) -> TracedCompilation | None:
    """Return means over the steps; None if nothing compiled runs or is compiled in them."""
    steps = timeline.steps
    inside = [table.where(steps.index(table.start) >= 0) for table in trace.ranges]
    timed = [table.where(named(trace, table, _TIMED.match)) for table in inside]
    if not any(map(len, timed)) and not any(
        named(trace, table, _REGION.match).any() for table in inside
    ):
        return None
    in_each = join(*(table.spans() for table in timed)).covered(steps.start, steps.end)
    frames = sum(int(named(trace, table, _FRAME.match).sum()) for table in timed)
    annotation_names = inside[0].name  # of annotations, in any release that tells the version
    matches = [match for name in annotation_names if (match := _VERSION.match(trace.names[name]))]
    versions = {match.string.partition("compile_id=")[2]: int(match[1]) for match in matches}
    again = sum(version > 0 for version in versions.values())
    return TracedCompilation(
        compiles_per_step=frames / len(steps),
        compile_s=float(in_each.sum()) / len(steps) / 1e9,
        steps_with=int((in_each > 0).sum()),
        again=None if frames and not matches else again,  # torch up to 2.6 does not say
        resumed=_resumed(trace),
    )


def _resumed(trace: Trace) -> list[Location]:
    """Return the lines at which a graph breaks: the rest of the function runs as its own."""
    locations: dict[tuple[str, int], Location] = {}
    for name in np.unique(trace.python.name):
        frame = FRAME.fullmatch(trace.names[name])
        if frame is not None and (resumed := _RESUMED.match(frame["function"])):
            file = frame["file"]
            line = int(resumed[2])
            locations[file, line] = Location(file=file, line=line, function=resumed[1])
    return [locations[key] for key in sorted(locations)]


def pointwise_chains(trace: Trace, timeline: Timeline) -> PointwiseChains | None:
    """Return runs of pointwise kernels on a stream, but an optimizer's; None without a GPU."""
    if not trace.has_device or not timeline.steps.total:
        return None
    call, exposed, chain = _members(trace, timeline)
    steps = len(timeline.steps)
    count = int(chain[-1]) + 1 if len(chain) else 0
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, chain, exposed)
    total = int(exposed.sum())
    return PointwiseChains(
        chains=count / steps,
        kernels=len(chain) / steps,
        device_s=total / steps / 1e9,
        saved_s=(total - int(longest.sum())) / steps / 1e9,
        costliest=_costliest(trace, call, exposed, chain, steps) if count else [],
    )


def _members(trace: Trace, timeline: Timeline) -> tuple[Ints, Ints, Ints]:
    """Return launching call (or -1), exposed ns and chain of each kernel, by chain and time."""
    device = trace.device
    call = launch_rows(trace)
    pointwise = named(trace, device, lambda name: "pointwise" in kernel_kinds(name))
    pointwise &= timeline.steps.index(device.start) >= 0
    steps = join(
        *(t.spans(named(trace, t, lambda name: name.startswith(OPTIMIZER))) for t in trace.ranges)
    )
    pointwise &= (call < 0) | ~steps.contain(np.append(trace.runtime.start, -1)[call])
    order = np.lexsort((device.start, device["stream"], device["device"]))
    follows = pointwise[order]
    follows[1:] &= pointwise[order][:-1]
    for column in ("stream", "device"):
        follows[1:] &= np.diff(device[column][order]) == 0
    follows[:1] = False
    chain = np.cumsum(~follows)  # a new number wherever a kernel does not follow another one
    sizes = np.bincount(chain)
    inside = pointwise[order] & (sizes[chain] > 1)
    rows = order[inside]
    alone = subtract(
        device.spans(rows),
        union(*(np.delete(column, rows) for column in (device.start, device.end))),
    )
    _, number = np.unique(chain[inside], return_inverse=True)
    exposed = alone.covered(device.start[rows], device.end[rows])
    return call[rows], exposed, number.reshape(-1)


def _costliest(
    trace: Trace, call: Ints, exposed: Ints, chain: Ints, steps: int
) -> list[PointwiseChain]:
    """Return the chains of equal operators that take most."""
    count = int(chain[-1]) + 1
    operators = trace.operators
    runtime = trace.runtime
    names = np.full(len(call), -1)  # of the innermost operator around each call
    if len(runtime) and len(operators):
        nesting = operator_nesting(trace)
        inside = innermost(operators, nesting, runtime.thread[call], runtime.start[call])
        has_operator = (call >= 0) & (inside >= 0)
        names = np.where(has_operator, operators.name[inside].astype(np.int64), -1)
    bounds = np.searchsorted(chain, np.arange(count + 1)).tolist()
    equal: dict[bytes, list[int]] = defaultdict(list)
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        equal[names[begin:end].tobytes()].append(number)
    spent = np.add.reduceat(exposed, bounds[:-1])
    costliest = sorted(equal.values(), key=lambda chains: -spent[chains].sum())[:_LISTED]
    listed = []
    for chains in costliest:
        begin, end = bounds[chains[0] : chains[0] + 2]
        first = int(call[begin])
        location = None
        if first >= 0:
            location = user_frame(trace, int(runtime.thread[first]), int(runtime.start[first]), b"")
        listing = [trace.names[n] if n >= 0 else "unknown" for n in names[begin:end][:_OPERATORS]]
        listed.append(
            PointwiseChain(
                operators=listing,
                kernels=end - begin,
                times_per_step=len(chains) / steps,
                device_s=float(spent[chains].sum()) / steps / 1e9,
                location=location,
            )
        )
    return listed
