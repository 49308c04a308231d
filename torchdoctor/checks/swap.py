"""The machine is swapping.

What it means
-------------
Memory is full, and pages come back from disk: everything is slow, most of all the loader.

What to do
----------
Need less memory: fewer workers and batches ahead (num_workers, prefetch_factor), no copy of the
data set in each worker (arrays and memory maps in place of lists of objects), smaller caches. Or
end what else fills the machine. With memory free again, swap empties by itself as its pages are
used.

How it is measured
------------------
Swap in use while the program runs, and how long the CPUs wait for disks (psutil).

Not to be confused with
-----------------------
Old pages that lie in swap and are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "data_loader"
THRESHOLD = 256 * 2**20  # bytes
THRESHOLD_UNIT = "bytes in swap (256 MiB), while CPUs wait for disks 10 % of the time"
THRESHOLD_SOURCE = "torchdoctor: less may be old pages that nobody needs"


def look(recording: Recording) -> list[Finding]:
    """A finding where swap is used and the disk is busy."""
    from torchdoctor.words import Finding

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
