"""Predict what more GPUs of one machine would give, from gradients, backward pass and links.

The prediction is a model and never called a measurement.
docs/decisions/scaling-estimate.md gives formulas and reasons.
"""

import math
from dataclasses import dataclass, replace

from torchdoctor.queries.gpu_data_sheets import data_sheet
from torchdoctor.schema import GradientExchange, Recording, TraceStatistics
from torchdoctor.schema.figures import memory, seconds
from torchdoctor.schema.report import PredictedSpeedup, Scaling, ScalingRow

BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb
SLOWEST = 0.4  # of a data sheet's slowest link: as slow as recorded jobs were beside it
ON_ONE_MACHINE = (2, 4, 8)
MODELLED = 0.9  # of the time in collectives, or the program exchanges more than gradients
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
TITLE = "More GPUs: predicted, not measured"
_SOURCES = {
    "all-reduce": "the trace's all-reduces",
    "reduce-scatter": "the trace's reduce-scatters",
    "backward": "the gradients that the trace's backward pass accumulates",
    "program": "the program's optimizers",
}
_UNCHECKED = "never checked on a machine with that many GPUs; figures are rounded down"


@dataclass(frozen=True)
class Step:
    """What the formulas need of one GPU's step: bytes and seconds."""

    gradient_bytes: float
    last_bytes: float
    alone_s: float
    backward_s: float

    def all_reduce_s(self, gpus: int, bytes_per_s: float) -> float:
        """Return the time of a ring all-reduce of all gradients."""
        return 2 * (gpus - 1) / gpus * self.gradient_bytes / bytes_per_s

    def exposed_ddp_s(self, gpus: int, bytes_per_s: float) -> float:
        """Return what the backward pass does not hide: the last bucket, and what exceeds it."""
        whole = self.all_reduce_s(gpus, bytes_per_s)
        last = whole * self.last_bytes / self.gradient_bytes
        return last + max(0.0, whole - last - self.backward_s)

    def exposed_fsdp_s(self, gpus: int, bytes_per_s: float) -> float:
        """Return the same with weights gathered for both passes, and gradients scattered.

        Each of the three moves half of an all-reduce; nothing hides the first block's weights and
        the last one's gradients. A forward pass takes half of a backward pass.
        """
        half = self.all_reduce_s(gpus, bytes_per_s) / 2
        edge = half * self.last_bytes / self.gradient_bytes
        forward = max(0.0, half - edge - self.backward_s / 2)
        return 2 * edge + forward + max(0.0, 2 * half - edge - self.backward_s)

    def row(self, gpus: int, low: float, high: float) -> ScalingRow:
        """Return the samples per second against one GPU, with links of `low` and `high` bytes/s."""
        ddp, fsdp = (
            [gpus * self.alone_s / (self.alone_s + exposed(gpus, link)) for link in (low, high)]
            for exposed in (self.exposed_ddp_s, self.exposed_fsdp_s)
        )
        return ScalingRow(
            gpus=gpus,
            ddp=PredictedSpeedup(low=ddp[0], high=ddp[1]),
            fsdp=PredictedSpeedup(low=fsdp[0], high=fsdp[1]),
        )


def scaling(recording: Recording) -> Scaling | None:
    """Return the prediction for a program that trains on GPUs, as far as all is known."""
    trace = recording.trace
    if trace is None or not trace.has_device or (trace.exchange is None and not trace.trains):
        return None
    prediction = _known(recording, trace)
    if missing := _missing(prediction, trace):
        return replace(prediction, missing=missing)
    figures = (
        prediction.gradient_bytes,
        prediction.last_bytes,
        prediction.alone_s,
        prediction.backward_s,
    )
    step = Step(*(figure or 0.0 for figure in figures))
    low = prediction.low_bytes_per_s
    high = prediction.high_bytes_per_s
    if low and high:
        return replace(prediction, rows=[step.row(gpus, low, high) for gpus in ON_ONE_MACHINE])
    links = "what links the GPUs of one machine: no data sheet says it, no collective was measured"
    return replace(prediction, missing=[links])


def _known(recording: Recording, trace: TraceStatistics) -> Scaling:
    """Return the prediction without its rows."""
    exchange = trace.exchange or GradientExchange()
    total = exchange.gradient_bytes
    source = exchange.known_from
    last = exchange.last_bytes
    optimizers = recording.main.optimizers
    used = [optimizer for optimizer in optimizers if optimizer.steps] or optimizers
    # A gradient has its parameter's type.
    parameter_bytes = float(
        sum(optimizer.elements * _BYTES.get(optimizer.dtype, 4) for optimizer in used)
    )
    if source in (None, "backward") and parameter_bytes:
        total = parameter_bytes
        source = "program"
        last = None
    if total and last is None:
        last = min(total, float(BUCKET_BYTES))
    traced_s = trace.step_s or 0.0
    steps = recording.steps
    alone_s = max(traced_s - (trace.communication_exposed_s or 0.0), 0.0)
    replay = trace.what_if
    if replay is not None and replay.reproduced and (gain := replay.speedup("communication")):
        alone_s = traced_s / gain
    # Under the profiler the host is slower: the parts of its step, of the step without it.
    scale = steps.mean_s / traced_s if steps is not None and traced_s else 1.0
    prediction = Scaling(
        gradient_bytes=total,
        gradients_from=source,
        last_bytes=last,
        alone_s=alone_s * scale or None,
        backward_s=exchange.backward_s * scale if exchange.backward_s else None,
        ranks=exchange.ranks if exchange.ranks and exchange.ranks > 1 else None,
    )
    return _with_links(prediction, recording, exchange)


