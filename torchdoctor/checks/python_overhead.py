"""Python and dispatch take much of the step.

## What it means
With many small operators, Python and torch's dispatcher take longer than their arithmetic.

## How it is measured
The profiler's trace gives the host's time outside any operator, in stretches under half a
millisecond, and the time inside operators under 50 microseconds. The profiler itself makes both
longer, so the sum is an upper bound.

## Not to be confused with
Waiting for data, which is counted elsewhere; longer stretches without any operator, in which the
program does something of its own or sleeps (outside-operators, work-outside-model).
"""

from torchdoctor.queries.lookup import overhead_share
from torchdoctor.queries.stacks import forward_line
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, trace


def _examine(recording: Recording) -> Symptoms:
    share = overhead_share(recording)
    traced = recording.trace
    if share is None or share < CHECK.threshold:
        return
    evidence = [fact("overhead", share=share)]
    if traced is not None and traced.operator_calls_per_step:
        evidence.append(fact("operators", operators=traced.operator_calls_per_step))
    line = forward_line(recording)
    yield Symptom(share=share, evidence=evidence, location=line, severity="moderate")


_CPU = {"shares": {"cpu": 1.0}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.3,
    unit="% of the step",
    source="torchdoctor; XProf marks launching from 3 % of the step on, as high from 15 %",
    sentences={
        "overhead": "Operators under 50 us and Python between them take {share:.0%} of "
        "{profiled_step}.",
        "operators": "{operators:.0f} operators run in {each_step}.",
    },
    examine=_examine,
    fires=[{**_CPU, **trace(python_s=0.03, small_operator_s=0.04)}],
    quiet=[{**_CPU, **trace(python_s=0.003, small_operator_s=0.004)}],
)
