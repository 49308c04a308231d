"""Matrix products, convolutions and attention of a trace: their sizes, arithmetic and roofline."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.program import Location

KNOWN_ENOUGH = 0.9  # of the matrix kernels' time must be of known sizes, or there is no MFU


@dataclass(frozen=True, kw_only=True)
class UnevenSize:
    """A size that is no multiple of `multiple`, which the hardware's fast path wants."""

    dimension: str  # "rows", "inner", "columns", "input channels", "output channels"
    size: int
    multiple: int


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """All calls of one operator with the same input sizes and precision; means per step."""

    operator: str
    sizes: str  # of its inputs, "[5185, 1024], [1024, 4096]"
    precision: str | None  # float64, float32, tf32, float16, bfloat16, float8; None: not known
    calls_per_step: float
    flops: float
    device_s: float  # of the kernels that it launched
    peak_share: float | None = None  # of the data sheet's arithmetic, while it runs
    compute_bound: bool | None = None  # by its sizes; None: the GPU or the precision is not known
    uneven: list[UnevenSize] = field(default_factory=list)
    location: Location | None = None  # needs Python stacks in the trace


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """Arithmetic of the step, from recorded input sizes; means per step.

    `mfu`: the time that the products would take at the data sheet's dense peak of their precision,
    over the step. What is computed twice (activation checkpointing) counts twice.
    """

    flops: float  # of the products whose sizes are known
    device_s: float  # of the products whose arithmetic is known
    known_share: float  # of the matrix kernels' time, that of these products
    gpu: str | None = None  # as the data sheet names it; None: not listed
    source: str | None = None  # of the data sheet
    mfu: float | None = None
    peak_share: float | None = None  # the same over the time in which they run
    compute_bound_s: float | None = None  # device time of products that arithmetic limits
    memory_bound_s: float | None = None  # of those that memory bandwidth limits, by their sizes
    products: list[MatrixProduct] = field(default_factory=list)  # by device time, at most 12
