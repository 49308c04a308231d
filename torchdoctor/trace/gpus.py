"""The GPUs that a trace names: of all of the node those that did something in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.words import Gpu


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
