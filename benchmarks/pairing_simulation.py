"""Which way of pairing launches gives intervals that mean what they say? A seeded simulation.

    python benchmarks/pairing_simulation.py [runs]

Prints, for each design and number of rounds, the coverage of the nominal 95 % t interval, its
mean half width, and the A/A candidate's; and how often few pairs make a false winner. The figures
are quoted in docs/decisions/side-by-side.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from statistics import fmean

import numpy as np

from torchdoctor.bench.pair_times import Estimator, switched_differences, untouched_differences
from torchdoctor.schema import Block
from torchdoctor.trials import compare

BASELINE, CANDIDATE = 0, 1  # other arms have higher numbers
SPEEDUP = math.log(1.07)
NOISE = {  # log units: offset of a launch, random walk and steady drift per launch, spikes
    "quiet": (0.004, 0.002, 0.000, 0.00),
    "typical": (0.015, 0.008, 0.003, 0.08),
    "noisy": (0.03, 0.03, 0.010, 0.15),
}


class Machine:
    """Log time of one launch after another, with drift, spikes and an offset for each launch."""

    def __init__(self, level: str, rng: np.random.Generator) -> None:
        self.offset, self.walk, self.slope, self.spikes = NOISE[level]
        self.rng, self.drift, self.launches = rng, 0.0, 0

    def launch(self, arm: int, number: int = 0, gain: float = SPEEDUP) -> Block:
        """One launch of a round; its time per sample is the median step of one step."""
        self.drift += self.rng.normal(0.0, self.walk) + self.slope
        log = self.drift + self.rng.normal(0.0, self.offset)
        if self.rng.random() < self.spikes:
            log += self.rng.exponential(0.05)
        if arm == CANDIDATE:
            log -= gain
        self.launches += 1
        at, step_s = float(self.launches), math.exp(log)
        return Block(
            arm=arm, round=number, step_s=[step_s], window_s=step_s, began_s=at, ended_s=at + 1.0
        )


MEDIAN = Estimator()


def log_of(launch: Block) -> float:
    """Return the logarithm of the time per step of a simulated launch."""
    return math.log(MEDIAN.seconds(launch) or 1.0)


def gains(launches: list[list[Block]]) -> list[float]:
    """Return the differences of the candidate in these rounds."""
    return switched_differences([x for each in launches for x in each], CANDIDATE, MEDIAN)


class Idle(Machine):
    """A candidate that does nothing, while somebody else's load comes and goes by launches."""

    def __init__(self, loaded: float, rng: np.random.Generator) -> None:
        super().__init__("typical", rng)
        self.slope = self.spikes = self.walk = 0.0
        self.loaded, self.on = loaded, rng.random() < loaded

    def launch(self, arm: int, number: int = 0, gain: float = 0.0) -> Block:
        """One launch; under load it takes 42 % longer."""
        if self.rng.random() < 0.6:
            self.on = self.rng.random() < self.loaded
        self.drift = self.rng.normal(0.35, 0.05) if self.on else 0.0
        return super().launch(arm, number, 0.0)


def block(machine: Machine, arms: int, number: int) -> list[Block]:
    """Baseline, `arms` candidates in random order, baseline; round `number` or the one after it."""
    order = [BASELINE, *machine.rng.permutation(range(1, arms + 1)), BASELINE]
    number = 2 * number + int(machine.rng.integers(2))  # decides the sign of the A/A candidate
    return [machine.launch(int(arm), number) for arm in order]


def abba(machine: Machine, number: int) -> list[Block]:
    """Baseline, candidate, candidate, baseline, or the reverse."""
    order = [BASELINE, CANDIDATE, CANDIDATE, BASELINE]
    if machine.rng.integers(2):
        order = [CANDIDATE, BASELINE, BASELINE, CANDIDATE]
    number = 2 * number + int(machine.rng.integers(2))
    return [machine.launch(arm, number) for arm in order]


def against(rounds: list[list[Block]], how: str) -> list[float]:
    """Other pairings of a block: with its first baseline, or the plain mean of both."""
    found = []
    for launches in rounds:
        baselines = [log_of(x) for x in launches if x.arm == BASELINE]
        reference = baselines[0] if how == "first" else fmean(baselines)
        found += [reference - log_of(x) for x in launches if x.arm == CANDIDATE]
    return found


