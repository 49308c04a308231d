"""The loader of a trace: whether worker processes make its batches, and how many."""

from typing import Any

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.threads import is_loader, named, of_fetching_thread
from torchdoctor.trace.timeline import Timeline

_LONG = 0.3  # of the longest wait: the others found their batch ready
_FEWEST = 3  # long waits, equally far apart


def loading(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`; of n workers, every n-th wait is long."""
    rows = []
    for table in trace.ranges:
        waits = table.where(named(trace, table, is_loader) & ~of_fetching_thread(trace, table))
        rows.append(waits.where(timeline.steps.inside(waits) > 0))
    names = {trace.names[name] for table in rows for name in table.name.tolist()}
    if not any("_MultiProcessing" in name for name in names):
        return {"loader_workers": 0} if any("_SingleProcess" in name for name in names) else {}
    start = np.concatenate([table.start for table in rows])
    lasting = (np.concatenate([table.end for table in rows]) - start)[np.argsort(start)]
    apart = np.diff(np.flatnonzero(lasting >= _LONG * lasting.max()))
    regular = len(apart) >= _FEWEST - 1 and (apart == apart[0]).all() and apart[0] > 1
    return {"loader_workers": int(apart[0]) if regular else -1}
