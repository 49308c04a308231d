"""The nodes that measure pairs at the same time. What a node loses costs that pair only.

No clock of a node is compared with one of another node: only durations come back.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchdoctor.bench.engine import PairTask, PairTimings
from torchdoctor.bench.failures import Lost
from torchdoctor.bench.pair_times import usable
from torchdoctor.clusters.tasks import Launches, Result, Task, decoded, encoded
from torchdoctor.launch.launch import no_interrupts
from torchdoctor.reports.remarks import sentence
from torchdoctor.schema import Evidence, HostContact, each_once, fact, message, within
from torchdoctor.schema.errors import TorchdoctorError

_POLL_S = 0.05
_MOST_LOST = 2  # pairs in a row that a node may lose


class NoNodeLeftError(TorchdoctorError):
    """No node measures pairs any more; `why`: the same as a fact."""

    def __init__(self, why: Evidence) -> None:
        super().__init__(sentence(why))
        self.why = why


class Running(Protocol):
    """A task on a node."""

    def result(self) -> bytes | Evidence | None:
        """Return the result, or why there will be none. None: it is still measured."""

    def cancel(self) -> None:
        """End it, and wait until nothing of it is left."""


class Node(Protocol):
    """A place that measures one pair at a time."""

    name: str

    def begin(self, data: bytes) -> Running:
        """Start a task; raise TorchdoctorError or OSError where it cannot be handed over."""


@dataclass
class _Place:
    """A node, what it does now, and what became of its pairs."""

    node: Node
    task: PairTask | None = None
    running: Running | None = None
    measured: int = 0
    lost: int = 0  # in a row
    out: Evidence | None = None  # why it gets no more pairs


class Fleet:
    """Hands pairs to nodes and takes what comes back; `Engine` calls it. Close it at the end."""

    def __init__(
        self, nodes: Sequence[Node], launches: Launches, doubts: Sequence[Evidence]
    ) -> None:
        self._places = [_Place(node) for node in nodes]
        self._launches, self._chance = launches, random.Random(launches.seed)
        self._doubts = list(doubts)
        self._pairs: Counter[str] = Counter()  # by the machine's name
        self._kinds: set[str] = set()
        self.escaped: list[str] = []
        self.contacts: list[list[HostContact]] = []

    @property
    def count(self) -> int:
        """Return how many pairs are measured at the same time."""
        return sum(place.out is None for place in self._places)

    @property
    def room(self) -> int:
        """Return how many more could begin now."""
        return sum(place.out is None and place.task is None for place in self._places)

    @property
    def doubts(self) -> list[Evidence]:
        """Return what the report has to say: where pairs were measured, what was lost."""
        doubts = each_once(self._doubts)
        if self._pairs:
            nodes = [{"node": name, "pairs": pairs} for name, pairs in sorted(self._pairs.items())]
            doubts.insert(0, fact("nodes-measured", nodes=nodes))
        if len(self._kinds) > 1:
            doubts.append(fact("nodes-unlike", kinds=sorted(self._kinds)))
        return doubts

    def begin(self, task: PairTask) -> None:
        """Hand a pair to the free node that measured fewest; raise NoNodeLeftError: none is."""
        free = [place for place in self._places if place.out is None and place.task is None]
        data = encoded(Task.of(self._launches, task, self._chance.randrange(1 << 30)))
        for place in sorted(free, key=lambda place: place.measured + place.lost):
            try:
                place.running, place.task = place.node.begin(data), task
                return
            except OSError as error:
                self._leave_out(place, message(f"{error.strerror or error}."))
        left_out = [
            {"node": place.node.name, "why": within(place.out)}
            for place in self._places
            if place.out is not None
        ]
        raise NoNodeLeftError(fact("no-node-left", nodes=left_out))

    def end(self, most_s: float) -> tuple[PairTask, PairTimings | Lost] | None:
        """Wait for the first pair that ends; None: none did within `most_s`."""
        until_s = time.monotonic() + most_s
        while True:
            for place in self._places:
                outcome = place.running.result() if place.running is not None else None
                if outcome is not None:
                    return self._ended(place, outcome)
            if time.monotonic() > until_s or not any(place.running for place in self._places):
                return None
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End all that is still measured, and wait until nothing of it is left."""
        with no_interrupts():
            unfinished = sum(place.running is not None for place in self._places)
            if unfinished:
                self._doubts.append(fact("pairs-unfinished", pairs=unfinished))
            for place in self._places:
                if place.running is not None:
                    place.running.cancel()
                place.running = place.task = None

    def _ended(
        self, place: _Place, outcome: bytes | Evidence
    ) -> tuple[PairTask, PairTimings | Lost]:
        task, place.task, place.running = place.task, None, None
        assert task is not None
        measured = self._read(place, task, outcome)
        if isinstance(measured, Lost):
            place.lost += 1
            why = measured.why
            self._doubts.append(fact("pair-lost", node=place.node.name, why=within(why)))
            if place.lost >= _MOST_LOST and place.out is None:
                self._leave_out(place, why)
        else:
            place.measured, place.lost = place.measured + 1, 0
        return task, measured

    def _read(self, place: _Place, task: PairTask, outcome: bytes | Evidence) -> PairTimings | Lost:
        if isinstance(outcome, Evidence):
            return Lost(why=outcome)
        try:
            result = decoded(outcome, Result, f"the result of {place.node.name}")
        except TorchdoctorError as error:
            return Lost(why=message(str(error)))
        problem = result.problem or (None if place.measured else _own_failure(task, result))
        if problem is not None:
            self._leave_out(place, problem)
            return Lost(why=problem)
        self._pairs[result.node] += 1
        self._kinds.add(result.kind)
        self._doubts += result.doubts
        self.contacts += result.contacts
        self.escaped += [path for path in result.escaped if path not in self.escaped]
        return result.measured

    def _leave_out(self, place: _Place, why: Evidence) -> None:
        place.out = why
        self._doubts.append(fact("node-left-out", node=place.node.name, why=within(why)))


def _own_failure(task: PairTask, result: Result) -> Evidence | None:
    """Return how the untouched program itself failed, on a node that never measured a pair."""
    order = task.arms[::-1] if task.swapped else task.arms
    for arm, timing in zip(order, result.timings, strict=False):
        ended_by_itself = timing.ended == "failed" and not timing.stopped
        if arm is task.arms[0] and ended_by_itself and not timing.blocks and not usable(timing):
            why = timing.why or fact("reason-unknown")
            return fact("program-failed-on-node", node=result.node, why=within(why))
    return None
