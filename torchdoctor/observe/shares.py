"""Where the step's time goes, branch by branch: from the trace and the step log together."""

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

    A profiled step is longer, which shifts what kernels hide of the loader's wait: if the two
    disagree by over ten points, the log's is taken. `unseen_forward` and `outside` are shares by
    samples of stacks: of forwards and losses that no phase holds, and of the program's own work.
    """
    if trace is not None and trace.has_device:
        logged, known = _logged_wait(steps, trace), trace.shares
        if logged is not None and not _agree(logged, trace):
            known = _corrected(known, "data_loader", logged)
        # The few profiled steps hardly ever hold the end of an epoch.
        between = steps.between_epochs_s / steps.mean_s if steps and steps.mean_s > 0 else 0.0
        return _corrected(known, "other", between) if between > (known.other or 0.0) else known
    if steps is None:
        return trace.shares if trace is not None else Shares()
    if steps.mean_s <= 0:
        return Shares()
    return _host_shares(steps, trace, unseen_forward, outside)


def _corrected(known: Shares, name: str, share: float) -> Shares:
    """Return the shares with one as it was measured; the others keep their proportions."""
    before, rest = asdict(known), 1.0 - (getattr(known, name) or 0.0)
    scale = (1.0 - share) / rest if rest > 0 else 0.0
    scaled = {x: part * scale for x, part in before.items() if part is not None}
    return Shares(**(scaled | {name: share}))


def share_doubts(steps: StepStatistics | None, trace: TraceStatistics | None) -> list[str]:
    """Return a sentence if the profiled steps are unlike the real ones."""
    if steps is not None and trace is not None and unlike_profiled(steps, trace):
        text = f"Profiled steps took {seconds(trace.step_s)}, real ones {seconds(steps.mean_s)}"
        real = percent(steps.data_wait_s / steps.mean_s)
        profiled = real if trace.shares.data_loader is None else percent(trace.shares.data_loader)
        if profiled != real:
            text += f", and waited for data {profiled} of them instead of {real}"
        return [f"{text}: shares by operator and what-ifs by replay are of other conditions."]
    logged = _logged_wait(steps, trace)
    if trace is None or logged is None or _agree(logged, trace):
        return []
    return [
        f"The profiled steps waited for data {trace.shares.data_loader or 0.0:.0%} of their time, "
        f"the unprofiled ones {logged:.0%}: the profiler shifts it, so the share of the unprofiled "
        "ones is shown."
    ]


def with_inline_preparation(recording: Recording) -> Recording:
    """Count batch preparation outside a DataLoader as data loader time, not as "other" or "cpu"."""
    preparation = inline_preparation(recording)
    known = recording.shares
    if preparation is None or preparation.share < _WORTH_COUNTING or known.data_loader is None:
        return recording
    cpu, other = known.cpu or 0.0, known.other or 0.0
    moved = min(preparation.share, cpu + other)
    loading, left = known.data_loader + moved, max(other - moved, 0.0)
    working = max(cpu + other - moved - left, 0.0)
    changed = replace(known, data_loader=loading, other=left, cpu=working)
    return replace(recording, shares=changed)


def _logged_wait(steps: StepStatistics | None, trace: TraceStatistics | None) -> float | None:
    """Return the share of the real step that waits for data and that no device work can hide.

    The step log alone gives an upper bound, because the host also waits while kernels that were
    launched before still run; what the device does in a step takes as long without a profiler.
    """
    if steps is None or trace is None or not trace.has_device:
        return None
    known = trace.shares
    if steps.mean_s <= 0 or not trace.step_s or known.gpu is None:
        return None
    on_device = (known.gpu, known.communication, known.memcpy, known.memset)
    device_s = trace.step_s * sum(share or 0.0 for share in on_device)
    waited_s = steps.data_wait_s - steps.evaluation_wait_s
    return min(waited_s, max(steps.mean_s - device_s, 0.0)) / steps.mean_s


def _agree(logged: float, trace: TraceStatistics) -> bool:
    return abs(logged - (trace.shares.data_loader or 0.0)) <= _DISAGREE


def _host_shares(
    steps: StepStatistics, trace: TraceStatistics | None, unseen_forward: float, outside: float
) -> Shares:
    """Return the shares without a GPU: the log's phases, and operators outside of them."""
    # What evaluation waits for its loader is a part of evaluation: training does not wait for it.
    data = min(max((steps.data_wait_s - steps.evaluation_wait_s) / steps.mean_s, 0.0), 1.0)
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
    waiting = min(communication or 0.0, computing)
    return Shares(
        data_loader=data,
        communication=waiting if communication is not None else None,
        cpu=computing - waiting,
        other=max(1.0 - data - computing, 0.0),
    )
