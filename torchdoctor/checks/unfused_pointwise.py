"""Pointwise kernels run one after the other, each through memory.

## What it means
Adding, scaling, activations and casts read and write all of their data and compute next to nothing.
A chain of them moves the same data through memory again and again. A compiler makes one kernel of
the chain, which moves the data once.

## How it is measured
The check looks for runs of two and more pointwise kernels on a stream with no other kernel or copy
between them, and counts the time in which nothing else runs on the GPU. An optimizer's kernels are
left out. "At most" counts one kernel as long as the longest of each chain.

## Not to be confused with
Many small kernels, whose launch costs the host more than they cost the GPU; optimizers that update
tensor by tensor (fused and foreach are their fix).
"""

from typing import Any

from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    PointwiseChain,
    Recording,
    Symptom,
    Symptoms,
    fact,
    trace,
)


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    chains = traced.pointwise if traced is not None else None
    if traced is None or chains is None or not traced.step_s:
        return
    share = min(chains.device_s / traced.step_s, 1.0)
    if share < CHECK.threshold:
        return
    yield Symptom(
        share=share,
        evidence=[
            fact(
                "chains",
                share=share,
                kernels=chains.kernels,
                chains=chains.chains,
                saved=min(chains.saved_s / traced.step_s, 1.0),
            ),
            *(_described(chain, traced.step_s) for chain in chains.costliest[:1]),
        ],
        location=next((chain.location for chain in chains.costliest if chain.location), None),
        severity="moderate" if share >= 0.2 else "advice",
    )


def _described(chain: PointwiseChain, step_s: float) -> Evidence:
    more = chain.kernels - len(chain.operators)
    return fact(
        "costliest",
        share=chain.device_s / step_s,
        times=chain.times_per_step,
        operators=chain.operators,
        more=more if more > 0 else None,
    )


def _chains(device_s: float) -> dict[str, Any]:
    chain = {
        "operators": ["aten::mul", "aten::add", "aten::tanh"],
        "kernels": 3,
        "times_per_step": 12.0,
        "device_s": device_s,
        "location": {"file": "model.py", "line": 12},
    }
    total = {"chains": 12.0, "kernels": 36.0, "device_s": device_s, "saved_s": device_s / 2}
    return trace(has_device=True, pointwise={**total, "costliest": [chain]})


CHECK = CheckSpec(
    branch="gpu",
    threshold=0.10,
    unit="% of the step",
    source="torchdoctor: compiling does not pay for less",
    sentences={
        "chains": "{kernels:.0f} pointwise kernels in {chains:.0f} chains take {share:.0%} of "
        "{the_step} with the {device} to themselves; fused, they would take at most {saved:.0%} "
        "of it less.",
        "costliest": "The costliest chain, {times:.0f} times {a_step} and {share:.0%} of it: "
        "{operators:list}[ and {more} more].",
    },
    examine=_examine,
    fires=[_chains(0.03), _chains(0.012)],
    quiet=[_chains(0.005)],
)
