"""What a trace says of its job: the GPUs that it used and the torch.distributed backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.timeline import Timeline, host_collectives
from torchdoctor.words import Gpu
from torchdoctor.words.intervals import subtract


def gpus(trace: Trace) -> list[Gpu]:
    """Return each device that was used and described; empty if the trace describes none."""
    properties = trace.metadata.get("deviceProperties")
    if not isinstance(properties, list):
        return []
    used = set(np.unique(trace.device["device"]).tolist()) if trace.has_device else set()
    used_gpus = []
    for known in map(dictionary, properties):
        index = whole_number(known.get("id"))
        if index is None or index not in used:
            continue
        major = whole_number(known.get("computeMajor"))
        minor = whole_number(known.get("computeMinor"))
        used_gpus.append(
            Gpu(
                index=index,
                name=text(known.get("name")) or "GPU",
                memory_bytes=whole_number(known.get("totalGlobalMem")),
                compute_capability=None if major is None else f"{major}.{minor or 0}",
            )
        )
    return used_gpus


def dictionary(value: Any) -> dict[str, Any]:
    """Return `value`, or an empty dictionary if it is none."""
    return value if isinstance(value, dict) else {}


def whole_number(value: Any) -> int | None:
    """Return `value`, or None if it is no whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """Return `value`, or None if it is no text, or an empty one."""
    return value if isinstance(value, str) and value else None


def backend_of(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`; empty if the trace names no distributed job."""
    information = trace.metadata.get("distributedInfo")
    if not isinstance(information, dict):
        return {}
    fields: dict[str, Any] = {}
    name, world = information.get("backend"), information.get("world_size")
    if isinstance(name, str):
        fields["backend"] = name
    if isinstance(world, int) and world > 0:
        fields["world_size"] = world
    on_host = host_collectives(trace)
    if trace.has_device and len(on_host):
        steps = timeline.steps
        not_hidden = subtract(on_host, timeline.branches["gpu"])
        spent = not_hidden.covered(steps.start, steps.end).sum()
        fields["host_collective_s"] = float(spent) / len(steps) / 1e9
    return fields
