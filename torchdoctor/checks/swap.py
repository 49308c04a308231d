"""The machine is swapping.

What it means
-------------
Memory is full, and pages come back from disk: everything is slow, most of all the loader.

How it is measured
------------------
Swap in use grows while the program runs (psutil).

Not to be confused with
-----------------------
Old pages that lie in swap and are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.records import Finding, Recording

UNDER = "data_loader"
THRESHOLD = 256 * 2**20  # bytes
THRESHOLD_SOURCE = "torchdoctor"


def look(recording: Recording) -> list[Finding]:
    """A finding where swap is used and the disk is busy."""
    from torchdoctor.records import Finding

    sensors = recording.sensors
    if not sensors.swap_used_bytes or sensors.swap_used_bytes < THRESHOLD:
        return []
    if not sensors.iowait_share or sensors.iowait_share < 0.1:
        return []
    return [
        Finding(
            check="swap",
            evidence=[
                f"{sensors.swap_used_bytes / 2**30:.1f} GiB are in swap and the CPUs wait for "
                f"disks {sensors.iowait_share:.0%} of the time."
            ],
            severity="high",
        )
    ]


FIRES = [{"sensors": {"swap_used_bytes": 2**31, "iowait_share": 0.4}}]
QUIET = [{"sensors": {"swap_used_bytes": 2**31, "iowait_share": 0.0}}, {}]
