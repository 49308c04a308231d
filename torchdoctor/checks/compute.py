"""The step is arithmetic: large operators take most of it.

## What it means
Nothing waits: faster arithmetic (lower precision, layout, a compiler, hardware) is what is left.

## How it is measured
With a GPU, the check takes the share of the step in which kernels run. Without one, it takes the
host's time in operators of at least 50 microseconds of their own, from the profiler's trace.

## Not to be confused with
Many small operators, whose dispatch costs more than their arithmetic.
"""

from torchdoctor.queries.lookup import compute_share
from torchdoctor.queries.stacks import forward_line
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    Recording,
    Symptom,
    Symptoms,
    TraceStatistics,
    fact,
    trace,
)


def _examine(recording: Recording) -> Symptoms:
    share = compute_share(recording)
    if share is None or share < CHECK.threshold:
        return
    traced = recording.trace
    evidence = _kernels(traced) if traced is not None else []
    if not evidence and recording.has_gpu:  # what the host's operators take may be waiting
        evidence = [fact("kernels-unseen", share=share)]
    if not evidence:
        evidence = [fact("large-operators", share=share)]
        if traced is not None and traced.operators and not traced.has_device:
            names = [operator.name for operator in traced.operators[:3]]
            evidence.append(fact("most-expensive", operators=names))
    line = None if recording.has_gpu else forward_line(recording)
    yield Symptom(share=share, evidence=evidence, location=line, severity="moderate")


def _kernels(traced: TraceStatistics) -> list[Evidence]:
    """Return the kernels that take most, and how far the largest product is from its limit."""
    if not traced.kernels or not traced.step_s:
        return []
    longest = [
        {"name": kernel.name, "of_step": kernel.device_s / traced.step_s}
        for kernel in traced.kernels[:3]
    ]
    evidence = [fact("longest-kernels", kernels=longest)]
    products = traced.matrix_work.products[:1] if traced.matrix_work else []
    evidence += [
        fact(
            "largest-product",
            roofline=product.roofline_share,
            flop_per_byte=product.flop_per_byte,
            operator=product.operator,
            sizes=product.sizes,
        )
        for product in products
        if product.flop_per_byte and product.roofline_share
    ]
    return evidence


CHECK = CheckSpec(
    branch="gpu",
    threshold=0.5,
    unit="% of the step in large operators",
    source="torchdoctor: more than half of the step",
    sentences={
        "kernels-unseen": "The {device} computes {share:.0%} of {each_step}; no trace shows its "
        "kernels.",
        "large-operators": "Large operators take {share:.0%} of {each_step}.",
        "most-expensive": "The most expensive: {operators:list}.",
        "longest-kernels": "The longest kernels of {each_step}: {kernels:each kernel}.",
        "kernel": "{name} ({of_step:.0%})",
        "largest-product": "The largest product reaches {roofline:.0%} of its roofline, at "
        "{flop_per_byte:,.0f} FLOP for each byte: {operator} of {sizes}.",
    },
    examine=_examine,
    fires=[{"shares": {"cpu": 1.0}, **trace(compute_s=0.09)}, {"shares": {"gpu": 0.9, "cpu": 0.1}}],
    quiet=[{"shares": {"cpu": 1.0}, **trace(compute_s=0.02)}],
)
