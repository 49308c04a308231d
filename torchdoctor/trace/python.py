"""Which lines of Python the host is in while the device waits, by stacks (`with_stack=True`).

What runs in a library counts for the nearest caller in the user's code: that line can be changed.
"""

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.queries.stacks import FRAME, is_users
from torchdoctor.schema import Location, PythonCall, PythonPlace
from torchdoctor.schema.intervals import Intervals, intersect
from torchdoctor.trace.columns import Ints, Table, Trace, named, rows_by
from torchdoctor.trace.loop_marks import main_thread
from torchdoctor.trace.nesting import nest
from torchdoctor.trace.timeline import Timeline

HOST_BRANCHES = ("runtime", "data_loader", "cpu", "other")
_LISTED = 5
_WORTH = 0.01  # of the step
_NEARLY_ALL, _NAMED = 0.95, 0.1  # of the time of the function that calls
_WAITS = re.compile(
    r"<(?:built-in )?(?:function|method) '?(?:sleep|select|e?poll|recv|acquire|wait|read|accept"
    r"|connect|getaddrinfo|fsync)|.*threading\.py\(\d+\): wait"
)


def python_places(trace: Trace, timeline: Timeline) -> list[PythonPlace]:
    """Return the places that take most exposed host time, at most five; [] without stacks."""
    frames = trace.python.where(trace.python.thread == main_thread(trace))
    table = frames.where(named(trace, frames, is_users))
    if not len(table):
        return []
    calls = _Calls(trace, frames, timeline)
    parent = nest(table).parent
    steps = len(timeline.steps)
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
                waiting_s=calls.waiting_s(name),
                calls=calls.longest(name),
                **{f"{branch}_s": float(spent[name]) for branch, spent in by_branch.items()},
            )
        )
    return places


class _Calls:
    """What functions of the user's call, by the exposed time of Python outside any operator."""

    def __init__(self, trace: Trace, frames: Table, timeline: Timeline) -> None:
        self.names, self.frames, self.parent = trace.names, frames, nest(frames).parent
        self.steps = len(timeline.steps)
        exposed = timeline.exposed_intervals["other"]
        self.spent_ns = exposed.covered(frames.start, frames.end)
        waits = named(trace, frames, _WAITS.match)
        self.waited = intersect(frames.spans(waits), exposed)

    def waiting_s(self, name: int) -> float:
        """Return what of a function's time passes in sleeps, locks, input and output, per step."""
        function_spans = self.frames.spans(self.frames.name == name)
        return float(intersect(function_spans, self.waited).total) / self.steps / 1e9

    def longest(self, name: int) -> list[PythonCall]:
        """Return the functions among which most of the time of one is divided, longest first."""
        rows = self._single(np.flatnonzero(self.frames.name == name))
        least = _NAMED * self.spent_ns[rows].sum()
        parts = [ints for ints in self._called(rows) if self.spent_ns[ints].sum() >= max(least, 1)]
        calls = []
        for part in map(self._single, parts or [rows]):
            match = FRAME.fullmatch(self.names[self.frames.name[part[0]]])
            if match is not None:
                host_s = float(self.spent_ns[part].sum()) / self.steps / 1e9
                file = match["file"]
                line = int(match["line"])
                function = match["function"]
                calls.append(PythonCall(file=file, line=line, function=function, host_s=host_s))
        return calls[:_LISTED]

    def _called(self, rows: Ints) -> list[Ints]:
        """Return the frames right inside others, by their function; the longest first."""
        inside = np.flatnonzero(np.isin(self.parent, rows))
        groups = [inside[rows] for rows in rows_by(self.frames.name[inside]).values()]
        return sorted(groups, key=lambda group: -int(self.spent_ns[group].sum()))

    def _single(self, rows: Ints) -> Ints:
        """Return the innermost function of a file that nearly all of the time passes in."""
        for group in self._called(rows)[:1]:
            is_file = FRAME.fullmatch(self.names[self.frames.name[group[0]]])
            if (
                is_file
                and self.spent_ns[group].sum() >= _NEARLY_ALL * self.spent_ns[rows].sum() > 0
            ):
                return self._single(group)
        return rows


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
    own_ns: NDArray[np.float64] = np.maximum(inside - below, 0.0)
    return own_ns
