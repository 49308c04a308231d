"""Python and dispatch take much of the step.

What it means
-------------
Between the operators the host runs Python and torch's dispatcher. With many small operators
that takes longer than their arithmetic.

How it is measured
------------------
From the profiler's trace: host time outside any operator in stretches under half a millisecond,
plus time inside operators under 50 microseconds, over the step. The profiler itself makes both
longer, so this is an upper bound.

Not to be confused with
-----------------------
Waiting for data, which is counted elsewhere; longer stretches without any operator, in which the
program does something of its own or sleeps (outside-operators, work-outside-model).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0.3
THRESHOLD_UNIT = "% of the step"
THRESHOLD_SOURCE = "torchdoctor; XProf marks launching from 3 % of the step on, as high from 15 %"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.lookup import overhead_share
    from torchdoctor.words import Finding

    share = overhead_share(recording)
    if share is None or share < THRESHOLD:
        return []
    trace = recording.trace
    calls = trace.operator_calls_per_step if trace is not None else None
    evidence = [f"Python, dispatch and small operators take {share:.0%} of the profiled step."]
    if calls:
        evidence.append(f"{calls:.0f} operators run in each step.")
    return [
        Finding(
            check="python-overhead", share_of_step=share, evidence=evidence, severity="moderate"
        )
    ]


FIRES = [
    {
        "shares": {"cpu": 1.0},
        "trace": {
            "path": "t",
            "steps": 4,
            "step_s": 0.01,
            "python_s": 0.003,
            "small_operator_s": 0.004,
        },
    }
]
QUIET = [
    {
        "shares": {"cpu": 1.0},
        "trace": {
            "path": "t",
            "steps": 4,
            "step_s": 0.01,
            "python_s": 0.0003,
            "small_operator_s": 0.0004,
        },
    }
]
