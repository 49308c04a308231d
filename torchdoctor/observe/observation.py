"""What the launches that are not timed showed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchdoctor.observe.step_finding import StepsFound
from torchdoctor.words import (
    ProcessFacts,
    ProgramFailure,
    SensorStatistics,
    StepStatistics,
    TraceStatistics,
)
from torchdoctor.words.program import ANALYSED


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the first launch showed."""

    found: StepsFound
    steps: StepStatistics
    processes: list[ProcessFacts]  # trainers first, the main one at 0
    sensors: SensorStatistics
    wall_s: float
    start_s: float  # until the first boundary
    doubts: list[str] = field(default_factory=list)
    failure: ProgramFailure | None = None  # of the program by itself, after enough steps
    interrupted: bool = False  # by Ctrl-C; what was seen until then counts


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """What the profiled launch showed: its trace, and what the hooks saw after the trace."""

    trace: TraceStatistics
    analysed: ProcessFacts | None = None  # None: the program ended before

    def added_to(self, processes: list[ProcessFacts]) -> list[ProcessFacts]:
        """What was observed, the main trainer first, with what only those hooks see."""
        if self.analysed is None:
            return processes
        seen_there = {name: getattr(self.analysed, name) for name in ANALYSED}
        return [replace(processes[0], **seen_there), *processes[1:]]
