"""The training loop without waits for values: `.item()` and its like answer at once.

`.item()`, `float(tensor)`, `bool(tensor)`, `.cpu()` and `.tolist()` give, at each place in the
loop, what the same call gave an iteration before, so that the program decides as it did then; and
`synchronize()` returns at once. On a GPU only what waits for it is answered; on a CPU the values
are there, and what the calls themselves cost is taken away.
"""

from typing import Any

from torchdoctor.schema import AblationSpec, Recording, Settings

_MANY = 8.0  # values read in a step, on a CPU
_READING = "aten::item"
_SCALARS = ("item", "__float__", "__int__", "__bool__")
_COPIES = ("tolist", "cpu")


def share(recording: Recording) -> float | None:
    """Return the wait for the GPU; on a CPU the time of reading values, by the trace."""
    trace = recording.trace
    if trace is None or not trace.step_s:
        return None
    if not recording.has_gpu:
        read = [
            operator
            for operator in trace.operators
            if "item" in operator.name or "local_scalar" in operator.name
        ]
        return min(sum(operator.self_s for operator in read) / trace.step_s, 1.0)
    if trace.sync_s is None:
        return None
    idle = sum(part or 0.0 for part in (trace.shares.cpu, trace.shares.runtime, trace.shares.other))
    return min(trace.sync_s / trace.step_s, idle)


def settings(recording: Recording) -> Settings | None:
    trace = recording.trace
    if trace is None:
        return None
    if recording.has_gpu:
        waits = any(call.kind == "wait" for call in recording.main.tensor_calls)
        return {"on_gpu": True} if waits or (trace.syncs_per_step or 0.0) >= 1.0 else None
    reads = sum(
        operator.calls_per_step for operator in trace.operators if operator.name == _READING
    )
    return {"on_gpu": False} if reads >= _MANY else None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    on_gpu = settings["on_gpu"]

    def of_value(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        return None if on_gpu and args[0].device.type == "cpu" else ()

    def of_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        tensor = args[0]
        # What a gradient flows back through must be this step's own.
        if tensor.device.type == "cpu" or (tensor.requires_grad and torch.is_grad_enabled()):
            return None
        return (tuple(tensor.shape), tensor.dtype)

    def of_move(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        device, dtype = calls.moved_to(args, kwargs)
        if device is None or device.type != "cpu":
            return None
        kept = of_copy(args, kwargs)
        return None if kept is None else (*kept, dtype)

    program.set_reason("no-value-read-twice")
    program.restore_training()
    calls = program.answered_calls()
    for name in _SCALARS:
        calls.of(torch.Tensor, name, of_value)
    for name in _COPIES:
        calls.of(torch.Tensor, name, of_copy)
    calls.of(torch.Tensor, "to", of_move)
    module = program.accelerator.module
    owners = module, getattr(module, "Stream", None), getattr(module, "Event", None)
    for owner in filter(None, owners if on_gpu else ()):
        calls.of(owner, "synchronize", lambda args, kwargs: ())


ABLATION = AblationSpec(
    whole=False,  # of what the host does, it is the waiting alone
    removes="waits for values (.item() and the like)",
    branch="cpu",
    share=share,
    settings=settings,
    apply=apply,
    sentences={
        "no-value-read-twice": "The loop read no value twice at the same place.",
    },
)
