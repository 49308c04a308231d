"""What more GPUs and machines would give, from one program's gradients, backward pass and links.

A model, never called a measurement. docs/decisions/scaling-estimate.md gives formulas and reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchdoctor.facts.gpu_data_sheets import data_sheet
from torchdoctor.facts.lookup import trains
from torchdoctor.words import (
    GradientExchange,
    PredictedSpeedup,
    Recording,
    Scaling,
    ScalingRow,
    TraceStatistics,
)

BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb
# Of a data sheet's slowest link: as slow as recorded jobs were beside it.
SLOWEST = 0.4
ON_ONE_MACHINE = (2, 4, 8)
MACHINES = 2
NETWORKS_GBIT = (10.0, 100.0, 400.0)  # what is sold; that of the user's machines is not known
GPUS_OF_A_MACHINE = 8  # where it is not known how many there are
MODELLED = 0.9  # of the time in collectives, or the program exchanges more than gradients
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Step:
    """What the formulas need of one GPU's step: bytes and seconds."""

    gradient_bytes: float
    last_bytes: float
    alone_s: float
    backward_s: float

    def all_reduce_s(self, gpus: int, bytes_per_s: float) -> float:
        """A ring all-reduce of all gradients."""
        return 2 * (gpus - 1) / gpus * self.gradient_bytes / bytes_per_s

    def exposed_ddp_s(self, gpus: int, bytes_per_s: float) -> float:
        """What the backward pass does not hide: the last bucket, and what it is too short for."""
        whole = self.all_reduce_s(gpus, bytes_per_s)
        last = whole * self.last_bytes / self.gradient_bytes
        return last + max(0.0, whole - last - self.backward_s)

    def exposed_fsdp_s(self, gpus: int, bytes_per_s: float) -> float:
        """The same with weights gathered for forward and backward, and gradients scattered.

        Each of the three moves half of what an all-reduce does. The first block's weights and the
        last one's gradients are hidden by nothing; a forward pass takes half of a backward pass.
        """
        half = self.all_reduce_s(gpus, bytes_per_s) / 2
        edge = half * self.last_bytes / self.gradient_bytes
        forward = max(0.0, half - edge - self.backward_s / 2)
        return 2 * edge + forward + max(0.0, 2 * half - edge - self.backward_s)

    def speedup(self, gpus: int, low: float, high: float, sharded: bool) -> PredictedSpeedup:
        """Samples per second against one GPU, with links of `low` and of `high` bytes/s."""
        exposed = self.exposed_fsdp_s if sharded else self.exposed_ddp_s
        slow, fast = (
            gpus * self.alone_s / (self.alone_s + exposed(gpus, link)) for link in (low, high)
        )
        return PredictedSpeedup(low=slow, high=fast)


def scaling(recording: Recording) -> Scaling | None:
    """The prediction for a program that trains on GPUs; None for any other.

    What is not known is named in `missing`, and nothing that needs it is predicted.
    """
    trace = recording.trace
    if trace is None or not trace.has_device or (trace.exchange is None and not trains(trace)):
        return None
    known = _known(recording, trace)
    missing = _missing(known, trace)
    if missing:
        return replace(known, missing=missing)
    step = Step(
        gradient_bytes=known.gradient_bytes or 0.0,
        last_bytes=known.last_bytes or 0.0,
        alone_s=known.alone_s or 0.0,
        backward_s=known.backward_s or 0.0,
    )
    low, high = known.low_bytes_per_s, known.high_bytes_per_s
    rows = []
    if low and high:
        rows += [_row(step, gpus, low, high) for gpus in ON_ONE_MACHINE]
    else:
        missing = [_NO_LINKS]
    each = len(recording.main.devices) or GPUS_OF_A_MACHINE
    for gbit in NETWORKS_GBIT:
        network = gbit / 8 * 1e9
        links = min(low or network, network), min(high or network, network)
        rows.append(_row(step, each * MACHINES, *links, machines=MACHINES, gbit=gbit))
    return replace(known, rows=rows, missing=missing)


