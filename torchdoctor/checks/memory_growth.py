"""Memory grows with every step.

What it means
-------------
Something is kept from each step: most often a loss that was summed up without .item() or
detach(), and with it the whole graph behind it.

What to do
----------
Sum up `loss.item()` or `loss.detach()` in place of the loss, and look for lists and dictionaries
that get an entry each step (outputs, metrics, logs): keep numbers, not tensors with their graphs.
Where nothing of the loop grows, `tracemalloc` names the lines that allocate, and a data set that
keeps what it has read is the next place to look.

How it is measured
------------------
Growth of the program's resident memory over the measured window (psutil), where its floor rises in
every quarter of that.

Not to be confused with
-----------------------
A cache that fills once, or an allocator that warms up.
"""

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.01


def _examine(recording: Recording) -> Iterator[Symptom]:
    growth, total = recording.sensors.rss_growth_bytes_per_s, recording.environment.memory_bytes
    if growth is None or not total or growth * 60.0 < THRESHOLD * total:
        return
    if recording.sensors.window_s < 3.0:
        return
    yield Symptom(
        evidence=[f"Resident memory grows by {growth / 2**20:.1f} MiB a second."],
        severity="moderate",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="other",
    threshold=THRESHOLD,
    unit="% of the machine's memory per minute",
    source="torchdoctor: the machine is full after 100 minutes",
    examine=_examine,
    fires=[
        {
            "sensors": {"rss_growth_bytes_per_s": 1e8, "window_s": 10.0},
            "environment": {"memory_bytes": 2**34},
        }
    ],
    quiet=[
        {
            "sensors": {"rss_growth_bytes_per_s": 0.0, "window_s": 10.0},
            "environment": {"memory_bytes": 2**34},
        }
    ],
)
