"""What torch.compile does in the steps, and the pointwise kernels that it would fuse."""

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from torchdoctor.facts.stacks import FRAME
from torchdoctor.trace.columns import Ints, Trace
from torchdoctor.trace.kinds import kernel_kinds
from torchdoctor.trace.nesting import innermost, launch_rows, operator_nesting
from torchdoctor.trace.python import user_frame
from torchdoctor.trace.threads import named
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words import Location, PointwiseChain, PointwiseChains, TracedCompilation
from torchdoctor.words.intervals import join, subtract, union

_REGION = re.compile(r"Torch-Compiled Region(: |$)")
# Names of torch 2.1 to today; a frame's compilation, and all that takes time in compiling.
_FRAME = re.compile(r"(_compile\.)?_?compile_inner \(dynamo_timed\)|_compile \(dynamo_timed\)")
_TIMED = re.compile(r".*\(dynamo_timed\)|entire_(frame|backward)_compile")
_VERSION = re.compile(r"(?:entire_frame_compile|dynamo)_data: .*compile_id=!?\d+/(\d+)")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")


def traced_compilation(trace: Trace, timeline: Timeline) -> TracedCompilation | None:
    """Return means over the steps; None if nothing compiled runs or is compiled in them."""
    steps, table = timeline.steps, trace.operators
    within = table.where(steps.index(table.start) >= 0)
    regions = named(trace, within, _REGION.match)
    timed = within.where(named(trace, within, _TIMED.match))
    if not regions.any() and not len(timed):
        return None
    in_each = timed.spans().covered(steps.start, steps.end)
    frames = named(trace, timed, _FRAME.match)
    inside = trace.annotations.name[steps.index(trace.annotations.start) >= 0]
    matches = [match for name in inside if (match := _VERSION.match(trace.names[name]))]
    versions = {match.string.partition("compile_id=")[2]: int(match[1]) for match in matches}
    again = sum(version > 0 for version in versions.values())
    return TracedCompilation(
        compiles_per_step=float(frames.sum()) / len(steps),
        compile_s=float(in_each.sum()) / len(steps) / 1e9,
        steps_with=int((in_each > 0).sum()),
        again=None if frames.any() and not matches else again,  # torch before 2.6 does not say
        resumed=_resumed(trace),
    )


def _resumed(trace: Trace) -> list[Location]:
    """Return the lines at which a graph breaks: the rest of the function runs as its own."""
    locations: dict[tuple[str, int], Location] = {}
    for name in np.unique(trace.python.name):
        frame = FRAME.fullmatch(trace.names[name])
        if frame is not None and (resumed := _RESUMED.match(frame["function"])):
            file, line = frame["file"], int(resumed[2])
            locations[file, line] = Location(file=file, line=line, function=resumed[1])
    return [locations[key] for key in sorted(locations)]


_OPTIMIZER = ("Optimizer.step", "Optimizer.zero_grad")
_LISTED, _OPERATORS = 3, 8


@dataclass(frozen=True)
class _Members:
    """Kernels of the chains in order of chain and time; one entry each."""

    call: Ints  # row of the launching runtime call, or -1
    exposed: Ints  # ns
    chain: Ints  # number of its chain, from 0 on


def pointwise_chains(trace: Trace, timeline: Timeline) -> PointwiseChains | None:
    """Return runs of pointwise kernels on a stream, but an optimizer's; None without a GPU."""
    if not trace.has_device or not timeline.steps.total:
        return None
    members = _members(trace, timeline)
    steps = len(timeline.steps)
    count = int(members.chain[-1]) + 1 if len(members.chain) else 0
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, members.chain, members.exposed)
    total = int(members.exposed.sum())
    return PointwiseChains(
        chains=count / steps,
        kernels=len(members.chain) / steps,
        device_s=total / steps / 1e9,
        saved_s=(total - int(longest.sum())) / steps / 1e9,
        costliest=_costliest(trace, members, count, steps) if count else [],
    )


def _members(trace: Trace, timeline: Timeline) -> _Members:
    device, call = trace.device, launch_rows(trace)
    pointwise = named(trace, device, lambda name: "pointwise" in kernel_kinds(name))
    pointwise &= timeline.steps.index(device.start) >= 0
    steps = join(
        *(t.spans(named(trace, t, lambda name: name.startswith(_OPTIMIZER))) for t in trace.ranges)
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
    return _Members(call[rows], exposed, number.reshape(-1))


def _costliest(trace: Trace, members: _Members, count: int, steps: int) -> list[PointwiseChain]:
    """Return the chains of equal operators that take most."""
    call, operators, runtime = members.call, trace.operators, trace.runtime
    names = np.full(len(call), -1)  # of the innermost operator around each call
    if len(runtime) and len(operators):
        nesting = operator_nesting(trace)
        inside = innermost(operators, nesting, runtime.thread[call], runtime.start[call])
        known = (call >= 0) & (inside >= 0)
        names = np.where(known, operators.name[inside].astype(np.int64), -1)
    bounds = np.searchsorted(members.chain, np.arange(count + 1)).tolist()
    equal: dict[bytes, list[int]] = defaultdict(list)
    for chain, (begin, end) in enumerate(itertools.pairwise(bounds)):
        equal[names[begin:end].tobytes()].append(chain)
    spent = np.add.reduceat(members.exposed, bounds[:-1])
    costliest = sorted(equal.values(), key=lambda chains: -spent[chains].sum())[:_LISTED]
    listed = []
    for chains in costliest:
        begin, end = bounds[chains[0] : chains[0] + 2]
        first, location = int(call[begin]), None
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
