"""The step is arithmetic: large operators take most of it.

## What it means
Nothing waits: faster arithmetic (lower precision, layout, a compiler, hardware) is what is left.

## How it is measured
With a GPU, the check takes the share of the step in which kernels run. Without one, it takes the
host's time in operators of at least 50 microseconds of their own, from the profiler's trace.

## Not to be confused with
Many small operators, whose dispatch costs more than their arithmetic.
"""

from torchdoctor.facts.lookup import compute_share
from torchdoctor.facts.stacks import forward_line
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, TraceStatistics, trace


def _examine(recording: Recording) -> Symptoms:
    share = compute_share(recording)
    if share is None or share < CHECK.threshold:
        return
    traced = recording.trace
    evidence = _kernels(traced) if traced is not None else []
    if not evidence and recording.has_gpu:  # what the host's operators take may be waiting
        evidence = [f"The GPU computes {share:.0%} of each step; no trace shows its kernels."]
    if not evidence:
        evidence = [f"Large operators take {share:.0%} of each step."]
        if traced is not None and traced.operators and not traced.has_device:
            names = [operator.name for operator in traced.operators[:3]]
            evidence.append(f"The most expensive: {', '.join(names)}.")
    line = None if recording.has_gpu else forward_line(recording)
    yield Symptom(share=share, evidence=evidence, location=line, severity="moderate")


def _kernels(traced: TraceStatistics) -> list[str]:
    """Return the kernels that take most, and how far the largest product is from its limit."""
    if not traced.kernels or not traced.step_s:
        return []
    longest = (f"{x.name} ({x.device_s / traced.step_s:.0%})" for x in traced.kernels[:3])
    evidence = [f"The longest kernels of each step: {', '.join(longest)}."]
    products = traced.matrix_work.products[:1] if traced.matrix_work else []
    evidence += [
        f"The largest product reaches {x.roofline_share:.0%} of its roofline, at "
        f"{x.flop_per_byte:,.0f} FLOP for each byte: {x.operator} of {x.sizes}."
        for x in products
        if x.flop_per_byte and x.roofline_share
    ]
    return evidence


CHECK = CheckSpec(
    branch="gpu",
    threshold=0.5,
    unit="% of the step in large operators",
    source="torchdoctor: more than half of the step",
    examine=_examine,
    fires=[{"shares": {"cpu": 1.0}, **trace(compute_s=0.09)}, {"shares": {"gpu": 0.9, "cpu": 0.1}}],
    quiet=[{"shares": {"cpu": 1.0}, **trace(compute_s=0.02)}],
)
