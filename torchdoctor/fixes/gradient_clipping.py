"""Clip the gradient's norm, where it spikes.

## What it does
If the gradient norms at a few steps lie far apart or are not finite, and nothing clips them, the
fix gives the call with a bound: the 90th percentile of the norms that are no spikes.

## Why it helps
One batch with a gradient many times as large as usual undoes what many steps learned, or makes the
loss NaN. A bound on the norm keeps its direction and limits its length.

## Risks
A bound that is too low slows learning, and it is not known which models gain; recurrent networks
and transformers usually do. A spike may be rarer than a short run is long. With a gradient scaler
the gradients have to be unscaled first. error_if_nonfinite waits for the GPU.

## Make it permanent
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)   # foreach by default on a GPU
    optimizer.step()

## Sources
- Pascanu et al., Difficulty of training recurrent networks: https://arxiv.org/abs/1211.5063
"""

import math

from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, quantile
from torchdoctor.schema.specs import TrainingAdvice, process

_SPIKE = 10.0  # times the median norm
_FEWEST = 4
_PERCENTILE = 0.9  # of the norms that are no spikes


def refuses(recording: Recording) -> Evidence | None:
    norms = recording.main.gradient_norms
    if recording.main.flags.clip_calls:
        return fact("clips-already")
    if len(norms) < _FEWEST:
        return fact("too-few-norms")
    if len(_usual(norms)) == len(norms):
        return fact("no-spikes")
    return None


def _usual(norms: list[float]) -> list[float]:
    """Return the finite norms that are no spikes, ascending."""
    finite = sorted(norm for norm in norms if norm < math.inf)
    return [norm for norm in finite if norm <= _SPIKE * finite[len(finite) // 2]]


def instruction(settings: Settings, recording: Recording) -> str:
    norms = recording.main.gradient_norms
    bound = "1.0"
    usual = _usual(norms)
    listed = ", ".join(f"{norm:.2g}" for norm in norms)
    lines = [f"# norms at consecutive steps: {listed}"]
    if usual:
        median, bound = (f"{quantile(usual, share):.2g}" for share in (0.5, _PERCENTILE))
        lines.append(f"# without spikes: median {median}, 90th percentile {bound}")
    call = f"torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={bound})"
    return "\n".join([*lines, f"{call}  # between backward and step"])


FIX = FixSpec(
    name="gradient clipping",
    also_known_as=("foreach-clip",),
    keeps_results="changes training",
    untried="a short run does not show whether a model trains better.",
    refuses=refuses,
    sentences={
        "clips-already": "The program clips its gradients.",
        "too-few-norms": "Too few norms of gradients were seen to tell a spike.",
        "no-spikes": "The norms of the gradients lie together.",
    },
    instruction=instruction,
    training=TrainingAdvice(
        costs=(
            "it is not known which models gain by it; a bound that is too low slows learning, and "
            "what it prevents may be rarer than a short run is long."
        ),
    ),
    offers=[(process(gradient_norms=[1.0, 1.1, 0.9, 1.0, 50.0]), "max_norm=1.1)")],
    refusals=[
        ({}, "too-few-norms"),
        (process(gradient_norms=[1.0, 1.1, 0.9, 1.0, 2.0]), "no-spikes"),
        (process(flags={"clip_calls": 9}), "clips-already"),
    ],
)
