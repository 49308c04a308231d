"""Very many operators, each of them tiny.

What it means
-------------
Launching an operator costs the host several microseconds whatever its size. Hundreds of tiny
ones make a step of launches; a compiler fuses them into few.

How it is measured
------------------
On a GPU: most kernels take under 10 microseconds, and in over 30 % of the step no kernel runs
while the host launches or runs Python (blocked in a copy or a synchronisation does not count).
On the CPU: hundreds of operators a step whose median is under 50 microseconds and that
together take more time than the large ones. What an optimizer's loop over its tensors takes
is not counted: `single-tensor-optimizer` asks for that.

Not to be confused with
-----------------------
Python work between operators, which a compiler does not remove where it does not see it.
"""

from collections.abc import Iterator

from torchdoctor.facts.counts import counted
from torchdoctor.facts.lookup import overhead_share, updates_one_by_one
from torchdoctor.words import CheckSpec, Recording, Symptom, TraceStatistics

THRESHOLD = 0.5
LAUNCHING = 0.3


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    if trace is None or not trace.step_s:
        return
    if trace.has_device:
        short, busy = trace.short_kernels_share, trace.gpu_busy_share
        if short is None or busy is None or short < THRESHOLD or busy > 0.5:
            return
        share = _launching_share(trace)
        if share < LAUNCHING:
            return
        evidence = [
            f"{counted(trace.kernels_per_step or 0, 'kernel')} a step, {short:.0%} of them under "
            f"10 us, and the GPU is busy {busy:.0%} of the step."
        ]
    else:
        overhead = overhead_share(recording)
        if overhead is not None:
            overhead -= _optimizer_loop_share(recording)
        median, calls = trace.operator_median_us, trace.operator_calls_per_step
        if overhead is None or overhead < THRESHOLD or median is None or calls is None:
            return
        if median > 50.0 or calls < 300:
            return
        share = overhead
        evidence = [
            f"{calls:.0f} operators a step with a median of {median:.0f} us; they and what is "
            f"around them take {share:.0%} of the profiled step."
        ]
    yield Symptom(
        share=share,
        evidence=evidence,
        severity="high",
    )


def _optimizer_loop_share(recording: Recording) -> float:
    """Share of the step in optimizers that update tensor by tensor: a finding of its own."""
    steps, optimizers = recording.steps, recording.main.optimizers
    if steps is None or steps.mean_s <= 0 or not any(map(updates_one_by_one, optimizers)):
        return 0.0
    return steps.optimizer_s / steps.mean_s


def _launching_share(trace: TraceStatistics) -> float:
    """Share of the step in which the host launches or runs Python, and no kernel runs.

    What it spends blocked in copies and synchronisation is left out, and so is more driver time
    than the operators and Python around it take: those calls allocate or load, they do not launch.
    """
    shares, step_s = trace.shares, trace.step_s or 1.0
    host = (shares.cpu or 0.0) + (shares.other or 0.0)
    blocked = ((trace.blocking_copy_s or 0.0) + (trace.sync_s or 0.0)) / step_s
    return host + min(max((shares.runtime or 0.0) - blocked, 0.0), host)


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the kernels under 10 us; without a GPU, of the step around operators",
    source="torchdoctor; XProf marks launching from 3 % of the step on, as high from 15 %",
    examine=_examine,
    fires=[
        {
            "trace": {
                "path": "t",
                "steps": 4,
                "step_s": 0.01,
                "python_s": 0.003,
                "small_operator_s": 0.006,
                "operator_median_us": 6.0,
                "operator_calls_per_step": 900.0,
            }
        },
        {
            "trace": {
                "path": "t",
                "steps": 4,
                "step_s": 0.01,
                "has_device": True,
                "short_kernels_share": 0.9,
                "gpu_busy_share": 0.1,
                "kernels_per_step": 800.0,
                "shares": {"gpu": 0.1, "cpu": 0.5, "runtime": 0.2, "other": 0.2},
            }
        },
    ],
    quiet=[
        {
            # Blocked in copies: the GPU is idle, but not for want of launches.
            "trace": {
                "path": "t",
                "steps": 4,
                "step_s": 0.01,
                "has_device": True,
                "short_kernels_share": 0.6,
                "gpu_busy_share": 0.3,
                "blocking_copy_s": 0.006,
                "shares": {"gpu": 0.3, "cpu": 0.1, "runtime": 0.55, "other": 0.05},
            }
        },
        {
            "trace": {
                "path": "t",
                "steps": 4,
                "step_s": 0.01,
                "python_s": 0.001,
                "small_operator_s": 0.001,
                "operator_median_us": 400.0,
                "operator_calls_per_step": 60.0,
            }
        },
    ],
)
