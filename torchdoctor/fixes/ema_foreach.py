"""Average the weights of all layers at once.

What it does
------------
Nothing at run time. Where a torch.optim.swa_utils.AveragedModel was made with an averaging function
of its own (avg_fn), it gives the one that handles all tensors together.

Why it helps
------------
avg_fn is called for every parameter: a few small kernels for each, after every step. multi_avg_fn
updates all of them in a handful of kernels.

Risks
-----
The averages round differently in the last bit.

Make it permanent
-----------------
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

Sources
-------
- PyTorch documentation, torch.optim, "Weight Averaging (SWA and EMA)":
  https://docs.pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

TREATS: tuple[str, ...] = ()
KEEPS_RESULTS = "changes training"
AIM = "training"
WHEN = "by hand"
UNTRIED = "what the program's own averaging function computes is not known."


def refuses(recording: Recording) -> str | None:
    """Why it is not advised."""
    if not recording.main.flags.averaged_by_loop:
        return "No AveragedModel with an averaging function of the program's own was made."
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """It has no values to choose from."""
    return [{}]


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The call, and where."""
    from torchdoctor.records.lookup import place

    where = place(recording, recording.main.flags.averaged_location, "where it is made")
    return f"{where}  AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))"


OFFERS: list[tuple[dict[str, Any], str]] = [
    ({"processes": [{"pid": 1, "flags": {"averaged_by_loop": 1}}]}, "get_ema_multi_avg_fn"),
]
REFUSES: list[tuple[dict[str, Any], str]] = [({}, "No AveragedModel")]
