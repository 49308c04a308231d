"""Does the step wait for copies?

What it means
-------------
Batches travel from host to device memory, results back. While the device waits for a copy, or
the host is held by one, nothing is computed.

How it is measured
------------------
From the profiler's trace: exposed time of memory copies (no kernel runs meanwhile), plus the
exposed time in which the host is blocked inside a copy call of the driver.

Not to be confused with
-----------------------
Copies that run beside kernels: they cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "memcpy"
QUESTION = "Is memory copy time high?"
METRIC = "exposed share of the step spent on copies, or blocked in them"
THRESHOLD = 0.20
THRESHOLD_UNIT = "% of the step, exposed; moderate from 5 %"
MODERATE = 0.05
THRESHOLD_SOURCE = "torchdoctor: the same bound as for data; XProf warns at 30 % of input time"


def measure(recording: Recording) -> float | None:
    """Exposed share of the step, 0 to 1."""
    shares, trace = recording.shares, recording.trace
    if shares.memcpy is None:
        return None
    blocked = 0.0
    if trace is not None and trace.blocking_copy_exposed_s is not None and trace.step_s:
        blocked = trace.blocking_copy_exposed_s / trace.step_s
    return shares.memcpy + blocked


def look(recording: Recording) -> list[Finding]:
    """A finding where copies are at least a moderate share."""
    from torchdoctor.words import Finding

    share = measure(recording)
    if share is None or share < MODERATE:
        return []
    evidence = [f"Copies, or the host blocked in them, take {share:.0%} of each step, exposed."]
    trace = recording.trace
    if trace is not None and trace.blocking_copy_s:
        evidence.append(
            f"The host is blocked {trace.blocking_copy_s * 1e3:.1f} ms a step in copies."
        )
        if (trace.d2h_wait_s or 0.0) > trace.blocking_copy_s / 2:
            evidence.append(
                f"{(trace.d2h_wait_s or 0.0) * 1e3:.1f} ms of that are copies to the host, which "
                "wait until all is done that was launched before: what they wait for is not the "
                "copy."
            )
    severity = "high" if share >= THRESHOLD else "moderate"
    return [
        Finding(check="memcpy-share", share_of_step=share, evidence=evidence, severity=severity)
    ]


FIRES = [
    {"shares": {"memcpy": 0.3, "gpu": 0.5, "cpu": 0.2}},
    {
        "shares": {"memcpy": 0.03, "gpu": 0.32, "runtime": 0.52, "cpu": 0.11},
        "trace": {"path": "t", "steps": 2, "step_s": 0.245, "blocking_copy_exposed_s": 0.09},
    },
]
QUIET = [
    {"shares": {"memcpy": 0.01, "gpu": 0.99}},
    {"shares": {"cpu": 1.0}},
    # Blocked in copies for long, but kernels run meanwhile.
    {
        "shares": {"memcpy": 0.01, "gpu": 0.9, "runtime": 0.06},
        "trace": {
            "path": "t",
            "steps": 2,
            "step_s": 0.1,
            "blocking_copy_s": 0.05,
            "blocking_copy_exposed_s": 0.001,
        },
    },
]
