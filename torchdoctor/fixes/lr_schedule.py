"""Let the learning rate rise and fall over the training.

What it does
------------
Nothing at run time. Where the program made no scheduler and the rate has not changed since the
optimizer was made, it gives a one-cycle schedule and says how to find its highest rate.

Why it helps
------------
It is about how many steps training needs, not about how long one takes: with a warm-up and a decay
the rate in between can be several times as high, and many models then need a fraction of the epochs
(super-convergence).

Risks
-----
The total number of steps must be known beforehand. A highest rate that is too high makes the loss
diverge: find it by a range test, raising the rate at each step until the loss stops falling, and
take a tenth of that.

Make it permanent
-----------------
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total)
    optimizer.step()
    scheduler.step()                               # after each batch

Sources
-------
- PyTorch documentation, OneCycleLR:
  https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html
- Smith and Topin, Super-Convergence:
  https://arxiv.org/abs/1708.07120
- Smith, Cyclical Learning Rates for Training Neural Networks (the range test):
  https://arxiv.org/abs/1506.01186
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

TREATS: tuple[str, ...] = ()
KEEPS_RESULTS = "changes training"
AIM = "training"
WHEN = "by hand"
UNTRIED = "what a schedule does shows over a whole training, not over a few steps."


def refuses(recording: Recording) -> str | None:
    """Why it is not advised."""
    optimizers = [x for x in recording.main.optimizers if x.steps]
    if not optimizers or any(x.lr is None or x.first_lr is None for x in optimizers):
        return "The learning rate is not known: no torch optimizer stepped."
    if recording.main.flags.schedulers:
        return "The program makes a learning-rate scheduler."
    if any(x.lr != x.first_lr for x in optimizers):
        return "The program changes the learning rate by itself."
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [{}]


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The scheduler for the program's own optimizer."""
    from torchdoctor.records.lookup import place

    one = next(x for x in recording.main.optimizers if x.steps)
    where = place(recording, one.location, "after the optimizer")
    return (
        f"# no scheduler, and the rate stayed at {one.lr:g} over {one.steps} steps\n"
        f"{where}  scheduler = torch.optim.lr_scheduler.OneCycleLR(\n"
        f"    optimizer, max_lr={10 * (one.lr or 0.0):g}, total_steps=...)  # then a range test\n"
        "scheduler.step()  # after each optimizer.step()"
    )


_SGD = {"ident": 0, "cls": "torch.optim.sgd.SGD", "lr": 0.01, "first_lr": 0.01, "steps": 60}
OFFERS: list[tuple[dict[str, Any], str]] = [
    ({"processes": [{"pid": 1, "optimizers": [_SGD]}]}, "max_lr=0.1"),
]
REFUSES: list[tuple[dict[str, Any], str]] = [
    ({}, "not known"),
    ({"processes": [{"pid": 1, "optimizers": [{**_SGD, "lr": 0.02}]}]}, "by itself"),
    (
        {"processes": [{"pid": 1, "optimizers": [_SGD], "flags": {"schedulers": 1}}]},
        "makes a learning-rate scheduler",
    ),
]
