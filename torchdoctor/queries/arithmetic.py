"""Which models train in float64, and what padded sizes gain the program's own products. Pure."""

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from torchdoctor.queries.lookup import training_loaders, training_models
from torchdoctor.schema import DoubleCall, Interval, Location, ModelFacts, PaddedProduct, Recording
from torchdoctor.schema.students_t import t_quantile

_MOST = 0.5  # of a model's elements
_KNOWN_LEAVES = 4  # tensors of a batch whose types are noted
_WORTH = 1.05  # lower end of the interval
_WORTH_OF_STEP = 0.01


def double_models(recording: Recording) -> list[ModelFacts]:
    """Return models in training most of whose parameters are float64, the largest first."""
    models = training_models(recording)
    doubles = [m for m in models if m.float64_elements and m.float64_elements > _MOST * m.elements]
    return sorted(doubles, key=lambda model: -model.elements)


def made_double(recording: Recording) -> DoubleCall | None:
    """Return the call that made the model float64, or the default; None: not noted."""
    calls = [c for c in recording.main.double_calls if c.kind in ("model", "default")]
    return min(calls, key=lambda call: call.kind != "model", default=None)


def double_location(recording: Recording) -> Location | None:
    """Return where the model was made float64, or else where the largest one is defined."""
    makers = [made_double(recording), *double_models(recording)]
    return next((maker.location for maker in makers if maker is not None), None)


def half_models(recording: Recording) -> list[ModelFacts]:
    """Return models on a CPU with parameters in float16, the largest first."""
    models = [m for m in training_models(recording) if m.device == "cpu" and "float16" in m.dtypes]
    return sorted(models, key=lambda model: -model.elements)


def half_location(recording: Recording) -> Location | None:
    """Return where the model was made float16, or else where the largest one is called."""
    calls = [
        half_call
        for half_call in recording.main.half_calls
        if half_call.kind in ("model", "default")
    ]
    models = [model.call for model in half_models(recording) if model.call is not None]
    return next(
        iter([*(call.location for call in calls), *(model.location for model in models)]), None
    )


def double_leaves(recording: Recording) -> tuple[bool, ...]:
    """Return for each tensor of a training batch if it is float64; () where that is not known."""
    loaders = training_loaders(recording)
    batches = loaders[0].batch_tensors if loaders else []
    kinds = {tuple(tensor.dtype == "float64" for tensor in batch) for batch in batches}
    if len(kinds) != 1:
        return ()
    leaves = kinds.pop()
    return leaves if any(leaves) and len(leaves) < _KNOWN_LEAVES else ()


@dataclass(frozen=True, kw_only=True)
class PaddingGain:
    """One product: its speed-up when padded, and what that would take off the step."""

    product: PaddedProduct
    speedup: Interval
    step_share: float | None  # of the step's time that would be saved; None: step not timed

    @property
    def worthwhile(self) -> bool:
        """True if it is faster for certain, and by enough of the step to be worth an edit."""
        enough = self.step_share is None or self.step_share >= _WORTH_OF_STEP
        return self.speedup.low >= _WORTH and enough

    @property
    def text(self) -> str:
        """Such as "columns 50257 -> 50304: 1.31x (1.25 to 1.38) measured alone, aten::mm of ..."""
        product = self.product
        gain = self.speedup
        padded = [f"{size.dimension} {size.size} -> {size.padded}" for size in product.padded_sizes]
        return (
            f"{', '.join(padded)}: {gain.estimate:.2f}x "
            f"({gain.low:.2f} to {gain.high:.2f}) measured alone, "
            f"{product.operator} of {product.sizes} in {product.precision}"
        )


def padding_gains(recording: Recording) -> list[PaddingGain]:
    """Return the gain of every product that was timed padded, in pairs; the largest first."""
    steps = recording.steps
    gains = []
    for product in recording.main.padded_products:
        logs = [math.log(ratio) for ratio in product.speedups if ratio > 0]
        if len(logs) < 2:
            continue
        mean = fmean(logs)
        degrees = len(logs) - 1
        half = t_quantile(0.975, degrees) * stdev(logs) / math.sqrt(len(logs))
        low, estimate, high = (math.exp(mean + half * side) for side in (-1, 0, 1))
        saved_s = product.calls_per_step * product.alone_s * (1.0 - 1.0 / estimate)
        share = saved_s / steps.mean_s if steps is not None and steps.mean_s > 0 else None
        speedup = Interval(estimate=estimate, low=low, high=high)
        gains.append(PaddingGain(product=product, speedup=speedup, step_share=share))
    return sorted(gains, key=lambda gain: -(gain.step_share or gain.speedup.estimate))
