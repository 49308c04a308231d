"""The moments of the steps that belong to each branch, as intervals."""

from __future__ import annotations

from torchdoctor.recording.intervals import EMPTY, Intervals, intersect, join, subtract
from torchdoctor.recording.timeline import BRANCHES, Timeline


def exposed_intervals(timeline: Timeline) -> dict[str, Intervals]:
    """Branch or "other" -> its exposed time: disjoint, and together the steps."""
    steps = Intervals(timeline.steps.start, timeline.steps.end)
    found, covered = {}, EMPTY
    for branch in BRANCHES:
        own = timeline.branches[branch]
        found[branch] = intersect(subtract(own, covered), steps)
        covered = join(covered, own)
    found["other"] = subtract(steps, covered)
    return found
