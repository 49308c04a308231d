"""Whether the profiled steps were like the real ones, without a GPU."""

from __future__ import annotations

from torchdoctor.words import StepStatistics, TraceStatistics

_LONGER = 1.5  # the mean profiled step against the real one, either way
_OTHER_WAIT = 0.10  # between the shares that wait for data


def unlike_profiled(steps: StepStatistics | None, trace: TraceStatistics | None) -> bool:
    """Whether shares by operator and replays are of other conditions than the steps observed.

    True where the mean profiled step differs from the observed one by over 1.5x, or their shares
    of waiting for data by over ten points. Of a GPU's trace always False: what the device does
    takes as long in both, and its wait for data is corrected.

    Args:
        steps: of the observed launch; None: a trace alone.
        trace: of the profiler window.
    """
    if steps is None or trace is None or trace.has_device or not trace.step_s or steps.mean_s <= 0:
        return False
    apart = trace.step_s / steps.mean_s
    traced = trace.shares.data_loader
    waits_apart = 0.0 if traced is None else abs(traced - steps.data_wait_s / steps.mean_s)
    return not 1 / _LONGER <= apart <= _LONGER or waits_apart > _OTHER_WAIT
