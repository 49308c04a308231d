"""What more GPUs and machines would give: a prediction with its assumptions, no measurement."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PredictedSpeedup:
    """Samples per second against one GPU, between the slowest and the fastest link assumed."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One number of GPUs. `network_gbit_per_s`: assumed, of each machine; None: one machine."""

    gpus: int
    machines: int = 1
    network_gbit_per_s: float | None = None
    ddp: PredictedSpeedup  # DistributedDataParallel
    fsdp: PredictedSpeedup


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The prediction, and all that it rests on; times in seconds per step, None: not known.

    `missing`: what would be needed, where there are no rows (or none of one machine).
    """

    rows: list[ScalingRow] = field(default_factory=list)
    gradient_bytes: float | None = None
    gradients_from: str | None = None  # "all-reduce" | "reduce-scatter" | "backward" | "program"
    last_bytes: float | None = None  # exchanged when the backward pass is over
    alone_s: float | None = None  # a step without any exchange
    backward_s: float | None = None
    # Of the links in one direction, and where known from: "collectives" | "data sheet".
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    links_from: str | None = None
    links_of: str | None = None  # the GPU as the table of data sheets names it
    ranks: int | None = None  # that the trace was recorded among
    # Their exchange of a step by the data sheet's links, and as it was measured.
    sheet_low_s: float | None = None
    sheet_high_s: float | None = None
    measured_exchange_s: float | None = None
    loader_share: float | None = None  # of the step, waiting for data
    missing: list[str] = field(default_factory=list)
