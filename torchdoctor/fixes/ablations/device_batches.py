"""The training loop without copies to the device: each is answered with a tensor that is there.

`Tensor.to` and `Tensor.cuda` of a tensor on the host give, at each place in the loop, what the same
call gave an iteration before. The loader goes on as ever.
"""

from typing import Any

from torchdoctor.queries.lookup import phase_share
from torchdoctor.schema import AblationSpec, Recording, Settings

_LEAST_SHARE = 0.02  # of the step
_TO_HOST = 0.1  # of the bytes copied: with more, copies to the device are a part of the branch


def whole(recording: Recording) -> bool:
    """Return True if next to nothing is copied to the host, which counts as copies too."""
    trace = recording.trace
    if trace is None or not trace.d2h_bytes:
        return True
    return trace.d2h_bytes <= _TO_HOST * (trace.d2h_bytes + (trace.h2d_bytes or 0))


def share(recording: Recording) -> float | None:
    copy_share = recording.shares.memcpy
    return phase_share(recording, "h2d_copy_s") if copy_share is None else copy_share


def settings(recording: Recording) -> Settings | None:
    """Return None on the CPU, and where copies are no question."""
    return {} if recording.has_gpu and (share(recording) or 0.0) >= _LEAST_SHARE else None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def describe(tensor: Any, device: Any, *more: Any) -> tuple[Any, ...] | None:
        if device is None or device.type == "cpu" or tensor.device.type != "cpu":
            return None
        if tensor.requires_grad and torch.is_grad_enabled():
            return None
        return (tuple(tensor.shape), tensor.dtype, str(device), *more)

    def of_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        return describe(args[0], *calls.moved_to(args, kwargs))

    def of_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        device = kwargs.get("device", args[1] if len(args) > 1 else None)
        return describe(args[0], torch.device(kind if device is None else device))

    kind = program.accelerator.type
    program.set_reason("copies-nothing")
    program.restore_training()
    calls = program.answered_calls()
    calls.of(torch.Tensor, "to", of_to)
    calls.of(torch.Tensor, kind, of_type)


ABLATION = AblationSpec(
    whole=whole,
    removes="copies to the device",
    branch="memcpy",
    share=share,
    settings=settings,
    apply=apply,
    sentences={
        "copies-nothing": "The loop copies nothing to a device.",
    },
)
