"""Chains of pointwise kernels in a trace, which a compiler would fuse."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.program import Location


@dataclass(frozen=True, kw_only=True)
class PointwiseChain:
    """All chains of the same operators; means per step."""

    operators: list[str]  # that launch its kernels, in order; the first 8
    kernels: int
    times_per_step: float
    device_s: float  # exposed: nothing else runs on the device
    location: Location | None = None  # needs Python stacks in the trace


@dataclass(frozen=True, kw_only=True)
class PointwiseChains:
    """Two pointwise kernels and more in a row on a stream; means per step, optimizers left out."""

    chains: float
    kernels: float
    device_s: float  # exposed
    saved_s: float  # at most, by one kernel for each chain: all but its longest kernel
    costliest: list[PointwiseChain] = field(default_factory=list)  # at most 3
