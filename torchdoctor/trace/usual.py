"""What of a window is no part of a usual step, and the recording without it."""

from dataclasses import asdict, replace

from torchdoctor.words import Recording, Shares, TraceStatistics
from torchdoctor.words.figures import seconds

_UNUSUAL = 0.2  # of the step: less changes no answer


def unusual_part(trace: TraceStatistics) -> tuple[float, str]:
    """Return the seconds of each step that no usual step has, if they are many, and why."""
    step_s = trace.step_s or 0.0
    waited_s, loading_s = trace.earlier_work_s or 0.0, trace.code_loading_s or 0.0
    if waited_s > _UNUSUAL * step_s:
        why = (
            f"The window begins in the middle of earlier work: {trace.earlier_work_call} waits "
            f"{seconds(waited_s)} ({waited_s / step_s:.0%} of what was recorded) for what was "
            "launched before, which the trace does not show."
        )
        return waited_s, why
    if loading_s > _UNUSUAL * step_s:
        why = (
            f"The GPU's start-up lies in the window: {trace.code_loading_call} holds the host "
            f"{seconds(loading_s)} ({loading_s / step_s:.0%} of each step) while the GPU does "
            "nothing, as when code is loaded."
        )
        return loading_s, why
    return 0.0, ""


def usual_part(recording: Recording, trace: TraceStatistics, lost_s: float) -> Recording:
    """Return the recording without the driver calls of its unusual part."""
    if not lost_s or not trace.step_s:
        return recording
    rest_s = max(trace.step_s - lost_s, 1e-9)

    def left(held_s: float | None) -> float | None:
        return held_s and max(held_s - lost_s, 0.0)

    rest = replace(
        trace,
        step_s=rest_s,
        blocking_copy_s=left(trace.blocking_copy_s),
        blocking_copy_exposed_s=left(trace.blocking_copy_exposed_s),
        d2h_wait_s=left(trace.d2h_wait_s),
        pageable_wait_s=left(trace.pageable_wait_s),
        sync_s=left(trace.sync_s),
    )
    scale = trace.step_s / rest_s
    driver = max((trace.shares.runtime or 0.0) - lost_s / trace.step_s, 0.0)
    shares = asdict(replace(trace.shares, runtime=driver))
    return replace(
        recording,
        trace=rest,
        shares=Shares(**{name: x and min(x * scale, 1.0) for name, x in shares.items()}),
    )
