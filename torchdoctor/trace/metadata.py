"""What a trace says of its job: the GPUs that it used and the torch.distributed backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.timeline import Timeline, host_collectives
from torchdoctor.words import Gpu
from torchdoctor.words.intervals import subtract


def gpus(trace: Trace) -> list[Gpu]:
    """One entry per device that was used and described; empty where the trace describes none."""
    properties = trace.metadata.get("deviceProperties")
    if not isinstance(properties, list):
        return []
    used = set(np.unique(trace.device["device"]).tolist()) if trace.has_device else set()
    found = []
    for known in map(dictionary, properties):
        index = whole_number(known.get("id"))
        if index is None or index not in used:
            continue
        major = whole_number(known.get("computeMajor"))
        minor = whole_number(known.get("computeMinor"))
        found.append(
            Gpu(
                index=index,
                name=text(known.get("name")) or "GPU",
                memory_bytes=whole_number(known.get("totalGlobalMem")),
                compute_capability=None if major is None else f"{major}.{minor or 0}",
            )
        )
    return found


def dictionary(value: Any) -> dict[str, Any]:
    """`value`, or an empty one where it is no dictionary."""
    return value if isinstance(value, dict) else {}


def whole_number(value: Any) -> int | None:
    """`value`, or None where it is no whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """`value`, or None where it is no text, or an empty one."""
    return value if isinstance(value, str) and value else None


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