def _with_links(prediction: Scaling, recording: Recording, exchange: GradientExchange) -> Scaling:
    """Add the links as they were measured, else by the GPU's data sheet."""
    gpus = recording.environment.gpus
    sheet = data_sheet(gpus[0].name) if gpus else None
    if sheet is not None and sheet.links is not None:
        slow = sheet.links[0] * SLOWEST
        fast = sheet.links[1]
        prediction = replace(prediction, low_bytes_per_s=slow, high_bytes_per_s=fast)
        prediction = replace(prediction, links_from="data sheet", links_of=sheet.name)
    if exchange.mean_bytes_per_s and exchange.best_bytes_per_s:
        low = exchange.mean_bytes_per_s
        high = exchange.best_bytes_per_s
        prediction = replace(
            prediction, low_bytes_per_s=low, high_bytes_per_s=high, links_from="collectives"
        )
    return prediction


def _missing(prediction: Scaling, trace: TraceStatistics) -> list[str]:
    """Return what the prediction needs and the recording does not tell."""
    if not trace.steps or not prediction.alone_s:
        return ["how long a step takes: the trace has no step annotation"]
    exchange = trace.exchange
    missing = []
    if exchange is None or prediction.backward_s is None:
        return ["how long the backward pass takes: the trace shows none"]
    together_s = (exchange.exchange_s or 0.0) + exchange.other_s
    if exchange.other_s > (1 - MODELLED) * together_s:
        missing.append(
            "a model of what the ranks exchange beside gradients "
            f"({exchange.other_s / together_s:.0%} of their time in collectives)"
        )
    if not prediction.gradient_bytes:
        missing.append("the size of the gradients: record with record_shapes=True, or more ranks")
    return missing


def scaling_lines(forecast: Scaling | None) -> list[str]:
    """Return the forecast, one sentence or row a line; [] where there is none."""
    if forecast is None:
        return []
    rows = [
        f"{row.gpus} GPUs of one machine: {_times(row.ddp)} as many samples as one "
        f"(DistributedDataParallel), {_times(row.fsdp)} (FSDP)"
        for row in forecast.rows
    ]
    return _explained(rows, forecast)


def comment_lines(forecast: Scaling | None, part: str) -> list[str]:
    """Return the prediction as comments in a fix's code: of replicas or shards."""
    if forecast is None:
        return []
    rows = []
    for row in forecast.rows:
        gain = _times(row.fsdp if part == "shards" else row.ddp)
        rows.append(f"{row.gpus} GPUs: {gain} as many samples as one")
    lines = _explained(rows, forecast)
    return ["# predicted, not measured:", *(f"#   {line}" for line in lines)] if lines else []


def _explained(rows: list[str], forecast: Scaling) -> list[str]:
    """Return rows with what they rest on, and what is not predicted."""
    unknown = [f"not predicted, for want of {lack}" for lack in forecast.missing]
    return [*rows, _UNCHECKED, *unknown, *_grounds(forecast)] if rows else unknown


def _grounds(forecast: Scaling) -> list[str]:
    """Return what the rows rest on and assume."""
    if forecast.gradient_bytes is None:
        return []
    lines = [
        f"from {memory(forecast.gradient_bytes)} of gradients a step "
        f"({_SOURCES[forecast.gradients_from or 'program']}), a step of "
        f"{seconds(forecast.alone_s)} without exchange, a backward pass of "
        f"{seconds(forecast.backward_s)} in it"
    ]
    slow = forecast.low_bytes_per_s or 0.0
    fast = forecast.high_bytes_per_s or 0.0
    low = f"{slow / 1e9:.3g} GB/s"
    high = f"{fast / 1e9:.3g} GB/s"
    if forecast.links_from == "collectives":
        lines.append(
            f"links of {low} (all exchanges, waits included) to {high} (the fastest): what the "
            f"trace's {forecast.ranks} ranks reached, of one machine or several"
        )
    elif forecast.links_from == "data sheet":
        lines.append(
            f"links in one direction of {low} ({SLOWEST:.0%} of the slowest link on the "
            f"{forecast.links_of}'s data sheet) to {high} (all of the fastest one)"
        )
    lines.append(
        "assumed: an all-reduce in a ring, hidden behind the backward pass but for its last "
        f"{memory(forecast.last_bytes)}; the same batch on every GPU; ranks that are equally "
        "fast, and CPUs and storage that keep up with all of them"
    )
    return lines


def _times(speedup: PredictedSpeedup) -> str:
    """Return two digits, rounded down: "at best 7.9x", or "1.7x to at best 1.9x"."""
    low = _two_figures(speedup.low)
    high = _two_figures(speedup.high)
    return f"at best {high}x" if low == high else f"{low}x to at best {high}x"


def _two_figures(value: float) -> str:
    unit = 10.0 ** (math.floor(math.log10(max(value, 1e-9))) - 1)
    return f"{math.floor(value / unit + 1e-6) * unit:.6g}"
