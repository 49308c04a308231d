"""The search on 1, 4, 16 and 64 simulated nodes: how long it takes, and how good its answer is.

    python benchmarks/cluster_simulation.py [--worlds 60] [--nodes 1 4 16 64] [--budget 300]

The worlds are those of `search_simulation.py`. A node has a pace of its own, which both sides of a
pair share, and each set gains a little more or less on it. Nothing is launched. It prints a table.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import multiprocessing
from dataclasses import dataclass
from typing import Any

import numpy as np
from search_simulation import NOISES, Outcome, SimulatedSearch, World, row

from torchdoctor.clusters.search import expecting
from torchdoctor.trials.beliefs import Beliefs, Members, Step
from torchdoctor.trials.prices import Prices
from torchdoctor.trials.search_policy import SearchPolicy

_NODE_PART = 0.3  # of a pair's sigma: how much a set's gain differs from node to node


@dataclass(order=True)
class _Pair:
    """A pair that a node measures."""

    ends_s: float
    number: int
    node: int
    members: Members
    took_s: float
    log: float | None


class SearchOnNodes(SimulatedSearch):
    """The policy on a world, as the executor runs it with nodes."""

    def __init__(self, world: World, budget_s: float, nodes: int) -> None:
        super().__init__(world, budget_s)
        self.nodes, self.running = nodes, list[_Pair]()
        random = np.random.default_rng([nodes, 23])
        self.paces = np.exp(random.normal(0.0, 0.1, nodes))
        self.busy_s, self.begun = 0.0, itertools.count()
        self.steps = Step(shares=world.observed, competing=frozenset(["data"]))

    def run(self) -> Outcome:
        """Return how the search ended."""
        outcome, world = Outcome(), self.world
        while True:
            while self.running and self.running[0].ends_s <= world.now:
                self._take()
            policy = self._policy()
            if policy.claims and outcome.first_s is None:
                outcome.first_s = world.now
            if len(self.running) == self.nodes:
                self._wait()
                continue
            pending = [pair.members for pair in self.running]
            action = expecting(policy, pending, self.seed).next()
            one_s = policy.pair_s(action.members) if action.kind == "pair" else 0.0
            fits = world.now + one_s <= self.budget_s
            if self.running and (action.kind != "pair" or not fits):
                self._wait()
                continue
            if action.kind == "stop" or not fits:
                outcome.claim = policy.claims[0] if policy.claims else None
                outcome.reason = action.reason or "time"
                outcome.used_s = world.now
                return outcome
            outcome.actions.append(action)
            if action.kind == "pair":
                self._begin(action.members)
            else:
                self._measure(action)

    def _policy(self) -> SearchPolicy:
        beliefs = Beliefs(self.world.arms, self.steps, self.results, self.seed)
        prices = Prices(
            budget_s=self.nodes * self.budget_s,
            left_s=self.nodes * (self.budget_s - self.world.now),
            launch_s=self.launch_s,
            once_s=self.once_s,
            switch_s=self.world.switch_s,
        )
        return SearchPolicy(beliefs, prices)

    def _begin(self, members: Members) -> None:
        world = self.world
        node = min(set(range(self.nodes)) - {pair.node for pair in self.running})
        began_s = world.now
        log = world.pair(members)
        took_s, world.now = (world.now - began_s) * self.paces[node], began_s
        if log is not None:
            seed = [node, *sorted(hash_of(name) for name in members)]
            spread = _NODE_PART * NOISES[world.noise]
            log += float(np.random.default_rng(seed).normal(0.0, spread))
        pair = _Pair(began_s + took_s, next(self.begun), node, members, took_s, log)
        heapq.heappush(self.running, pair)
        self.busy_s += took_s

    def _wait(self) -> None:
        self.world.now = max(self.world.now, self.running[0].ends_s)
        self._take()

    def _take(self) -> None:
        pair = heapq.heappop(self.running)
        self.took(pair.members, pair.log, pair.took_s)


def hash_of(name: str) -> int:
    """Return a number for a name, the same in every run."""
    return functools.reduce(lambda value, letter: 31 * value + ord(letter), name, 7)


def _searched(wanted: tuple[int, int, float]) -> dict[str, Any]:
    nodes, seed, budget_s = wanted
    world = World(seed, "hard")
    search = SearchOnNodes(world, budget_s, nodes)
    outcome = search.run()
    pairs = sum(action.kind == "pair" for action in outcome.actions)
    busy = search.busy_s / max(nodes * outcome.used_s, 1e-9)
    return {**row(world, outcome), "nodes": nodes, "busy": busy, "pairs": pairs}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--first", type=int, default=9000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--budget", type=float, default=300.0)
    wanted = parser.parse_args()
    seeds = range(wanted.first, wanted.first + wanted.worlds)
    print("| nodes | ends after | first answer | share of gain | intervals hold | pairs | busy |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with multiprocessing.Pool() as pool:
        for nodes in wanted.nodes:
            asked = [(nodes, seed, wanted.budget) for seed in seeds]
            rows = list(pool.imap(_searched, asked))
            told = [each for each in rows if each["fixes"]]
            shares = [x["got"] / x["attainable"] for x in rows if x["attainable"] > 0.02]
            first = [each["first"] for each in told]
            print(
                f"| {nodes} | {np.mean([x['used'] for x in rows]):.0f} s"
                f" | {np.mean(first or [0]):.0f} s | {100 * np.mean(shares):.0f} %"
                f" | {sum(x['held'] for x in told):.0f} of {len(told)}"
                f" | {np.mean([x['pairs'] for x in rows]):.0f}"
                f" | {100 * np.mean([x['busy'] for x in rows]):.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
