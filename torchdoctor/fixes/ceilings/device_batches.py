"""The training loop without copies to the device: each is answered with a tensor that is there.

`Tensor.to` and `Tensor.cuda` of a tensor on the host give, at each place in the loop, what the same
call gave an iteration before. The loader goes on as ever.
"""

from __future__ import annotations

from typing import Any

from torchdoctor.words import Recording
from torchdoctor.words.specs import CeilingSpec

LEAST_SHARE = 0.02  # of the step
_TO_HOST = 0.1  # of the bytes copied: with more, copies to the device are a part of the branch


def whole(recording: Recording) -> bool:
    """Return True if next to nothing is copied to the host, which counts as copies too."""
    trace = recording.trace
    if trace is None or not trace.d2h_bytes:
        return True
    return trace.d2h_bytes <= _TO_HOST * (trace.d2h_bytes + (trace.h2d_bytes or 0))


def share(recording: Recording) -> float | None:
    """Return the share of copies that nothing hides."""
    steps, share_of_step = recording.steps, recording.shares.memcpy
    if share_of_step is None and steps is not None and steps.mean_s > 0:
        share_of_step = steps.h2d_copy_s / steps.mean_s
    return share_of_step


def settings(recording: Recording) -> dict[str, Any] | None:
    """Return None on the CPU, and where copies are no question."""
    if not recording.has_gpu or (share(recording) or 0.0) < LEAST_SHARE:
        return None
    return {}


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Answer copies to another device, of what no gradient flows through."""

    def describe(tensor: Any, device: Any, more: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if device is None or device.type == "cpu" or tensor.device.type != "cpu":
            return None
        if tensor.requires_grad and torch.is_grad_enabled():
            return None
        return (tuple(tensor.shape), tensor.dtype, str(device), *more)

    def of_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        tensor, *rest = args
        try:
            wanted = {k: v for k, v in kwargs.items() if k != "copy"}
            device, dtype, _, _ = torch._C._nn._parse_to(*rest, **wanted)
        except (TypeError, RuntimeError):
            return None  # no call of this kind, or the user's own mistake
        return describe(tensor, device, (dtype,))

    def of_cuda(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        which = kwargs.get("device", args[1] if len(args) > 1 else None)
        device = torch.device("cuda") if which is None else torch.device(which)
        return describe(args[0], device, ())

    program.set_reason("The loop copies nothing to a device.")
    program.restore_training()
    calls = program.answered_calls()
    calls.of(torch.Tensor, "to", of_to)
    calls.of(torch.Tensor, "cuda", of_cuda)


CEILING = CeilingSpec(
    file=__file__,
    page=__doc__,
    whole=whole,
    removes="copies to the device",
    branch="memcpy",
    share=share,
    settings=settings,
    apply=apply,
)
