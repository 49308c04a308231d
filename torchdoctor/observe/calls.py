"""What the user of a program that infers waits for: latency, samples, tokens, the first token."""

import numpy as np

from torchdoctor.observe.events import Events
from torchdoctor.probe import step_log
from torchdoctor.schema import Boundary, CallFigures

Rows = np.ndarray


def call_figures(
    events: Events, edges: Rows, boundary: Boundary, samples_per_step: float | None
) -> CallFigures | None:
    """Return the figures of the calls between the first and the last edge; None: it trains."""
    if not boundary.infers:
        return None
    steps_s = np.diff(events.t_ns[edges]) / 1e9
    calls = _pairs(events, edges, step_log.ENTRY_BEGIN, step_log.ENTRY_END)
    of_entry = calls[events.ident[calls[:, 0]] == boundary.ident]
    latencies_s = steps_s
    if boundary.kind == "entry" and len(of_entry):
        latencies_s = _seconds(events, of_entry)
        samples = events.value[of_entry[:, 0]]
        samples_per_step = float(samples.mean()) if (samples > 0).all() else None
    mean_s = float(steps_s.mean())
    has_rate = samples_per_step is not None and mean_s > 0
    return CallFigures(
        latency_median_s=float(np.median(latencies_s)),
        latency_p95_s=float(np.percentile(latencies_s, 95)),
        samples_per_s=(samples_per_step or 0.0) / mean_s if has_rate else None,
        **_of_tokens(events, edges),
    )


def _of_tokens(events: Events, edges: Rows) -> dict[str, float | None]:
    """Return the figures of what generated tokens; empty where nothing did."""
    spans = _pairs(events, edges, step_log.GENERATION_BEGIN, step_log.GENERATION_END)
    if not len(spans):
        return {}
    steps = len(edges) - 1
    window_s = float(events.t_ns[edges[-1]] - events.t_ns[edges[0]]) / 1e9
    tokens = events.value[spans[:, 1]]
    has_rate = bool((tokens >= 0).all()) and window_s > 0
    figures: dict[str, float | None] = {
        "tokens_per_s": float(tokens.sum()) / window_s if has_rate else None
    }
    forwards = events.at(step_log.FORWARD_END)
    first = np.searchsorted(forwards, spans[:, 0])
    spans, first = spans[first < len(forwards)], first[first < len(forwards)]
    inside = forwards[first] < spans[:, 1]
    spans, first_ends = spans[inside], forwards[first[inside]]
    if not len(spans):
        return figures
    to_first_s = (events.t_ns[first_ends] - events.t_ns[spans[:, 0]]) / 1e9
    rest_s = (events.t_ns[spans[:, 1]] - events.t_ns[first_ends]) / 1e9
    return figures | {
        "first_token_s": float(np.median(to_first_s)),
        "prefill_s": float(to_first_s.sum()) / steps,
        "decode_s": float(rest_s.sum()) / steps,
    }


def _pairs(events: Events, edges: Rows, begin: int, end: int) -> Rows:
    """Return the rows of begin and end of each whole bracket between the edges; shape (n, 2)."""
    begins = events.at(begin)
    ends = events.at(end)
    begins = begins[(begins >= edges[0]) & (begins < edges[-1])]
    after = np.searchsorted(ends, begins)
    whole = after < len(ends)
    return np.column_stack([begins[whole], ends[after[whole]]])


def _seconds(events: Events, spans: Rows) -> Rows:
    return np.asarray((events.t_ns[spans[:, 1]] - events.t_ns[spans[:, 0]]) / 1e9)
