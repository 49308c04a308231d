"""What an event of a trace is by its category, from Kineto of 2020 to today, of any vendor."""

from __future__ import annotations

import re
from collections.abc import Mapping

OUR_CATEGORY = "torchdoctor"  # of what `trace_annotate` adds to a copy
DEVICE_KINDS = ("kernel", "memcpy", "memset")
KERNEL, MEMCPY, MEMSET = range(3)

_TABLE_OF = {
    "operator": "operators",
    "cpu_op": "operators",
    "python": "operators",  # record_function of the first releases
    "runtime": "runtime",
    "driver": "runtime",
    "kernel": "kernel",
    "memcpy": "memcpy",
    "gpu_memcpy": "memcpy",
    "memset": "memset",
    "gpu_memset": "memset",
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
    "user_annotation": "annotations",
    "trace": "spans",
    "python_function": "python_frames",
}
# Known, and nothing of it is counted: what the profiler itself cost, instants, marks on GPU tracks.
_LEFT_OUT = frozenset(
    (
        *("overhead", "cpu_instant_event", "gpu_user_annotation", "cuda_sync", "ac2g", "fwdbwd"),
        *("external_correlation", "cuda_profiler_range", "gpu_pm_counter", "mtia_insight"),
        *("collective_comm", OUR_CATEGORY),
    )
)
_NOTICED = 0.01  # share of all events from where on unknown ones are named
_COPY_NAME = re.compile(r"Memcpy |Copy(?:Host|Device)To(?:Host|Device)")


def table_of(category: str) -> str | None:
    """The table of a category, or its kind of device event; None: nothing reads such events."""
    lower = category.lower()
    suffix = lower.rpartition("_")[2]  # cuda_runtime, hip_runtime, xpu_driver, ...
    if found := _TABLE_OF.get(lower):
        return found
    if suffix in DEVICE_KINDS:  # privateuse1_kernel, xpu_memcpy, ...
        return suffix
    return "runtime" if suffix in ("runtime", "driver") else None


def is_left_out(category: str) -> bool:
    """Whether it is known that nothing is to be counted."""
    return category.lower() in _LEFT_OUT


def kind_by_name(name: str) -> int:
    """MEMCPY or MEMSET for a device event that its name tells to be one, whatever its category."""
    if _COPY_NAME.match(name):
        return MEMCPY
    return MEMSET if name.startswith("Memset ") else -1


def doubt_about_unknown(unknown: Mapping[str, int], events: int) -> list[str]:
    """A sentence where events of unknown categories (by count) are many of all."""
    total = sum(unknown.values())
    if total <= _NOTICED * events:
        return []
    return [
        f"{total} events are of no known category ({', '.join(sorted(unknown))}) and were left "
        "out: if an accelerator ran them, its time is missing."
    ]
