"""The engine whose pairs are measured on the nodes of a cluster, and judged here."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.failures import Lost, Outcome
from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.clusters.fleet import Fleet
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.schema import Pair, fact
from torchdoctor.schema.errors import Inconclusive, TorchdoctorError


class ClusterEngine(Engine):
    """An engine with a fleet; arguments as of `Engine`. Launches that are no pair are made here."""

    def __init__(
        self,
        starts: ProgramLaunches,
        chance: random.Random,
        *,
        fleet: Fleet,
        patience: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(starts, chance, patience=patience, clock=clock)
        self.fleet = fleet

    def begin(self, arm: LaunchSpec, against: LaunchSpec, most_s: float) -> None:
        """Have a pair measured by a node; raise TorchdoctorError where none is left."""
        self.fleet.begin(self.task(arm, against, most_s))

    def end(self, most_s: float) -> tuple[LaunchSpec, Pair | Outcome, Sequence[float]] | None:
        """Wait for the first pair that ends; return its arm, the pair, and seconds of its sides.

        None: none ended within `most_s`.
        """
        ended = self.fleet.end(most_s)
        if ended is None:
            return None
        task, measured = ended
        if isinstance(measured, Lost):
            return task.arms[1], measured, ()
        return task.arms[1], self.taken(task, measured), measured.seconds

    def pair(
        self, arm: LaunchSpec, against: LaunchSpec = UNTOUCHED, *, most_s: float = math.inf
    ) -> Pair | Outcome:
        """Keep every node busy with pairs of these two, and return the one that ends first.

        Raise Inconclusive where no node is left.
        """
        try:
            while self.fleet.room or not self.fleet.count:
                self.begin(arm, against, most_s)
        except TorchdoctorError as error:
            raise Inconclusive(str(error)) from error
        ended = self.end(most_s)
        if ended is None:
            return Lost(why=fact("no-pair-in-time"), cut_off=True)
        return ended[1]

    def close(self) -> None:
        """End what nodes still measure, and tell the report of them."""
        self.fleet.close()
        self._starts.recorder.doubts += self.fleet.doubts
        self._starts.recorder.escaped += self.fleet.escaped
        self._starts.recorder.contacts += self.fleet.contacts
