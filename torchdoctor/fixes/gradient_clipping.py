"""Clip the gradient's norm, where it spikes.

What it does
------------
Nothing at run time. Where the norms of the gradients at a few steps lie far apart, or are not
finite, and nothing clips them, it gives the call with a bound from those norms.

Why it helps
------------
One batch with a gradient many times as large as usual undoes what many steps learned, or makes the
loss NaN. A bound on the norm keeps its direction and limits its length.

Risks
-----
A bound that is too low slows learning. With a gradient scaler the gradients have to be unscaled
first. error_if_nonfinite waits for the GPU.

Make it permanent
-----------------
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)   # foreach by default on a GPU
    optimizer.step()

Sources
-------
- PyTorch documentation, clip_grad_norm_:
  https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- Pascanu et al., On the difficulty of training recurrent neural networks:
  https://arxiv.org/abs/1211.5063
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

TREATS: tuple[str, ...] = ()
KEEPS_RESULTS = "changes training"
AIM = "training"
WHEN = "by hand"
UNTRIED = "what it saves is a training that would have diverged, not time of a step."

_SPIKE = 10.0  # times the median norm
_FEWEST = 4


def refuses(recording: Recording) -> str | None:
    """Why it is not advised."""
    norms = recording.main.gradient_norms
    if recording.main.flags.clip_calls:
        return "The program clips its gradients."
    if len(norms) < _FEWEST:
        return "Too few norms of gradients were seen to tell a spike."
    if not _spikes(norms):
        return "The norms of the gradients lie together."
    return None


def _spikes(norms: list[float]) -> bool:
    finite = sorted(x for x in norms if x < float("inf"))
    if len(finite) < len(norms):
        return True
    return finite[-1] > _SPIKE * finite[len(finite) // 2]


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [{}]


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The call, with the norms that were seen."""
    finite = sorted(x for x in recording.main.gradient_norms if x < float("inf"))
    usual = finite[len(finite) // 2] if finite else 1.0
    seen = ", ".join(f"{norm:.2g}" for norm in recording.main.gradient_norms)
    return (
        f"# norms at consecutive steps: {seen}\n"
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={2 * usual:.2g})  "
        "# between backward and step"
    )


OFFERS: list[tuple[dict[str, Any], str]] = [
    ({"processes": [{"pid": 1, "gradient_norms": [1.0, 1.1, 0.9, 1.0, 50.0]}]}, "max_norm=2)"),
]
REFUSES: list[tuple[dict[str, Any], str]] = [
    ({}, "Too few"),
    ({"processes": [{"pid": 1, "gradient_norms": [1.0, 1.1, 0.9, 1.0, 2.0]}]}, "together"),
    ({"processes": [{"pid": 1, "flags": {"clip_calls": 9}}]}, "clips"),
]
