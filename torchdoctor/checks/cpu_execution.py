"""Is CPU execution the limit?

## What it means
With a GPU: the device waits for the host to launch work. Without one: the CPU is where the
model is computed, so its time is the step's; it divides into arithmetic inside large operators
(compute) and Python and dispatch around small ones (overhead).

## How it is measured
With a GPU, the trace gives the exposed shares of operators, Python and the driver's runtime. If
there is no trace, the rest counts that neither NVML's utilization nor the wait for data explains.
Without a GPU, the forward, backward and optimizer time of the step log counts.

## Not to be confused with
Waiting for data, which is asked first.
"""

from torchdoctor.queries.lookup import exposed_python
from torchdoctor.schema import CheckSpec, Recording, TreeQuestion


def _measure(recording: Recording) -> float | None:
    shares = recording.shares
    if shares.cpu is None:
        return None
    return shares.cpu + (shares.runtime or 0.0) + exposed_python(recording.trace, shares)


CHECK = CheckSpec(
    branch="cpu",
    threshold=0.30,
    unit="% of the step on the host",
    source="torchdoctor: of eight real traces, host-bound ones lie above 40 %",
    question=TreeQuestion(
        text="Is CPU execution high?",
        metric="share of {the_step} on the host: operators, Python, driver calls",
        measure=_measure,
    ),
    examine=lambda _: (),  # the other checks of the branch say what the host does
    fires=[],
    quiet=[{"shares": {"cpu": 0.9, "data_loader": 0.1}}],
)
