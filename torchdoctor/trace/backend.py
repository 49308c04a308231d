"""The torch.distributed backend that a trace names, and collectives that run on the host."""

from __future__ import annotations

from typing import Any

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.timeline import Timeline, host_collectives
from torchdoctor.words.intervals import subtract


def backend_of(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Fields of `TraceStatistics`; empty where the trace is of one process alone."""
    information = trace.metadata.get("distributedInfo")
    if not isinstance(information, dict):
        return {}
    found: dict[str, Any] = {}
    name, world = information.get("backend"), information.get("world_size")
    if isinstance(name, str):
        found["backend"] = name
    if isinstance(world, int) and world > 0:
        found["world_size"] = world
    on_host = host_collectives(trace)
    if trace.has_device and len(on_host):
        steps = timeline.steps
        not_hidden = subtract(on_host, timeline.branches["gpu"])
        spent = not_hidden.covered(steps.start, steps.end).sum()
        found["host_collective_s"] = float(spent) / len(steps) / 1e9
    return found
