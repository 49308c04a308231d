"""How long each optimizer's own updates take, without what a closure given to `step` does."""

from __future__ import annotations

import numpy as np

from torchdoctor.observe.events import Events
from torchdoctor.probe import step_log


def update_seconds(events: Events, edges: np.ndarray) -> list[float]:
    """Seconds per step of each optimizer's updates.

    Counted from the last forward or backward within `step(closure)`, or from its beginning where
    there is none, to its end. A `step` called within another's is no part of the outer one.
    LBFGS also computes between its closure's calls; no other implementation changes that.

    Args:
        events: one process's events.
        edges: row numbers of the steps' boundaries, ascending.

    Returns:
        By the optimizer's number; shorter than the list of optimizers where the last took none.
    """
    steps = max(len(edges) - 1, 0)
    rows = events.at(step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END)
    if not steps or not len(rows):
        return []
    rows = rows[(rows >= edges[0]) & (rows <= edges[-1])]  # a boundary may be the end of a step
    learned = events.at(step_log.FORWARD_END, step_log.BACKWARD_END)
    totals: dict[int, int] = {}
    open_steps: list[list[int]] = []  # row it began at, ns of those within it
    for row in rows.tolist():
        if events.code[row] == step_log.OPTIMIZER_BEGIN:
            open_steps.append([row, 0])
            continue
        if not open_steps:
            continue  # it began before the window
        begin, within = open_steps.pop()
        last = int(np.searchsorted(learned, row)) - 1
        start = max(begin, int(learned[last])) if last >= 0 else begin
        if open_steps:
            open_steps[-1][1] += int(events.t_ns[row] - events.t_ns[begin])
        # What lies within may have come before the last backward, and then is not counted anyway.
        own = int(events.t_ns[row] - events.t_ns[start]) - within
        ident = int(events.ident[row])
        totals[ident] = totals.get(ident, 0) + max(own, 0)
    if not totals:
        return []
    return [totals.get(ident, 0) / 1e9 / steps for ident in range(max(totals) + 1)]
