"""What padded sizes gain the program's own products, each timed alone. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from torchdoctor.words import Interval, Recording
from torchdoctor.words.program import PaddedProduct

_WORTH = 1.05  # lower end of the interval
_WORTH_OF_STEP = 0.01


@dataclass(frozen=True, kw_only=True)
class PaddingGain:
    """One product: its speed-up when padded, and what that would take off the step."""

    product: PaddedProduct
    speedup: Interval
    step_share: float | None  # of the step's time that would be saved; None: step not timed

    @property
    def worthwhile(self) -> bool:
        """Whether it is faster for certain, and by enough of the step to be worth an edit."""
        enough = self.step_share is None or self.step_share >= _WORTH_OF_STEP
        return self.speedup.low >= _WORTH and enough

    @property
    def text(self) -> str:
        """ "columns 50257 -> 50304: 1.31x (1.25 to 1.38) measured alone, aten::mm of ..."."""
        one, gain = self.product, self.speedup
        return (
            f"{', '.join(one.padded)}: {gain.estimate:.2f}x ({gain.low:.2f} to {gain.high:.2f}) "
            f"measured alone, {one.operator} of {one.sizes} in {one.precision}"
        )


def padding_gains(recording: Recording) -> list[PaddingGain]:
    """Of every product that was timed padded, the largest saving first; empty: none was."""
    steps, found = recording.steps, []
    for one in recording.main.padded_products:
        speedup = _interval(one.speedups)
        if speedup is None:
            continue
        saved_s = one.calls_per_step * one.alone_s * (1.0 - 1.0 / speedup.estimate)
        share = saved_s / steps.mean_s if steps is not None and steps.mean_s > 0 else None
        found.append(PaddingGain(product=one, speedup=speedup, step_share=share))
    return sorted(found, key=lambda one: -(one.step_share or one.speedup.estimate))


def _interval(ratios: list[float]) -> Interval | None:
    """The geometric mean of paired ratios and its 95 % t interval; None below two."""
    from scipy.special import stdtrit

    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    if len(logs) < 2:
        return None
    mean = fmean(logs)
    half = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
    return Interval(estimate=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
