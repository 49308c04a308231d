"""The search policy on random simulated programs: what it gains, what it claims, when it stops.

    python benchmarks/search_simulation.py [--worlds 3000] [--budgets 30 60 100 165] [--mix hard]
        [--rows rows.jsonl]

Nothing is launched: a world has its own clock, true gains that the policy is not told, and pairs
with the noise of a quiet, a typical or a bad machine. With `--rows` each world is a line of that
file, and a run that was stopped goes on from it. The assertions of `tests/trials` hold for a tenth
of their programs; TORCHDOCTOR_FULL_SIMULATION=1 makes these tests take all of them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from row_log import append, rows_of

from torchdoctor.trials.beliefs import Arm, Beliefs, Members, Results, Step
from torchdoctor.trials.claimed_sets import Claim
from torchdoctor.trials.claims import TAIL_SHARE, TAIL_WIDTH, WIDEST, BlockGain
from torchdoctor.trials.measurement_options import Action
from torchdoctor.trials.prices import Prices
from torchdoctor.trials.proof import pooled
from torchdoctor.trials.search_policy import SearchPolicy

CATALOGUE = [  # fix, phases, chance to help, part of its phases removed, switches, compiles, risk
    ("workers", "data", 0.6, (0.3, 0.95), 0.6, False, 0),
    ("cache", "data", 0.5, (0.5, 1.0), 0.0, False, 0),
    ("prefetch", "data", 0.2, (0.02, 0.3), 0.6, False, 0),
    ("pin", "data", 0.2, (0.02, 0.15), 0.6, False, 0),
    ("bf16", "compute", 0.5, (0.1, 0.65), 1.0, False, 2),
    ("channels-last", "compute", 0.35, (0.05, 0.4), 1.0, False, 1),
    ("tf32", "compute", 0.2, (0.05, 0.5), 1.0, False, 2),
    ("threads", "compute", 0.25, (0.05, 0.4), 1.0, False, 1),
    ("compile", "compute+overhead", 0.55, (0.1, 0.7), 0.0, True, 1),
    ("fused", "overhead", 0.4, (0.1, 0.6), 0.0, False, 1),
    ("foreach", "overhead", 0.25, (0.05, 0.4), 1.0, False, 1),
    ("allocator", "overhead", 0.2, (0.05, 0.3), 0.0, False, 0),
    ("no-grad", "overhead", 0.3, (0.2, 0.9), 1.0, False, 0),
]
NOISES = {"quiet": 0.016, "typical": 0.06, "bad": 0.14}  # standard deviation of a pair
BLOCK_S = 0.5
Random = np.random.Generator


class World:
    """A program on a machine, with its own clock.

    Args:
        seed: of the program and of its noise.
        mix: "hard": 1 to 9 fixes of the catalogue; "waits": a step that waits 89 % for data, and a
            cache that ends nearly all of it; "nothing": as "hard", and no fix gains anything;
            "riders": one fix gains, four that the prior likes do neither good nor harm.
    """

    def __init__(self, seed: int, mix: str = "hard") -> None:
        r = np.random.default_rng([seed, 17])
        self.launch_s = float(r.uniform(3.0, 15.0))
        self.noise = list(NOISES)[int(r.integers(3))]
        self.once_s = float(r.uniform(20.0, 60.0))
        self.arms: list[Arm] = []
        self.removes: dict[str, float] = {}  # part of its phases that an arm removes
        self.losses: dict[str, float] = {}  # log slow-down
        self.fails: set[str] = set()
        if mix == "waits":
            self._make_waiting(r)
        elif mix == "riders":
            self._make_riders(r)
        else:
            self._make_hard(r, gains=mix != "nothing")
        self.expected_s = self.launch_s * float(r.uniform(0.9, 1.2))
        self.carried = {arm.name: _carried(r) for arm in self.arms}
        kept = np.random.default_rng([seed, 23]).normal(1.0, 0.2, len(self.arms))
        self.kept = dict(zip(self.carried, kept, strict=True))  # part of a gain that carries over
        self.pairwise = {
            frozenset(both): float(r.normal(0, 0.02))
            for both in itertools.combinations([arm.name for arm in self.arms], 2)
        }
        self.antagonists = r.random() < 0.25  # workers and a cache get in each other's way
        self.now, self.pace = 0.0, 1.0
        self.random = np.random.default_rng([seed, 99])
        self.compiled: set[Members] = set()

    def _make_hard(self, r: Random, gains: bool) -> None:
        phases = ["data", "compute", "overhead"]
        main = phases[int(r.integers(3))]
        self.shares = {main: float(r.uniform(0.35, 0.92))}
        rest = (1 - self.shares[main]) * r.dirichlet([1.0, 1.0, 1.0])
        for phase, share in zip([p for p in phases if p != main], rest, strict=False):
            self.shares[phase] = float(share)
        self.observed = {
            phase: min(0.97, max(0.005, share * float(r.uniform(0.9, 1.08))))
            for phase, share in self.shares.items()
        }
        for index in r.permutation(len(CATALOGUE))[: int(r.integers(1, 10))]:
            fix, where, p, (low, high), switches, compiles, risk = CATALOGUE[index]
            helps, part = gains and r.random() < p, float(r.uniform(low, high))
            loss = 0.0 if r.random() < 0.6 else abs(float(r.normal(0, 0.15)))
            known = min(0.95, max(0.03, p * float(r.uniform(0.6, 1.4))))
            arm = Arm(
                name=fix,
                fixes=frozenset([fix]),
                phases=frozenset(where.split("+")),
                p_helps=known,
                risk=risk,
                switches=r.random() < switches,
                once_s=self.once_s * float(r.uniform(0.7, 1.4)) if compiles else 0.0,
            )
            best = int(r.choice([2, 4, 8]))
            for setting in (2, 4, 8) if fix == "workers" else (None,):
                apart = abs(math.log2(setting / best)) if setting else 0.0
                removes = part * (1 - 0.25 * apart) if helps else 0.0
                self._add(arm, setting, removes, 0.0 if helps else loss)
                if r.random() < 0.03:
                    self.fails.add(self.arms[-1].name)

    def _make_waiting(self, r: Random) -> None:
        self.noise = "bad" if r.random() < 0.5 else "typical"
        self.launch_s = float(r.uniform(6.0, 14.0))
        self.shares = self.observed = {"data": 0.89, "compute": 0.07, "overhead": 0.03}
        rows = {
            "cache": (None, 0.93 + 0.06 * float(r.random()), 0.5),
            "workers 2": (2, 0.45, 0.6),
            "workers 4": (4, 0.65, 0.6),
            "workers 8": (8, 0.6, 0.6),
            "prefetch": (None, 0.05, 0.2),
            "pin": (None, 0.0, 0.2),
            "bf16": (None, 0.0, 0.5),
            "compile": (None, 0.2, 0.55),
        }
        for name, (setting, part, prior) in rows.items():
            fix = name.split()[0]
            _, where, _, _, _, compiles, risk = next(row for row in CATALOGUE if row[0] == fix)
            arm = Arm(
                name=fix,
                fixes=frozenset([fix]),
                phases=frozenset(where.split("+")),
                p_helps=prior,
                risk=risk,
                switches=fix == "bf16",
                once_s=self.once_s if compiles else 0.0,
            )
            self._add(arm, setting, part, 0.0)

    def _make_riders(self, r: Random) -> None:
        self.shares = self.observed = {"data": 0.1, "compute": 0.3, "overhead": 0.6}
        gains = {"fused": 0.5 + 0.4 * float(r.random())}
        for fix, where, *_ in CATALOGUE:
            if fix in ("fused", "foreach", "allocator", "threads", "pin"):
                arm = Arm(
                    name=fix,
                    fixes=frozenset([fix]),
                    phases=frozenset([where]),
                    p_helps=0.6,
                    switches=fix in ("foreach", "threads"),
                )
                self._add(arm, None, gains.get(fix, 0.0), 0.0)

    def _add(self, arm: Arm, setting: int | None, removes: float, loss: float) -> None:
        share = sum(self.observed[phase] for phase in arm.phases)
        arm = replace(arm, ceiling=1.0 / (1.0 - min(0.97, share)))
        if setting is not None:
            name = f"{arm.name} {setting}"
            arm = replace(arm, name=name, family=frozenset([arm.name]), setting=float(setting))
        self.arms.append(arm)
        self.removes[arm.name], self.losses[arm.name] = removes, loss

    def gain(self, names: Sequence[str] | Members) -> float:
        """Return the true log speed-up of a set."""
        left = dict.fromkeys(self.shares, 1.0)
        infos = {arm.name: arm for arm in self.arms}
        total = -sum(self.losses[name] for name in names)
        for name in names:
            for phase in infos[name].phases:
                kept = 1 - self.removes[name]
                left[phase] = min(left[phase], kept) if phase == "data" else left[phase] * kept
        if {"workers", "cache"} <= {name.split()[0] for name in names} and self.antagonists:
            left["data"] = min(1.0, 1.5 * left["data"] + 0.1)
        total -= math.log(1.0 - sum(s * (1 - left[phase]) for phase, s in self.shares.items()))
        both = itertools.combinations(sorted(names), 2)
        return total + sum(self.pairwise[frozenset(pair)] for pair in both)

    def attainable(self) -> float:
        """Return the true log speed-up of the best set."""
        families: dict[str, list[list[str]]] = {}
        for arm in self.arms:
            family = families.setdefault(arm.family or arm.name, [[]])
            if arm.name not in self.fails:
                family.append([arm.name])
        return max(
            self.gain([*itertools.chain(*way)]) for way in itertools.product(*families.values())
        )

    def pair(self, members: Members) -> float | None:
        """Return the log speed-up of one pair; None: the set failed."""
        once_s = 0.0
        if "compile" in members:
            operators = any(
                "compute" in arm.phases
                for arm in self.arms
                if arm.name in members and arm.name != "compile"
            )
            warm = frozenset(["compile"]) in self.compiled and not operators
            once_s = self.once_s * (0.15 if warm or members in self.compiled else 1.0)
            self.compiled.add(members)
        cost_s = self._launch_s() + self._launch_s() + once_s
        if self.fails & members:
            self.now += 0.6 * cost_s
            return None
        self.now += cost_s
        return self.gain(members) + float(self._errors(NOISES[self.noise], 1)[0])

    def switch_s(self, names: Sequence[str], rounds: int) -> float:
        """Return the expected seconds of a switching launch."""
        return 0.6 * self.expected_s + rounds * (len(names) + 2) * BLOCK_S

    def switched(self, names: Sequence[str], rounds: int) -> dict[str, BlockGain]:
        """Return what blocks within one launch say."""
        sigma = NOISES[self.noise]
        gains = np.array([self.gain([name]) + self.carried[name] for name in names])
        gains += self.random.normal(0, 0.4 * sigma, len(names))
        gains *= [self.kept[name] for name in names]
        block = max(0.01, 0.7 * sigma)
        base = self._errors(block, rounds * 2).reshape(rounds, 2)
        own = self._errors(block, rounds * len(names)).reshape(rounds, -1) - gains
        self.now += 0.6 * self.launch_s * self.pace
        self.now += float(np.exp(np.concatenate([base, own], axis=1)).sum()) * BLOCK_S
        logs = base.mean(axis=1)[:, None] - own
        rest = np.abs(logs - np.median(logs, axis=0))
        spread = 1.4826 * float(np.median(rest)) * math.sqrt(rounds / (rounds - 1))
        return {
            name: BlockGain.of(list(column), spread)
            for name, column in zip(names, logs.T, strict=True)
        }

    def _launch_s(self) -> float:
        drift = math.exp(float(self.random.normal(0, 0.04)))
        self.pace = min(1.3, max(0.85, self.pace * drift))
        return self.launch_s * self.pace

    def _errors(self, sigma: float, count: int) -> np.ndarray:
        wide = max(min(TAIL_WIDTH, WIDEST / NOISES[self.noise]), 1.0)
        far = np.where(self.random.random(count) < TAIL_SHARE, wide, 1.0)
        return np.asarray(sigma * far * self.random.normal(0, 1, count))


def _carried(r: Random) -> float:
    """Return what of a gain within one launch does not carry over to others."""
    return float(r.normal(0, 0.02) + (r.random() < 0.05) * r.normal(0, 0.15))


@dataclass
class Outcome:
    """How one search ended."""

    claim: Claim | None = None
    reason: str = ""
    used_s: float = 0.0
    first_s: float | None = None  # when something could first be recommended
    actions: list[Action] = field(default_factory=list)
    overrun: bool = False


class SimulatedSearch:
    """The policy on a world, as the executor runs it."""

    def __init__(self, world: World, budget_s: float, seed: int = 0) -> None:
        self.world, self.budget_s, self.seed = world, budget_s, seed
        self.run_time: dict[Members, list[float]] = {}
        self.patched: dict[Members, list[float]] = {}
        self.results = Results(makes_patches=True)
        self.launch_s, self.once_s = world.expected_s, dict[str, float]()

    def run(self) -> Outcome:
        """Return how the search ended."""
        step = Step(shares=self.world.observed, competing=frozenset(["data"]))
        outcome = Outcome()
        while True:
            beliefs = Beliefs(self.world.arms, step, self.results, self.seed)
            prices = Prices(
                budget_s=self.budget_s,
                left_s=self.budget_s - self.world.now,
                launch_s=self.launch_s,
                once_s=self.once_s,
                switch_s=self.world.switch_s,
            )
            policy = SearchPolicy(beliefs, prices)
            if policy.claims and outcome.first_s is None:
                outcome.first_s = self.world.now
            action = policy.next()
            outcome.actions.append(action)
            if action.kind == "stop":
                outcome.claim = policy.claims[0] if policy.claims else None
                outcome.reason, outcome.used_s = action.reason, self.world.now
                outcome.overrun = self.world.now > 1.02 * self.budget_s
                return outcome
            self._measure(action)

    def _measure(self, action: Action) -> None:
        if action.kind == "switch":
            blocks = self.world.switched(action.arms, action.rounds)
            count = self.results.switch_launches + 1
            blocks = {**self.results.blocks, **blocks}
            self.results = replace(self.results, blocks=blocks, switch_launches=count)
            return
        members, began_s = action.members, self.world.now
        log = self.world.pair(members)
        self.took(members, log, self.world.now - began_s)

    def took(self, members: Members, log: float | None, took_s: float) -> None:
        """Take the log speed-up of a pair (None: the set failed), and what it took."""
        if log is None:
            failed = self.results.failed | (members if len(members) == 1 else frozenset())
            sets = [*self.results.failed_sets, members]
            self.results = replace(self.results, failed=failed, failed_sets=sets)
            return
        dear = [arm for arm in self.world.arms if arm.name in members and arm.once_s]
        if dear and members not in self.results.pairs:
            once_s = max(1.0, took_s - 2 * self.launch_s)
            self.once_s |= {arm.name: once_s for arm in dear if once_s > 0.3 * arm.once_s}
        elif not dear:
            self.launch_s = 0.5 * self.launch_s + 0.25 * took_s
        # As the executor does: once it was seen to work at run time, the patch.
        switched = len(members) == 1 and members <= self.results.blocks.keys()
        seen = members in self.run_time or switched
        kind = self.patched if seen else self.run_time
        kind.setdefault(members, []).append(log)
        measured = [*self.run_time, *self.patched]
        pairs = {x: pooled(self.run_time.get(x, []), self.patched.get(x, [])) for x in measured}
        self.results = replace(self.results, pairs=pairs, patched=dict(self.patched))


def row(world: World, outcome: Outcome) -> dict[str, float]:
    """Return what one search was worth."""
    members = outcome.claim.members if outcome.claim else frozenset()
    interval = outcome.claim.interval if outcome.claim else None
    got = world.gain(members)
    names = [arm.name for arm in world.arms if arm.name not in world.fails]
    return {
        "attainable": world.attainable(),
        "got": got,
        "fixes": len(members),
        # Members without which the set is as fast.
        "null": sum(world.gain(members - {name}) >= got - 1e-9 for name in members),
        "useless": sum(world.removes[name] <= 0.0 for name in members),
        "held": bool(interval and interval.low <= got <= interval.high),
        "promised": bool(interval and interval.low > got),
        "pairs": outcome.claim.pairs if outcome.claim else 0,
        "used": outcome.used_s,
        "first": outcome.first_s if outcome.first_s is not None else math.nan,
        "early": outcome.reason != "time",
        "large": max((world.gain([name]) for name in names), default=0.0) >= math.log(2.0),
        "overrun": outcome.overrun,
    }


def show(rows: list[dict[str, float]], title: str) -> None:
    """Print one line of the table."""
    if not rows:
        return
    told = [one for one in rows if one["fixes"]]
    large = [one for one in rows if one["large"]]
    named = [one for one in large if one["fixes"]]
    early = [one["used"] for one in rows if one["early"]]
    shares = [one["got"] / one["attainable"] for one in rows if one["attainable"] > 0.02]
    pooled = sum(one["got"] for one in rows) / max(sum(one["attainable"] for one in rows), 1e-9)
    print(
        f"{title:22s} share {100 * np.mean(shares or [0]):5.1f} % pooled {100 * pooled:5.1f} % |"
        f" intervals hold {sum(one['held'] for one in told):.0f} of {len(told)},"
        f" too high {sum(one['promised'] for one in told):.0f},"
        f" null fixes {sum(one['null'] for one in told):.0f} of"
        f" {sum(one['fixes'] for one in told):.0f},"
        f" no gain {sum(one['got'] <= 0 for one in told):.0f} |"
        f" used {np.mean([one['used'] for one in rows]):.0f} s,"
        f" early {100 * len(early) / len(rows):.0f} % at {np.mean(early or [0]):.0f} s,"
        f" overrun {sum(one['overrun'] for one in rows):.0f} |"
        f" 2x and more: {len(named)} of {len(large)}"
        f" at {np.mean([one['first'] for one in named] or [0]):.0f} s",
        flush=True,
    )


def _searched(world: tuple[str, float, int]) -> dict[str, Any]:
    """Return the row of a world, by its mix, budget and seed."""
    mix, budget_s, seed = world
    program = World(seed, mix)
    outcome = row(program, SimulatedSearch(program, budget_s).run())
    figures = {name: float(value) for name, value in outcome.items()}
    return {"mix": mix, "budget": budget_s, "seed": seed, "noise": program.noise, **figures}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--budgets", type=float, nargs="+", default=[30, 60, 100, 165])
    parser.add_argument("--mix", nargs="+", default=["hard"])
    parser.add_argument("--rows", type=Path, help="where the rows of worlds are kept")
    wanted = parser.parse_args()
    seeds = range(wanted.first, wanted.first + wanted.worlds)
    worlds = list(itertools.product(wanted.mix, wanted.budgets, seeds))
    known = {
        (each["mix"], each["budget"], each["seed"]): each
        for each in (rows_of(wanted.rows) if wanted.rows else [])
    }
    with multiprocessing.Pool() as pool:
        new = [world for world in worlds if world not in known]
        for each in pool.imap(_searched, new, chunksize=4):
            known[each["mix"], each["budget"], each["seed"]] = each
            if wanted.rows:
                append(wanted.rows, each)
    for mix, budget_s in itertools.product(wanted.mix, wanted.budgets):
        rows = [known[mix, budget_s, seed] for seed in seeds]
        show(rows, f"{mix} {budget_s:.0f} s")
        for noise in NOISES:
            show([each for each in rows if each["noise"] == noise], f"    {noise}")


if __name__ == "__main__":
    main()
