"""The step is arithmetic: large operators take most of it.

## What it means
The hardware computes most of the time. Nothing waits; faster arithmetic (lower precision,
better memory layout, a compiler, better hardware) is what is left.

## How it is measured
With a GPU, the check takes the share of the step in which kernels run. Without one, it takes the
host's time in operators of at least 50 microseconds of their own, from the profiler's trace.

## Not to be confused with
Many small operators, whose dispatch costs more than their arithmetic.
"""

from torchdoctor.facts.lookup import compute_share
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, TraceStatistics, trace


def _examine(recording: Recording) -> Symptoms:
    share = compute_share(recording)
    if share is None or share < CHECK.threshold:
        return
    evidence = [f"Large operators take {share:.0%} of each step."]
    if recording.trace is not None and (names := _most_expensive(recording.trace)):
        evidence.append(f"The most expensive: {', '.join(names[:3])}.")
    yield Symptom(share=share, evidence=evidence, severity="moderate")


def _most_expensive(traced: TraceStatistics) -> list[str]:
    """Return operators by the time that computes: on a GPU, waiting for it is not their cost."""
    if not traced.has_device:
        return [operator.name for operator in traced.operators]
    busy = [operator for operator in traced.operators if operator.device_s]
    busy.sort(key=lambda operator: operator.device_s or 0.0, reverse=True)
    return [operator.name for operator in busy]


CHECK = CheckSpec(
    branch="gpu",
    threshold=0.5,
    unit="% of the step in large operators",
    source="torchdoctor: more than half of the step",
    examine=_examine,
    fires=[{"shares": {"cpu": 1.0}, **trace(compute_s=0.09)}, {"shares": {"gpu": 0.9, "cpu": 0.1}}],
    quiet=[{"shares": {"cpu": 1.0}, **trace(compute_s=0.02)}],
)
