"""Where the step's time goes, branch by branch: from the trace and the step log together."""

from __future__ import annotations

from dataclasses import asdict, replace

from torchdoctor.facts.lookup import unlike_profiled
from torchdoctor.facts.stacks import inline_preparation
from torchdoctor.words import Recording, Shares, StepStatistics, TraceStatistics
from torchdoctor.words.figures import percent, seconds

_DISAGREE = 0.10
_WORTH_COUNTING = 0.01


def shares(
    steps: StepStatistics | None,
    trace: TraceStatistics | None,
    unseen_forward: float = 0.0,
    outside: float = 0.0,
) -> Shares:
    """Return where the step's time goes: from the trace on a GPU, else from the step log.

    A profiled step is longer than a real one, which shifts what kernels hide of the loader's wait:
    if the trace's data loader share differs by over ten points from the step log's, the log's is
    taken. `unseen_forward` and `outside` are shares by samples of stacks: of forwards and losses
    that no phase holds, and of the program's own work.
    """
    if trace is not None and trace.has_device:
        logged = _logged_wait(steps, trace)
        if logged is None or abs(logged - (trace.shares.data_loader or 0.0)) <= _DISAGREE:
            return trace.shares
        return _with_data_share(trace.shares, logged)
    if steps is None:
        return trace.shares if trace is not None else Shares()
    if steps.mean_s <= 0:
        return Shares()
    return _host_shares(steps, trace, unseen_forward, outside)


def share_doubts(steps: StepStatistics | None, trace: TraceStatistics | None) -> list[str]:
    """Return a sentence if the profiled steps are unlike the real ones."""
    if steps is not None and trace is not None and unlike_profiled(steps, trace):
        return [_of_other_conditions(steps, trace)]
    if trace is None or not trace.has_device:
        return []
    logged, traced = _logged_wait(steps, trace), trace.shares.data_loader or 0.0
    if logged is None or abs(logged - traced) <= _DISAGREE:
        return []
    return [
        f"The profiled steps waited for data {traced:.0%} of their time, the unprofiled ones "
        f"{logged:.0%}: the profiler shifts it, so the share of the unprofiled ones is shown."
    ]


def _of_other_conditions(steps: StepStatistics, trace: TraceStatistics) -> str:
    text = f"Profiled steps took {seconds(trace.step_s)}, real ones {seconds(steps.mean_s)}"
    real = percent(steps.data_wait_s / steps.mean_s)
    traced = real if trace.shares.data_loader is None else percent(trace.shares.data_loader)
    if traced != real:
        text += f", and waited for data {traced} of them instead of {real}"
    return f"{text}: shares by operator and what-ifs by replay are of other conditions."


def with_inline_preparation(recording: Recording) -> Recording:
    """Count batch preparation outside a DataLoader as data loader time.

    It is host time outside any phase, so it is taken from "other" and then from what the trace
    saw of it in operators. On a GPU only what no kernel hides counts.
    """
    preparation = inline_preparation(recording)
    known = recording.shares
    if preparation is None or preparation.share < _WORTH_COUNTING or known.data_loader is None:
        return recording
    cpu, other = known.cpu or 0.0, known.other or 0.0
    moved = min(preparation.share, cpu + other)
    left = max(other - moved, 0.0)
    changed = replace(
        known,
        data_loader=known.data_loader + moved,
        other=left,
        cpu=max(cpu - (moved - (other - left)), 0.0),
    )
    return replace(recording, shares=changed)


def _logged_wait(steps: StepStatistics | None, trace: TraceStatistics) -> float | None:
    """Return the share of the real step that waits for data and that no device work can hide.

    The step log alone gives an upper bound, because the host also waits while kernels that were
    launched before still run; what the device does in a step takes as long without a profiler.
    """
    if steps is None or steps.mean_s <= 0 or not trace.step_s or trace.shares.gpu is None:
        return None
    on_device = ("gpu", "communication", "memcpy", "memset")
    device_s = trace.step_s * sum(getattr(trace.shares, name) or 0.0 for name in on_device)
    return min(steps.data_wait_s, max(steps.mean_s - device_s, 0.0)) / steps.mean_s


def _with_data_share(known: Shares, data: float) -> Shares:
    """Return `known` with another data loader share; the others keep their proportions."""
    rest = 1.0 - (known.data_loader or 0.0)
    scale = (1.0 - data) / rest if rest > 0 else 0.0
    scaled = {name: value * scale for name, value in asdict(known).items() if value is not None}
    return Shares(**{**scaled, "data_loader": data})


def _host_shares(
    steps: StepStatistics, trace: TraceStatistics | None, unseen_forward: float, outside: float
) -> Shares:
    """Return the shares without a GPU: the log's phases, and operators outside of them."""
    data = min(max(steps.data_wait_s / steps.mean_s, 0.0), 1.0)
    computing = (steps.forward_s + steps.backward_s + steps.optimizer_s) / steps.mean_s
    computing += min(unseen_forward, steps.other_s / steps.mean_s)
    communication = None
    if trace is not None:
        # Losses, updates by hand and models without modules run in operators outside any phase.
        if trace.step_s and trace.compute_s is not None and trace.small_operator_s is not None:
            # Where steps come in two kinds, the few profiled ones may all be of one.
            step_s = max(trace.step_s, steps.mean_s) if steps.two_modes else trace.step_s
            operators = (trace.compute_s + trace.small_operator_s) / step_s
            computing = max(computing, min(operators, 1.0 - outside))
        communication = trace.shares.communication
    computing = min(computing, 1.0 - data)
    waiting = min(communication or 0.0, computing)
    return Shares(
        data_loader=data,
        communication=waiting if communication is not None else None,
        cpu=computing - waiting,
        other=max(1.0 - data - computing, 0.0),
    )
