"""The prediction of more GPUs and machines as lines of text, with all that it assumes."""

from __future__ import annotations

import math

from torchdoctor.facts.scaling import MACHINES, SLOWEST
from torchdoctor.words import PredictedSpeedup, Scaling, ScalingRow

TITLE = "More GPUs: predicted, not measured"
_SOURCES = {
    "all-reduce": "the trace's all-reduces",
    "reduce-scatter": "the trace's reduce-scatters",
    "backward": "the gradients that the trace's backward pass accumulates",
    "program": "the program's optimizers",
}
_UNCHECKED = "never checked on a machine with that many GPUs; figures are rounded down"
_LOADER = 0.05  # of the step, from where on it is said


def scaling_lines(found: Scaling | None) -> list[str]:
    """All of it, one sentence or row a line; empty where there is nothing to predict."""
    if found is None:
        return []
    lines = [
        f"{row.gpus} GPUs of one machine: {_times(row.ddp)} as many samples as one "
        f"(DistributedDataParallel), {_times(row.fsdp)} (FSDP)"
        for row in _here(found)
    ]
    lines += _machines(found)
    return [
        *lines,
        *([_UNCHECKED] if lines else []),
        *_not_known(found),
        *_grounds(found),
        *_seen(found),
    ]


def comment_lines(found: Scaling | None, part: str) -> list[str]:
    """What the code of one fix says of it, as comments.

    Args:
        part: "replicas", "shards", or "machines".
    """
    if found is None:
        return []
    if part == "machines":
        rows = _machines(found)
    else:
        rows = [
            f"{row.gpus} GPUs: {_times(row.fsdp if part == 'shards' else row.ddp)} as many samples "
            "as one"
            for row in _here(found)
        ]
    told = [
        *rows,
        *([_UNCHECKED] if rows else []),
        *_not_known(found),
        *(_grounds(found) if rows else []),
    ]
    return ["# predicted, not measured:", *(f"#   {line}" for line in told)] if told else []


def _here(found: Scaling) -> list[ScalingRow]:
    return [row for row in found.rows if row.network_gbit_per_s is None]


def _machines(found: Scaling) -> list[str]:
    rows = [row for row in found.rows if row.network_gbit_per_s is not None]
    return [
        f"{MACHINES} machines of {row.gpus // MACHINES} GPUs, if the network gives each "
        f"{row.network_gbit_per_s:g} Gbit/s: {_times(row.ddp)} as many samples as one GPU "
        "(DistributedDataParallel)"
        for row in rows
    ]


def _not_known(found: Scaling) -> list[str]:
    return [f"not predicted, for want of {what}" for what in found.missing]


def _grounds(found: Scaling) -> list[str]:
    """What the rows rest on, and what was assumed."""
    if not found.rows:
        return []
    lines = [
        f"from {_size(found.gradient_bytes)} of gradients a step "
        f"({_SOURCES[found.gradients_from or 'program']}), a step of {_ms(found.alone_s)} without "
        f"exchange, a backward pass of {_ms(found.backward_s)} in it"
    ]
    low, high = f"{_giga(found.low_bytes_per_s)} GB/s", f"{_giga(found.high_bytes_per_s)} GB/s"
    if found.links_from == "collectives":
        lines.append(
            f"links of {low} (all exchanges, waits included) to {high} (the fastest): what the "
            f"trace's {found.ranks} ranks reached, of one machine or several"
        )
    elif found.links_from == "data sheet":
        lines.append(
            f"links in one direction of {low} ({SLOWEST:.0%} of the slowest link on the "
            f"{found.links_of}'s data sheet) to {high} (all of the fastest one)"
        )
    lines.append(
        "assumed: an all-reduce in a ring, hidden behind the backward pass but for its last "
        f"{_size(found.last_bytes)}; the same batch on every GPU; ranks that are equally fast, and "
        "CPUs and storage that keep up with all of them"
    )
    if (found.loader_share or 0.0) >= _LOADER:
        lines.append(
            f"waiting for data is {found.loader_share:.0%} of the step already: processes that "
            "share CPUs and storage wait longer, which is not in these figures"
        )
    return lines


def _seen(found: Scaling) -> list[str]:
    """How long the exchange of several ranks really took, beside the data sheet's."""
    if not (found.measured_exchange_s and found.sheet_low_s and found.sheet_high_s):
        return []
    return [
        f"beside what was seen: {found.ranks} ranks exchanged {_size(found.gradient_bytes)} in "
        f"{_ms(found.measured_exchange_s)} a step, their waits included; links of the data sheet "
        f"would have made it {_ms(found.sheet_low_s)} to {_ms(found.sheet_high_s)}"
    ]


def _times(speedup: PredictedSpeedup) -> str:
    """Two figures, rounded down: "at best 7.9x", or "1.7x to at best 1.9x"."""
    low, high = _two_figures(speedup.low), _two_figures(speedup.high)
    return f"at best {high}x" if low == high else f"{low}x to at best {high}x"


def _two_figures(value: float) -> str:
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / unit + 1e-6) * unit:.6g}"


def _size(value: float | None) -> str:
    mega = (value or 0.0) / 1e6
    return f"{mega / 1e3:.3g} GB" if mega >= 1e3 else f"{mega:.3g} MB"


def _ms(value: float | None) -> str:
    return f"{(value or 0.0) * 1e3:.3g} ms"


def _giga(value: float | None) -> str:
    return f"{(value or 0.0) / 1e9:.3g}"
