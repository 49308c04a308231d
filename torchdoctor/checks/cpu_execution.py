"""Is CPU execution the limit?

What it means
-------------
With a GPU: the device waits for the host to launch work. Without one: the CPU is where the
model is computed, so its time is the step's; it divides into arithmetic inside large operators
(compute) and Python and dispatch around small ones (overhead).

How it is measured
------------------
With a GPU, exposed shares of operators, Python and the driver's runtime from the trace; where
there is no trace, what neither NVML's utilization nor the wait for data explains.
Without one, forward, backward and optimizer time of the step log over the step.

Not to be confused with
-----------------------
Waiting for data, which is asked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
QUESTION = "Is CPU execution high?"
METRIC = "share of the step on the host: operators, Python, driver calls"
THRESHOLD = 0.30
THRESHOLD_UNIT = "% of the step on the host"
THRESHOLD_SOURCE = "torchdoctor: of eight real traces, host-bound ones lie above 40 %"


def measure(recording: Recording) -> float | None:
    """Share of the step, 0 to 1."""
    from torchdoctor.facts.lookup import python_between

    shares = recording.shares
    if shares.cpu is None:
        return None
    if recording.has_gpu and shares.gpu is None:
        # The host's own phases say nothing here: it launches kernels and does not wait for them.
        busy = recording.sensors.gpu_utilization
        return None if busy is None else max(1.0 - busy - (shares.data_loader or 0.0), 0.0)
    return shares.cpu + (shares.runtime or 0.0) + python_between(recording)


def look(recording: Recording) -> list[Finding]:
    """Nothing of its own: the checks below say what the host does."""
    return []


FIRES: list[dict[str, object]] = []
QUIET = [{"shares": {"cpu": 0.9, "data_loader": 0.1}}]
