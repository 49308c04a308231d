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

from collections.abc import Iterator

from torchdoctor.facts.lookup import overhead_share
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.3


def _examine(recording: Recording) -> Iterator[Symptom]:
    share = overhead_share(recording)
    if share is None or share < THRESHOLD:
        return
    trace = recording.trace
    calls = trace.operator_calls_per_step if trace is not None else None
    evidence = [f"Python, dispatch and small operators take {share:.0%} of the profiled step."]
    if calls:
        evidence.append(f"{calls:.0f} operators run in each step.")
    yield Symptom(share=share, evidence=evidence, severity="moderate")


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor; XProf marks launching from 3 % of the step on, as high from 15 %",
    examine=_examine,
    fires=[
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
    ],
    quiet=[
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
    ],
)
