"""Memory grows with every step.

## What it means
Something is kept from each step: most often a loss that was summed up without .item() or
detach(), and with it the whole graph behind it.

## What to do
Sum up `loss.item()` or `loss.detach()` in place of the loss, and look for lists and dictionaries
that get an entry each step: keep numbers, not tensors with their graphs. Where nothing of the loop
grows, `tracemalloc` names the lines that allocate.

## How it is measured
psutil gives the growth of the program's resident memory over the measured window. The floor must
rise in every quarter of the window.

## Not to be confused with
A cache that fills once, or an allocator that warms up.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact

_SHORTEST_S = 3.0


def _examine(recording: Recording) -> Symptoms:
    growth = recording.sensors.rss_growth_bytes_per_s
    total = recording.environment.memory_bytes
    if growth is None or not total or recording.sensors.window_s < _SHORTEST_S:
        return
    if growth * 60.0 >= CHECK.threshold * total:
        yield Symptom(
            evidence=fact("growth", mib_per_s=growth / 2**20),
            severity="moderate",
        )


_MEMORY = {"environment": {"memory_bytes": 2**34}}
CHECK = CheckSpec(
    branch="other",
    threshold=0.01,
    unit="% of the machine's memory per minute",
    source="torchdoctor: the machine is full after 100 minutes",
    sentences={
        "growth": "Resident memory grows by {mib_per_s:.1f} MiB a second.",
    },
    examine=_examine,
    fires=[{"sensors": {"rss_growth_bytes_per_s": 1e8, "window_s": 10.0}, **_MEMORY}],
    quiet=[{"sensors": {"rss_growth_bytes_per_s": 0.0, "window_s": 10.0}, **_MEMORY}],
)
