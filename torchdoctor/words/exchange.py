"""What a trace shows of gradients and of how the devices of a job exchange them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """Means per step; bytes are of whole gradients, also where each rank keeps a part of them.

    known_from: what the bytes were read from: "all-reduce" or "reduce-scatter" (collectives with
    their sizes), "backward" (the gradients that the backward pass accumulates), None: not known.
    The bandwidths are bus bandwidths, as nccl-tests counts: bytes that each link carries in a ring.
    """

    ranks: int | None = None  # of the job; None: the trace does not say, as of a single process
    known_from: str | None = None
    gradient_bytes: float | None = None
    last_bytes: float | None = None  # of the collective that begins last
    backward_s: float | None = None  # from the first to the last kernel of the backward pass
    exchange_s: float | None = None  # in all-reduce or reduce-scatter and all-gather, added up
    other_s: float = 0.0  # in collectives that are none of these, broadcasts left out
    mean_bytes_per_s: float | None = None  # of all together: waits for other ranks are in it
    best_bytes_per_s: float | None = None  # of the fastest large collective
