"""AdamW instead of Adam with weight decay.

What it does
------------
Nothing at run time. Where torch.optim.Adam has a weight decay, it gives the class to use.

Why it helps
------------
Adam adds its weight decay to the gradient, and then divides both by the gradient's own scale:
weights with large gradients hardly decay. AdamW takes the decay off the weights themselves. Models
usually generalise better with it, and the decay can be tuned apart from the rate.

Risks
-----
The best weight decay is another one, usually larger (0.01 to 0.1). The step takes the same time.

Make it permanent
-----------------
    optimizer = torch.optim.AdamW(..., weight_decay=0.01)

Sources
-------
- PyTorch documentation, AdamW:
  https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
- Loshchilov and Hutter, Decoupled Weight Decay Regularization:
  https://arxiv.org/abs/1711.05101
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

TREATS: tuple[str, ...] = ()
KEEPS_RESULTS = "changes training"
AIM = "training"
WHEN = "by hand"
UNTRIED = "what the decay does shows over a whole training, not over a few steps."


def refuses(recording: Recording) -> str | None:
    """Why it is not advised."""
    adams = [x for x in recording.main.optimizers if x.cls.rpartition(".")[2] == "Adam"]
    if not adams:
        return "The program does not use Adam."
    if not any(x.weight_decay for x in adams):
        return "Adam has no weight decay, and is the same as AdamW without one."
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [{}]


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The class, and where."""
    from torchdoctor.records.lookup import place

    adams = [x for x in recording.main.optimizers if x.cls.rpartition(".")[2] == "Adam"]
    one = next(x for x in adams if x.weight_decay)
    where = place(recording, one.location, "the optimizer")
    return f"{where}  torch.optim.AdamW(...)  # weight_decay is {one.weight_decay:g} now: tune it"


_ADAM = {"ident": 0, "cls": "torch.optim.adam.Adam", "steps": 60}
OFFERS: list[tuple[dict[str, Any], str]] = [
    (
        {"processes": [{"pid": 1, "optimizers": [{**_ADAM, "weight_decay": 0.01}]}]},
        "torch.optim.AdamW(...)",
    ),
]
REFUSES: list[tuple[dict[str, Any], str]] = [
    ({}, "does not use Adam"),
    ({"processes": [{"pid": 1, "optimizers": [_ADAM]}]}, "no weight decay"),
]
