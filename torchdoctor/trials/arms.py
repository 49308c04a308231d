"""The arms of a trial: the untouched program, a candidate, or several fixes together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from torchdoctor.pairs.pair_times import usable
from torchdoctor.trials.numerics import RISKS
from torchdoctor.trials.rounds import Slot
from torchdoctor.trials.samples import Preparation
from torchdoctor.words import Candidate, LaunchTiming
from torchdoctor.words.figures import fix_with_settings

Fixes = list[tuple[str, dict[str, Any]]]

_WIDE_GAP = 8  # times: two named values so far apart have one between them tried


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A setting that may be any whole number between two.

    `today`: the untouched program's value, which gains nothing.
    """

    setting: str
    least: int
    most: int
    today: int | None = None

    def further(self, named: Collection[int]) -> list[int]:
        """Return values beside those that the fix names: within wide gaps, and beyond the ends."""
        rising = sorted(named)
        between = [
            math.sqrt(low * high)
            for low, high in itertools.pairwise(rising)
            if high >= _WIDE_GAP * low > 0
        ]
        ends = [2 * rising[-1], 4 * rising[-1], rising[0] / 2]
        values = [min(max(round(value), self.least), self.most) for value in [*between, *ends]]
        return [value for value in dict.fromkeys(values) if value not in {*named, self.today}]


@dataclass(frozen=True, kw_only=True)
class FixFacts:
    """The facts of a fix that its trials need."""

    keeps_results: str = "within rounding"  # as in its `FixSpec`
    setup_s: float = 0.0  # one-time cost that is expected before its first launch
    includes: frozenset[str] = frozenset()  # fixes that it applies as well
    phases: frozenset[str] = frozenset()  # of the step, that it works on; empty: not known
    switches: bool = False  # on and off in a running program (`FixSpec.when`)
    ladder: Ladder | None = None  # a setting of which more values may be tried
    how: Preparation = field(default_factory=Preparation)  # how it prepares samples
    doubted: bool = False  # `doubt`: recommended only if it was measured to train the same
    p_helps: float = 0.35  # probability that it helps a program that it is made for

    @property
    def risk(self) -> int:
        """Return 0 for the same result, 1 rounding or order, 2 precision, 3 changed training."""
        return RISKS[self.keeps_results]


@dataclass(kw_only=True)
class Arm:
    """The untouched program, a candidate, or several fixes together."""

    key: str
    fixes: Fixes = field(default_factory=list)
    facts: FixFacts = field(default_factory=FixFacts)
    candidate: Candidate | None = None
    slots: list[Slot] = field(default_factory=list)  # with the program's own seed
    cost_s: float = 0.0
    failed: str | None = None
    refused: str | None = None
    remarks: list[str] = field(default_factory=list)  # for its row of the report
    further: bool = False  # a setting that its fix does not name

    @property
    def alive(self) -> bool:
        """Return True if it may be launched again."""
        return self.failed is None and self.refused is None

    @property
    def timings(self) -> list[LaunchTiming]:
        """Return its launches that can be used."""
        return [slot.timing for slot in self.slots if usable(slot.timing)]

    @property
    def ids(self) -> list[str]:
        """Return the ids of its fixes."""
        return [fix for fix, _ in self.fixes]

    @property
    def usable_before(self) -> int:
        """Return how many of its launches could be used."""
        return len(self.timings)

    def with_settings(self, key: str, settings: dict[str, Any], further: bool = False) -> Arm:
        """Return a new candidate whose first fix has these settings."""
        assert self.candidate is not None
        return Arm(
            key=key,
            fixes=[(self.fixes[0][0], settings), *self.fixes[1:]],
            facts=self.facts,
            candidate=replace(self.candidate, settings=settings),
            further=further,
        )


def label(fixes: Fixes) -> str:
    """Return fixes with settings, such as "loader-workers (num_workers=4) + set-to-none"."""
    return " + ".join(fix_with_settings(fix, settings) for fix, settings in fixes)