def _row(
    step: Step, gpus: int, low: float, high: float, machines: int = 1, gbit: float | None = None
) -> ScalingRow:
    return ScalingRow(
        gpus=gpus,
        machines=machines,
        network_gbit_per_s=gbit,
        ddp=step.speedup(gpus, low, high, sharded=False),
        fsdp=step.speedup(gpus, low, high, sharded=True),
    )


def _known(recording: Recording, trace: TraceStatistics) -> Scaling:
    """What the prediction rests on, without its rows."""
    seen = trace.exchange or GradientExchange()
    total, source, last = seen.gradient_bytes, seen.known_from, seen.last_bytes
    if source in (None, "backward") and (own := _optimized_bytes(recording)):
        total, source, last = own, "program", None
    if total and last is None:
        last = min(total, float(BUCKET_BYTES))
    traced_s, steps = trace.step_s or 0.0, recording.steps
    # Under the profiler the host is slower: the parts of its step, of the step without it.
    scale = steps.mean_s / traced_s if steps is not None and traced_s else 1.0
    found = Scaling(
        gradient_bytes=total,
        gradients_from=source,
        last_bytes=last,
        alone_s=_alone_s(trace) * scale or None,
        backward_s=seen.backward_s * scale if seen.backward_s else None,
        loader_share=recording.shares.data_loader,
        ranks=seen.ranks if seen.ranks and seen.ranks > 1 else None,
    )
    return _with_links(found, recording, seen)


def _with_links(found: Scaling, recording: Recording, seen: GradientExchange) -> Scaling:
    """The links as they were measured, else by the GPU's data sheet."""
    gpus = recording.environment.gpus
    sheet = data_sheet(gpus[0].name) if gpus else None
    links = sheet.links if sheet is not None else None
    if sheet is not None and links is not None:
        slow, fast = links[0] * SLOWEST, links[1]
        found = replace(
            found,
            low_bytes_per_s=slow,
            high_bytes_per_s=fast,
            links_from="data sheet",
            links_of=sheet.name,
        )
        if found.ranks and seen.exchange_s and seen.known_from == "all-reduce":
            carried = 2 * (found.ranks - 1) / found.ranks * (seen.gradient_bytes or 0.0)
            found = replace(
                found,
                measured_exchange_s=seen.exchange_s,
                sheet_low_s=carried / fast,
                sheet_high_s=carried / slow,
            )
    if seen.mean_bytes_per_s and seen.best_bytes_per_s:
        found = replace(
            found,
            low_bytes_per_s=seen.mean_bytes_per_s,
            high_bytes_per_s=seen.best_bytes_per_s,
            links_from="collectives",
        )
    return found


def _optimized_bytes(recording: Recording) -> float:
    """Of what the program's optimizers update: a gradient has the type of its parameter."""
    optimizers = recording.main.optimizers
    used = [one for one in optimizers if one.steps] or optimizers
    return float(sum(one.elements * _BYTES.get(one.dtype, 4) for one in used))


def _alone_s(trace: TraceStatistics) -> float:
    """A step of the trace without its exchange: by replay, else without what is exposed of it."""
    step_s, replay = trace.step_s or 0.0, trace.what_if
    if replay is not None and replay.reproduced and (gain := replay.speedup("communication")):
        return step_s / gain
    return max(step_s - (trace.communication_exposed_s or 0.0), 0.0)


_NO_LINKS = (
    "what links the GPUs of one machine: the GPU is not among the data sheets with such a figure, "
    "and no collectives were measured"
)


def _missing(known: Scaling, trace: TraceStatistics) -> list[str]:
    """What a prediction would need and the recording does not tell."""
    if not trace.steps or not known.alone_s:
        return ["how long a step takes: the trace has no step annotation"]
    seen = trace.exchange
    if seen is None or known.backward_s is None:
        return ["how long the backward pass takes: the trace shows none"]
    missing = []
    together_s = (seen.exchange_s or 0.0) + seen.other_s
    if seen.other_s > (1 - MODELLED) * together_s:
        missing.append(
            f"a model of what the ranks exchange beside gradients ({seen.other_s / together_s:.0%} "
            "of their time in collectives)"
        )
    if not known.gradient_bytes:
        missing.append(
            "the size of the gradients: record with record_shapes=True, or several ranks"
        )
    return missing