def chained(machine: Machine, rounds: int) -> list[float]:
    """A closing baseline opens the next round as well: cheaper, but neighbours share it."""
    opening, found = machine.launch(BASELINE), []
    for _ in range(rounds):
        candidate, closing = machine.launch(CANDIDATE), machine.launch(BASELINE)
        found += gains([[opening, candidate, closing]])
        opening = closing
    return found


def sequential(machine: Machine, pairs: int) -> list[float]:
    """All of the baseline, then all of the candidate."""
    logs = [[log_of(machine.launch(arm)) for _ in range(pairs)] for arm in (BASELINE, CANDIDATE)]
    return [b - c for b, c in zip(*logs, strict=True)]


def designs(pairs: int) -> dict[str, tuple[Callable[[Machine], list[float]], float]]:
    """Name -> (differences of the candidate on a machine, launches paid)."""

    def blocks(arms: int) -> Callable[[Machine], list[float]]:
        return lambda m: gains([block(m, arms, n) for n in range(pairs)])

    def a_a(m: Machine) -> list[float]:
        launches = [x for n in range(pairs) for x in block(m, 4, n)]
        return [d + SPEEDUP for d in untouched_differences(launches, MEDIAN)]

    return {
        "sequential": (lambda m: sequential(m, pairs), 2 * pairs),
        "block of 4, first baseline": (
            lambda m: against([block(m, 4, n) for n in range(pairs)], "first"),
            6 * pairs,
        ),
        "block of 4, mean of both": (
            lambda m: against([block(m, 4, n) for n in range(pairs)], "mean"),
            6 * pairs,
        ),
        "block of 4, interpolated": (blocks(4), 6 * pairs),
        "block of 2, interpolated": (blocks(2), 4 * pairs),
        "block of 1, interpolated": (blocks(1), 3 * pairs),
        "block of 1, chained": (lambda m: chained(m, pairs), 2 * pairs + 1),
        "ABBA": (
            lambda m: gains([abba(m, n) for n in range(pairs // 2)]),
            2 * pairs,
        ),
        "A/A of a block of 4": (a_a, 0),
    }


def coverage(
    design: Callable[[Machine], list[float]], level: str, runs: int, seed: int = 0
) -> tuple[float, float]:
    """Share of 95 % intervals that hold the true speed-up, and their mean half width."""
    rng, hits, widths = np.random.default_rng(seed), 0, []
    for _ in range(runs):
        found = design(Machine(level, rng))
        half = compare.half_width(found)
        hits += abs(fmean(found) - SPEEDUP) <= half
        widths.append(half)
    return hits / runs, fmean(widths)


def false_winners(loaded: float, pairs: int, runs: int, seed: int = 0) -> float:
    """Share of candidates that do nothing and come out as faster by 1 % and more, of ABBA pairs."""
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(runs):
        machine = Idle(loaded, rng)
        found = gains([abba(machine, n) for n in range(pairs // 2)])
        hits += fmean(found) > max(compare.half_width(found), math.log1p(0.01))
    return hits / runs


def main(runs: int) -> None:
    """Print the tables."""
    print(f"{'design':28} {'pairs':>5} {'launches':>8}  " + "  ".join(f"{k:>15}" for k in NOISE))
    for pairs in (4, 6):
        for name, (design, launches) in designs(pairs).items():
            cells = [coverage(design, level, runs) for level in NOISE]
            row = "  ".join(f"{c:6.1%} ±{w:6.1%}" for c, w in cells)
            print(f"{name:28} {pairs:5d} {launches:8.0f}  {row}")
    print("\nidle candidates that come out as faster, of ABBA pairs, by the launches under load")
    for pairs in (2, 4, 6):
        shares = [false_winners(loaded, pairs, 3 * runs) for loaded in (0.0, 0.15, 0.5)]
        print(f"{pairs} pairs: none {shares[0]:.1%}, 15 % {shares[1]:.1%}, half {shares[2]:.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
