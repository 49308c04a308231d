"""Where the step's time goes, branch by branch: from the trace and the step log together."""

from dataclasses import asdict, replace

from torchdoctor.queries.lookup import reading_wait_s, training_wait_s, unlike_profiled
from torchdoctor.queries.stacks import inline_preparation
from torchdoctor.schema import (
    Evidence,
    Recording,
    SensorStatistics,
    Shares,
    StepStatistics,
    TraceStatistics,
    fact,
)
from torchdoctor.schema.figures import percent

_DISAGREE = 0.10
_WORTH_COUNTING = 0.01
_SURELY = 0.5  # of the step: of less, the rest may be the device's as well
_BY_CHANCE = 0.64  # of the 10th to the 90th percentile: how much longer 95 % of single steps are
_ON_DEVICE = ("gpu", "communication", "memcpy", "memset")


def shares(
    steps: StepStatistics | None,
    trace: TraceStatistics | None,
    unseen_forward: float = 0.0,
    outside: float = 0.0,
    device: SensorStatistics | None = None,
) -> Shares:
    """Return where the step's time goes: from the trace on a GPU, else from the step log.

    The profiler lengthens what the host does: the device's seconds are shares of the real step.
    `unseen_forward` and `outside` are shares by samples of stacks: of forwards and losses that no
    phase holds, and of the program's own work; `device` are the sensors where it has a GPU.
    """
    if trace is not None and trace.has_device:
        trace_shares = _unprofiled(steps, trace)
        # The few profiled steps hardly ever hold the end of an epoch.
        between = steps.between_epochs_s / steps.mean_s if steps and steps.mean_s > 0 else 0.0
        return (
            _corrected(trace_shares, other=between)
            if between > (trace_shares.other or 0.0)
            else trace_shares
        )
    if steps is None or steps.mean_s <= 0:
        return trace.shares if trace is not None and steps is None else Shares()
    if device is None:
        return _host_shares(steps, trace, unseen_forward, outside)
    host_shares = _host_shares(steps, trace, unseen_forward, outside)
    return _unseen_device(host_shares, steps, trace, device)


def _unseen_device(
    host_shares: Shares,
    steps: StepStatistics,
    trace: TraceStatistics | None,
    device: SensorStatistics,
) -> Shares:
    """Return the shares where no trace shows the device: only what it surely computes is its own.

    It computes while the host waits for a value, and where it came to events behind the host.
    """
    cpu = host_shares.cpu or 0.0
    rest = 1.0 - (host_shares.data_loader or 0.0)
    surely = (steps.device_busy_s or 0.0) / steps.mean_s
    if trace is not None and trace.step_s:
        surely = max(surely, reading_wait_s(trace) / max(trace.step_s, steps.mean_s))
    gpu = None if device.gpu_utilization is None else min(device.gpu_utilization, cpu)
    if surely >= _SURELY:
        gpu = max(gpu or 0.0, min(surely, rest))
    if gpu is None:
        return replace(
            host_shares, gpu=None, cpu=None, other=host_shares.other if steps.device_clock else None
        )
    cpu = max(cpu - gpu, 0.0)
    communication = host_shares.communication or 0.0
    return replace(host_shares, gpu=gpu, cpu=cpu, other=max(rest - communication - gpu - cpu, 0.0))


def _unprofiled(steps: StepStatistics | None, trace: TraceStatistics) -> Shares:
    """Return a trace's shares without the profiler; what is logged of waits is a bound."""
    trace_shares = trace.shares
    step_s = trace.step_s or 0.0
    if steps is None or steps.mean_s <= 0 or not step_s or trace_shares.gpu is None:
        return trace_shares
    device_s = {part: (getattr(trace_shares, part) or 0.0) * step_s for part in _ON_DEVICE}
    real_s = max(steps.mean_s, sum(device_s.values()))
    waited_s = (trace_shares.data_loader or 0.0) * step_s
    logged_s = min(training_wait_s(steps), real_s - sum(device_s.values()))
    measured: dict[str, float] = {}
    if step_s > steps.mean_s + _BY_CHANCE * (steps.p90_s - steps.p10_s) / (trace.steps or 1) ** 0.5:
        measured = {**device_s, "data_loader": min(logged_s, waited_s)}
    if abs(logged_s / real_s - waited_s / step_s) > _DISAGREE:
        measured["data_loader"] = logged_s
    return _corrected(
        trace_shares, **{part: spent_s / real_s for part, spent_s in measured.items()}
    )


def _corrected(uncorrected: Shares, **measured: float) -> Shares:
    """Return the shares with some as they were measured; the others keep their proportions."""
    unmeasured = {
        name: part for name, part in asdict(uncorrected).items() if part and name not in measured
    }
    scale = (1.0 - sum(measured.values())) / sum(unmeasured.values()) if unmeasured else 0.0
    return replace(
        uncorrected, **measured, **{name: part * scale for name, part in unmeasured.items()}
    )


def share_doubts(steps: StepStatistics | None, trace: TraceStatistics | None) -> list[Evidence]:
    """Return a doubt if the profiled steps are unlike the real ones."""
    if steps is None or trace is None or not unlike_profiled(steps, trace):
        return []
    real: float | None = steps.data_wait_s / steps.mean_s
    profiled = trace.shares.data_loader
    if profiled is None or percent(profiled) == percent(real):
        profiled = None
        real = None
    return [
        fact(
            "profiled-steps-differ",
            profiled_s=trace.step_s,
            real_s=steps.mean_s,
            profiled_wait=profiled,
            real_wait=real,
        )
    ]


def with_inline_preparation(recording: Recording) -> Recording:
    """Count batch preparation outside a DataLoader as data loader time, not as "other" or "cpu"."""
    preparation = inline_preparation(recording)
    recorded_shares = recording.shares
    if (
        preparation is None
        or preparation.share < _WORTH_COUNTING
        or recorded_shares.data_loader is None
    ):
        return recording
    cpu = recorded_shares.cpu or 0.0
    other = recorded_shares.other or 0.0
    moved = min(preparation.share, cpu + other)
    loading = recorded_shares.data_loader + moved
    left = max(other - moved, 0.0)
    working = None if recorded_shares.cpu is None else max(cpu + other - moved - left, 0.0)
    return replace(
        recording, shares=replace(recorded_shares, data_loader=loading, other=left, cpu=working)
    )


def _host_shares(
    steps: StepStatistics, trace: TraceStatistics | None, unseen_forward: float, outside: float
) -> Shares:
    """Return the shares without a GPU: the log's phases, and operators outside of them."""
    data = min(training_wait_s(steps) / steps.mean_s, 1.0)
    worked_s = steps.forward_s + steps.backward_s + steps.optimizer_s + steps.evaluation_wait_s
    computing = worked_s / steps.mean_s
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
    waiting = min(communication or 0.0, 1.0 - data)
    left = 1.0 - data - waiting
    # Collectives that are longer than what computes are called outside of it, by the loop itself.
    cpu = computing - waiting if waiting <= computing else min(computing, left)
    return Shares(
        data_loader=data,
        communication=waiting if communication is not None else None,
        cpu=cpu,
        other=max(left - cpu, 0.0),
    )
