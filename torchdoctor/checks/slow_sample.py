"""Now and then a batch takes very much longer than usual.

What it means
-------------
A slow sample (a large file, a retry, a cold cache) holds up its worker, and because batches
are delivered in order, everybody behind it.

How it is measured
------------------
99th percentile over median of the training loader's fetches, where the slow ones are a share
of the step that matters.

Not to be confused with
-----------------------
The first batch of an epoch, which waits for the workers to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "data_loader"
THRESHOLD = 10.0  # p99 over median
THRESHOLD_UNIT = "times the median: the 99th percentile of the time of a batch"
THRESHOLD_SOURCE = "torchdoctor: a rare sample that holds the queue up, not the usual scatter"


def look(recording: Recording) -> list[Finding]:
    """A finding where rare fetches are far slower than the usual one."""
    from torchdoctor.facts.lookup import training_loaders
    from torchdoctor.words import Finding

    steps, loaders = recording.steps, training_loaders(recording)
    if steps is None or not loaders or not steps.fetch_median_s or not steps.fetch_p99_s:
        return []
    # One fetch in a hundred: what it costs is spread over a hundred steps.
    share = 0.01 * steps.fetch_p99_s / steps.mean_s
    if steps.fetch_p99_s < THRESHOLD * steps.fetch_median_s or share < 0.02:
        return []
    return [
        Finding(
            check="slow-sample",
            share_of_step=share,
            evidence=[
                f"One batch in a hundred takes {steps.fetch_p99_s * 1e3:.0f} ms or more, the "
                f"median {steps.fetch_median_s * 1e3:.2f} ms (observed launch)."
            ],
            location=loaders[0].location,
            severity="moderate",
        )
    ]


_PROCESSES = [{"pid": 1, "loaders": [{"ident": 0, "batches": 500}]}]
FIRES = [{"steps": {"fetch_median_s": 0.001, "fetch_p99_s": 0.4}, "processes": _PROCESSES}]
QUIET = [{"steps": {"fetch_median_s": 0.001, "fetch_p99_s": 0.002}, "processes": _PROCESSES}]
