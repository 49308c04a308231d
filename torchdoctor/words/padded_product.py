"""One product of the program, timed alone as it is and with padded sizes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PaddedProduct:
    """A matrix product or convolution of the step, timed alone beside one with padded sizes."""

    operator: str
    sizes: str  # of its inputs, "[8192, 768], [768, 50257]"
    padded: list[str]  # "columns 50257 -> 50304"
    precision: str  # float32, float16, bfloat16
    device: str  # "cpu" | "cuda"
    calls_per_step: float
    alone_s: float  # one call as it is, median
    speedups: list[float] = field(default_factory=list)  # of the padded one, by turns
