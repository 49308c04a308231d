"""Estimate the gradient noise scale: the batch beyond which samples are mostly wasted. Pure.

McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), B_simple = tr(S) / |G|^2:
G the true gradient, S the covariance of one sample's. A batch's gradient g of B samples has
E|g|^2 = |G|^2 + tr(S) / B, two different batches' have E<g, h> = |G|^2. The paper compares the
norms at two batch sizes; successive steps and their mean are these two sizes, and the inner
products of all pairs use every one of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.recording import Recording
from torchdoctor.schema.students_t import t_quantile

FEWEST_GRADIENTS = 4


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The scale in samples, with a 95 % interval; None: too large to be told from infinity."""

    estimate: float | None
    low: float
    high: float | None
    gradients: int

    def as_fact(self) -> Evidence:
        """Return the scale as a fact, with its figures rounded as they deserve."""
        if self.estimate is None:
            return fact("scale-unknown", low=_rounded(self.low), gradients=self.gradients)
        return fact(
            "scale-above" if self.high is None else "scale-between",
            estimate=_rounded(self.estimate),
            low=_rounded(self.low),
            high=None if self.high is None else _rounded(self.high),
            gradients=self.gradients,
        )

    def words(self) -> str:
        """Return such as "about 320 samples (95 %: 210 to 540, from 12 gradients)"."""
        about = "not known" if self.estimate is None else f"about {_rounded(self.estimate)} samples"
        low = _rounded(self.low)
        reach = f"above {low}" if self.high is None else f"{low} to {_rounded(self.high)}"
        return f"{about} (95 %: {reach}, from {self.gradients} gradients)"


def noise_scale(recording: Recording) -> NoiseScale | None:
    """Return the scale where it was analysed; None: clipped, or of several losses."""
    steps = recording.steps
    main = recording.main
    if steps is None or not steps.samples_per_step or main.flags.clip_calls:
        return None
    if steps.optimizers_per_step != 1 or steps.optimizer_steps_per_step <= 0:
        return None
    batch = steps.samples_per_step / steps.optimizer_steps_per_step
    return from_products(main.gradient_products, batch)


def from_products(products: Sequence[Sequence[float]], batch: float) -> NoiseScale | None:
    """Return the scale from <g_i, g_j> of successive steps, shape (n, n); None below four.

    Each gradient is the mean of `batch` samples; the interval is of a jackknife over them.
    """
    count = len(products)
    if count < FEWEST_GRADIENTS or not all(
        math.isfinite(product) for row in products for product in row
    ):
        return None
    # The share of a gradient's squared norm that is signal, |G|^2 / E|g|^2: at most 1.
    share = _signal_share(products, list(range(count)))
    without = [_signal_share(products, [i for i in range(count) if i != j]) for j in range(count)]
    replicates = [replicate for replicate in without if replicate is not None]
    if share is None or len(replicates) < count:
        return None
    middle = fmean(replicates)
    error = math.sqrt(
        (count - 1) / count * sum((replicate - middle) ** 2 for replicate in replicates)
    )
    reach = t_quantile(0.975, count - 1) * error
    low, estimate, high = (
        batch * (1.0 - part) / part if part > 0 else None
        for part in (min(share + reach, 1.0), share, share - reach)
    )
    return NoiseScale(estimate=estimate, low=low or 0.0, high=high, gradients=count)


def _signal_share(products: Sequence[Sequence[float]], chosen: Sequence[int]) -> float | None:
    norm = fmean(products[i][i] for i in chosen)
    signal = fmean(products[i][j] for i in chosen for j in chosen if i != j)
    return signal / norm if norm > 0 else None


def _rounded(samples: float) -> str:
    """Return two digits: the interval says that there are no more."""
    if samples < 1:
        return "1"
    return f"{round(samples, 1 - math.floor(math.log10(samples))):.0f}"
