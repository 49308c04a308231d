"""What the probe cost, by the blocks of steps for which it switched its hooks off."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Steps
from torchdoctor.words import Interval

_FEWEST = 6  # blocks: below, no interval of a median reaches 95 %


def own_cost(steps: Steps) -> Interval | None:
    """Return a step with the hooks, divided by one without; None: too few blocks for that.

    Each block is compared with the rows beside it, as many seconds before and behind. The median
    counts, as an evaluation may fall into a block, with the interval of its order statistics.
    """
    ends_ns = steps.start_ns + (steps.total_s * 1e9).astype(np.int64)
    ratios = []
    for block in np.flatnonzero(steps.has(layout.PROBE_OFF)):
        length_ns = int(steps.total_s[block] * 1e9)
        first = np.searchsorted(steps.start_ns, steps.start_ns[block] - length_ns)
        last = np.searchsorted(ends_ns, ends_ns[block] + length_ns, side="right")
        beside = np.arange(first, last)
        beside = beside[steps.plain[beside]]
        if min(np.sum(beside < block), np.sum(beside > block)) > 0:
            mean_s = steps.total_s[beside].sum() / steps.steps[beside].sum()
            ratios.append(mean_s / steps.step_s[block])
    if len(ratios) < _FEWEST:
        return None
    ratios.sort()
    rank = int(binom.ppf(0.025, len(ratios), 0.5))
    low, high = ratios[max(rank - 1, 0)], ratios[min(len(ratios) - rank, len(ratios) - 1)]
    return Interval(low=float(low), estimate=float(np.median(ratios)), high=float(high))
