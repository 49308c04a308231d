"""What changed from one report or trace to another."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.records.report import Finding, Interval


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of both, per step in seconds where its name says nothing else."""

    name: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Changes from A to B; lists are ordered by the size of the change, largest first."""

    step: Change
    per_sample: bool = False
    ratio: Interval | None = None  # B / A with a 95 % interval, where both stored launches
    branches: list[Change] = field(default_factory=list)  # exposed seconds a step
    operators: list[Change] = field(default_factory=list)
    counts: list[Change] = field(default_factory=list)  # kernels, copies, synchronisations a step
    peak_memory: Change | None = None
    new_findings: list[Finding] = field(default_factory=list)
    gone_findings: list[Finding] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
