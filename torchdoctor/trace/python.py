"""Which lines of Python the host is in while the device waits, by stacks (`with_stack=True`).

What runs in a library counts for the nearest caller in the user's code: that line can be changed.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.facts.stacks import FRAME, is_users
from torchdoctor.trace.columns import Ints, Table, Trace
from torchdoctor.trace.nesting import nest
from torchdoctor.trace.threads import main_thread
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words import Location, PythonPlace
from torchdoctor.words.intervals import Intervals

HOST_BRANCHES = ("runtime", "data_loader", "cpu", "other")
_LISTED = 5
_WORTH = 0.01  # of the step


def python_places(trace: Trace, timeline: Timeline) -> list[PythonPlace]:
    """Return the places that take most exposed host time, at most five; [] without stacks."""
    table = trace.python.where(trace.python.thread == main_thread(trace))
    if not len(table):
        return []
    parent, steps = nest(table).parent, len(timeline.steps)
    by_branch = {}
    for branch in HOST_BRANCHES:
        own_ns = _own_time(table, parent, timeline.exposed_intervals[branch])
        by_branch[branch] = np.bincount(table.name, weights=own_ns / steps / 1e9)
    total = np.sum(list(by_branch.values()), axis=0)
    step_s = timeline.steps.total / steps / 1e9
    places = []
    for name in np.argsort(-total, kind="stable")[:_LISTED]:
        match = FRAME.fullmatch(trace.names[name])
        if match is None or total[name] < _WORTH * step_s:
            continue
        places.append(
            PythonPlace(
                file=match["file"],
                line=int(match["line"]),
                function=match["function"],
                **{f"{branch}_s": float(spent[name]) for branch, spent in by_branch.items()},
            )
        )
    return places


def user_frame(trace: Trace, thread: int, time: int, stack: bytes) -> Location | None:
    """Return the user's line that runs on a thread at a moment, by the stacks; None: not known.

    `stack` is the JSON of frames, innermost first, that the releases of 2021 wrote to an operator.
    """
    table = trace.python
    names: list[str] = []
    if len(table):
        open_then = (table.thread == thread) & (table.start <= time) & (table.end > time)
        rows = np.flatnonzero(open_then)
        names = [trace.names[table.name[row]] for row in rows[np.argsort(-table.start[rows])]]
    elif stack:
        try:
            names = str(msgspec.json.decode(stack)).split(";")
        except msgspec.DecodeError:
            return None
    for name in names:
        match = FRAME.fullmatch(name)
        # Of a script's own level the events hold only the line that ran as the recording began.
        unknown = len(table) and match is not None and match["function"] == "<module>"
        if match is not None and not unknown and is_users(name):
            return Location(file=match["file"], line=int(match["line"]), function=match["function"])
    return None


def _own_time(table: Table, parent: Ints, exposed: Intervals) -> NDArray[np.float64]:
    """Return the exposed time of each frame without that of the frames it calls (ns)."""
    inside = exposed.covered(table.start, table.end).astype(np.float64)
    called = parent >= 0
    within = exposed.covered(
        table.start[called], np.minimum(table.end[called], table.end[parent[called]])
    )
    below = np.bincount(parent[called], weights=within, minlength=len(table))
    own: NDArray[np.float64] = np.maximum(inside - below, 0.0)
    return own
