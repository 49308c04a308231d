"""Phases of a training in which nothing is learned, and which no measured step shows.

A phase is a stretch between two passes that learn in which models are called without gradients: an
evaluation, or a rollout of reinforcement learning.
"""

from dataclasses import dataclass

import numpy as np

from torchdoctor.observe.events import Events, learning_rows
from torchdoctor.probe import step_log
from torchdoctor.schema import UnobservedPhase

_FEWEST_CALLS = 3  # of models, to be a phase
_LEAST = 0.05  # of the measured time
_LIKE = 0.5  # of a phase's time, for a shorter one to be of its kind
_GRAD, _TRAINING = 1, 2  # bits of a forward's value


@dataclass(frozen=True)
class _Phase:
    kind: str
    calls: int
    first: int  # row of its first forward
    seconds: float


def unobserved_phases(
    events: Events, boundaries: np.ndarray, edges: np.ndarray
) -> list[UnobservedPhase]:
    """Return the phases that came, but not between `edges`; `boundaries`: rows of all steps."""
    if events.learned_by == "forward":
        return []
    phases = _phases(events)
    measured_s = float(events.t_ns[edges[-1]] - events.t_ns[edges[0]]) / 1e9
    unobserved = []
    for kind in dict.fromkeys(phase.kind for phase in phases):
        alike = [phase for phase in phases if phase.kind == kind]
        inside = [phase for phase in alike if edges[0] <= phase.first < edges[-1]]
        outside = [phase for phase in alike if phase not in inside]
        total_s = sum(phase.seconds for phase in outside)
        if not outside or total_s < _LEAST * measured_s:
            continue
        mean_s = total_s / len(outside)
        if any(phase.seconds >= _LIKE * mean_s for phase in inside):
            continue
        steps = np.searchsorted(boundaries, [phase.first for phase in outside])
        distances = np.diff(steps)
        unobserved.append(
            UnobservedPhase(
                kind=kind,
                seconds=mean_s,
                times=len(outside),
                calls=round(sum(phase.calls for phase in outside) / len(outside)),
                steps_between=int(np.median(distances)) if len(distances) else None,
            )
        )
    return unobserved


def _phases(events: Events) -> list[_Phase]:
    """Return all phases, in their order."""
    forwards = events.at(step_log.FORWARD_BEGIN)
    forwards = forwards[(events.value[forwards] & _GRAD) == 0]
    ends = events.at(step_log.FORWARD_END)
    fetches = events.at(step_log.FETCH_BEGIN)
    section = np.searchsorted(learning_rows(events), forwards)
    phases = []
    for rows in np.split(forwards, np.flatnonzero(np.diff(section)) + 1):
        if len(rows) < _FEWEST_CALLS:
            continue
        first = int(rows[0])
        last = int(rows[-1])
        end = ends[np.searchsorted(ends, last) :][:1]
        stop = min(int(end[0]) + 1 if len(end) else last, len(events) - 1)
        fetched = np.searchsorted(fetches, last) - np.searchsorted(fetches, first)
        in_training_mode = (events.value[rows] & _TRAINING) > 0
        is_rollout = in_training_mode.all() and not fetched
        seconds = float(events.t_ns[stop] - events.t_ns[first]) / 1e9
        kind = "rollout" if is_rollout else "evaluation"
        phases.append(_Phase(kind, len(rows), first, seconds))
    return phases
