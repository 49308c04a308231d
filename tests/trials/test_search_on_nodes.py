"""The search with nodes that measure pairs at the same time: simulated, on one clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from simulated_program import Simulated, SimulatedPairs, SimulatedStarts, seeds, try_all

from torchdoctor.bench.engine import PairTask, PairTimings, measure
from torchdoctor.bench.failures import Lost
from torchdoctor.clusters.search import expecting
from torchdoctor.schema import Evidence, message
from torchdoctor.schema.errors import TorchdoctorError
from torchdoctor.trials.beliefs import Arm, Beliefs, Results, Step
from torchdoctor.trials.prices import Prices
from torchdoctor.trials.search_policy import SearchPolicy

GAINS = {"workers": 1.5, "fused": 1.3, "d": 1.2, "g": 0.9}
BEST = {"workers", "fused", "d"}
NAMES = ["workers", "fused", *"abcdefgh"]


@dataclass
class SimulatedNodes:
    """Nodes of a simulated program.

    Attributes:
        loses: numbers of pairs that are lost, from 1 on.
        interrupt_at: the pair during which Ctrl-C is pressed.
        gone: none of them takes a pair.
        most: pairs that were measured at the same time.
    """

    program: Simulated
    count: int
    loses: tuple[int, ...] = ()
    interrupt_at: int | None = None
    gone: bool = False
    most: int = 0
    begun: int = 0
    closed: int = 0
    waiting: list[tuple[float, PairTask, PairTimings | Lost]] = field(default_factory=list)
    doubts: list[Evidence] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)
    contacts: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts: Any = SimulatedStarts(self.program, SimulatedPairs(self.program))

    @property
    def room(self) -> int:
        return self.count - len(self.waiting)

    def begin(self, task: PairTask) -> None:
        if self.gone:
            raise TorchdoctorError("No node is left.")
        assert self.room > 0
        began_s, self.begun = self.program.now, self.begun + 1
        timings = measure(self.starts, task, random.Random(self.begun), self.program.clock)
        ends_s, self.program.now = self.program.now, began_s
        lost = Lost(why=message("the node went away"))
        self.waiting.append((ends_s, task, lost if self.begun in self.loses else timings))
        self.most = max(self.most, len(self.waiting))

    def end(self, most_s: float) -> tuple[PairTask, PairTimings | Lost] | None:
        first = min(self.waiting, key=lambda x: x[0])
        if self.begun == self.interrupt_at and most_s > 0:
            raise KeyboardInterrupt
        if first[0] > self.program.now + most_s:
            self.program.now += most_s
            return None
        self.waiting.remove(first)
        self.program.now = max(self.program.now, first[0])
        return first[1:]

    def close(self) -> None:
        self.closed = len(self.waiting)
        self.waiting.clear()


def searched(count: int, seed: int = 0, budget_s: float = 600.0, **more: Any) -> Any:
    program = Simulated(gains=GAINS, noise=(0.03, 0.0, 0.0), seed=seed)
    nodes = SimulatedNodes(program, count, **more)
    results = try_all(program, NAMES, budget_s, pairs=SimulatedPairs(program), nodes=nodes)
    return results, nodes, program.now


def recommended(results: Any) -> set[str]:
    return {fix.fix for fix in results.recommendation.fixes}


def test_four_nodes_come_to_the_same_answer_sooner() -> None:
    alone, _, alone_s = searched(1, budget_s=1200.0)
    spread, nodes, spread_s = searched(4, budget_s=1200.0)
    assert recommended(alone) == recommended(spread) == BEST
    assert nodes.most == 4 and spread_s < 0.5 * alone_s
    low, high = spread.recommendation.speedup.low, spread.recommendation.speedup.high
    assert low < 1.5 * 1.3 * 1.2 < high


def test_what_nodes_found_is_proven_by_its_patch() -> None:
    program = Simulated(gains=GAINS, noise=(0.01, 0.0, 0.0), seed=1)
    nodes = SimulatedNodes(program, 3)
    results = try_all(
        program,
        NAMES,
        1200.0,
        pairs=SimulatedPairs(program),
        nodes=nodes,
        make_patch=lambda fixes: None,
    )
    assert results.recommendation.handed_out == "patch" and nodes.most > 1
    assert recommended(results) == set(results.source_patch.fixes) >= {"workers"}
    assert results.recommendation.patch_trial.pairs >= 1 and nodes.closed == 0


def test_a_lost_pair_costs_nothing_else() -> None:
    results, nodes, _ = searched(3, seed=1, loses=(1, 4))
    assert recommended(results) == BEST and results.stopped == "decided"
    assert results.launches == 2 * (nodes.begun - 2)


def test_ctrl_c_keeps_what_was_measured() -> None:
    results, nodes, _ = searched(3, interrupt_at=6)
    assert results.stopped == "interrupted" and results.interrupted
    assert results.launches == 2 * 3, "of six pairs three had ended"
    assert nodes.closed == 3, "these were ended"


def test_pairs_that_do_not_end_within_the_budget_are_not_waited_for() -> None:
    results, _, now = searched(2, budget_s=35.0)
    assert results.stopped in ("time", "decided") and now <= 35.0 + 10.0


def test_where_no_node_is_left_the_search_stops_with_its_reason() -> None:
    results, _, _ = searched(1, gone=True)
    assert results.stopped == "failed"
    assert "trials-stopped" in [doubt.fact for doubt in results.doubts]


@pytest.mark.slow
def test_intervals_hold_on_many_nodes() -> None:
    searches = seeds(30)
    found = [searched(8, seed)[0].recommendation for seed in searches]
    holds = 0
    for each in found:
        truth = 1.0
        for fix in each.fixes:
            truth *= GAINS.get(fix.fix, 1.0)
        holds += each.speedup is None or each.speedup.low <= truth <= each.speedup.high
    assert holds >= 0.9 * len(searches)


def test_the_policy_expects_what_is_measured_now() -> None:
    """It spreads the nodes over candidates, and claims nothing that no pair has shown."""
    arms = [Arm(name=x, fixes=frozenset(x), p_helps=0.5, ceiling=2.0) for x in "abcd"]
    prices = Prices(budget_s=1200.0, left_s=1200.0, launch_s=5.0)
    policy = SearchPolicy(Beliefs(arms, Step(), Results(), 0), prices)
    pending: list[frozenset[str]] = []
    for _ in range(4):
        action = expecting(policy, pending, 0).next()
        assert action.kind == "pair"
        pending.append(action.members)
    assert len(set(pending)) >= 2
    assert not policy.claims and not policy.results.pairs
