"""What a replay of the trace says: the step without one of its costs. A model, no measurement."""

from __future__ import annotations

from dataclasses import dataclass, field

REPRODUCED_WITHIN = 0.02  # a replay further from the measured step is not believed


@dataclass(frozen=True, kw_only=True)
class BranchReplay:
    """A step without one cost. `lowest_s`: without the waits of unknown cause as well."""

    step_s: float
    lowest_s: float


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Replays of consecutive steps of a trace; times are means per step.

    Branches: data_loader, memcpy, communication, gpu, cpu (operators, Python and launch calls)
    and runtime (synchronisation and other calls of the driver); None: the trace cannot say.
    """

    steps: int  # that were replayed; 0: steps unknown, the whole trace counts as one
    of_steps: int  # in the trace
    measured_s: float
    replayed_s: float  # as it is, with nothing taken away
    explained_s: float  # as it is, but without the waits of unknown cause
    own_delays: bool = False  # device events were replayed with their own delays, not usual ones
    branches: dict[str, BranchReplay | None] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    @property
    def reproduced(self) -> bool:
        """Whether the replay with nothing taken away is close to what was measured."""
        return abs(self.replayed_s - self.measured_s) <= REPRODUCED_WITHIN * self.measured_s

    def speedup(self, branch: str) -> float | None:
        """Replayed step with nothing taken away, divided by that without the branch."""
        replayed = self.branches.get(branch)
        return self.replayed_s / replayed.step_s if replayed and replayed.step_s > 0 else None
