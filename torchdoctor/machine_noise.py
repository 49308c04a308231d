"""How noisy is this machine: one program beside itself, again and again (A/A).

The pairs are those that `run` and `gate` compare by: two launches, in alternate blocks of steps.
"""

from __future__ import annotations

import math
import random
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from torchdoctor.errors import Inconclusive
from torchdoctor.gate.decision import FAIL_FINAL, FEWEST_PAIRS
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.running_launch import Poll
from torchdoctor.recording.sandbox import Sandbox
from torchdoctor.recording.turn_blocks import TurnBlocks
from torchdoctor.recording.turns import Start, neighbours, take_turns_by_lot
from torchdoctor.recording.workload import workload_of
from torchdoctor.records import Boundary, TurnsTaken
from torchdoctor.reports.figures import seconds as time_words
from torchdoctor.trials.compare import (
    CONFIDENCE,
    TRIMMED,
    chi_squared_quantile,
    pair_times,
    seconds_per_sample,
    visible,
)

FEWEST_MEASURED = 4  # pairs
_PAIRS = (4, 6, 12, 24)
_MINUTES = (2, 5, 10)
_SMALL = 0.02  # the gate's tolerance where nothing else is said
_A_DAY_S = 86_400.0
_PATIENCE = 3.0  # times the budget, until there are enough pairs
_MOST_FAILED = 2
_WIDTH = 80
_TURNS = TurnBlocks(
    warmup_steps=20, block_steps=80, discard_steps=20, blocks=6, step_s=0.005, pair_s=12.0
)
_BOUNDARY, _TIMEOUT_S = Boundary(kind="optimizer"), 120.0
# Matrix products on all cores and Python between them, about 5 ms a step.
_PROGRAM = """
import torch

torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 512)
while True:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How much launches of one program differ.

    Attributes:
        pairs_s: step time of both launches of each pair side by side, in order.
        pair_s: wall time of one pair.
    """

    pairs_s: list[tuple[float, float]]
    pair_s: float

    @property
    def deviation(self) -> float:
        """Standard deviation of a pair's difference, of the logarithm (0.02: 2 %)."""
        return stdev(math.log(one / other) for one, other in self.pairs_s)

    @property
    def between_launches(self) -> float:
        """The same between launches that follow each other, of one side of each pair."""
        return math.sqrt(2.0) * stdev(math.log(one) for one, _ in self.pairs_s)

    @property
    def deviation_interval(self) -> tuple[float, float]:
        """95 % interval of `deviation`: a few pairs hardly know it."""
        freedom = len(self.pairs_s) - 1
        low, high = (chi_squared_quantile(share, freedom) for share in (0.975, 0.025))
        return self.deviation * math.sqrt(freedom / low), self.deviation * math.sqrt(freedom / high)

    def visible(self, pairs: int, alpha: float = 1.0 - CONFIDENCE) -> float:
        """The smallest speed-up that so many pairs show four times in five, as a ratio - 1.

        Args:
            pairs: of launches.
            alpha: two-sided p below which it shows.
        """
        return visible(self.deviation, pairs, alpha)

    def pairs_within(self, seconds: float) -> int:
        """Pairs of launches of this program that fit into so much time."""
        return int(seconds / self.pair_s)

    def seconds_for(self, difference: float) -> float | None:
        """Time in which so small a difference shows, as a ratio - 1; None: not within a day."""
        pairs = FEWEST_MEASURED
        while self.visible(pairs) > difference:
            pairs = math.ceil(1.1 * pairs)
            if pairs * self.pair_s > _A_DAY_S:
                return None
        return pairs * self.pair_s


def measure_noise(budget_s: float, progress: Callable[[str], None]) -> Noise:
    """Run a small training program beside itself for about that long.

    Args:
        budget_s: wall time; up to three times as long where four pairs take longer.
        progress: told before each pair.

    Raises:
        Inconclusive: fewer than four pairs could be measured.
    """
    began = time.monotonic()
    pairs: list[tuple[float, float]] = []
    longest_s = 0.0
    with tempfile.TemporaryDirectory(prefix="torchdoctor-noise-") as name:
        script = Path(name) / "train.py"
        script.write_text(_PROGRAM)
        workload = workload_of([str(script)], cwd=name)
        folder = Path(name) / "out"
        folder.mkdir()
        with Sandbox.choose("auto", folder, workload) as sandbox:
            recorder = Recorder(workload, folder, sandbox, 0, None, _TIMEOUT_S)
            failed, chance = 0, random.Random(0)
            while _goes_on(len(pairs), time.monotonic() - began, longest_s, budget_s):
                progress(f"pair {len(pairs) + 1}")
                start = time.monotonic()
                found = _pair(recorder, chance)
                longest_s = max(longest_s, time.monotonic() - start)
                if not isinstance(found, str):
                    pairs.append(found)
                    continue
                failed += 1
                if failed > _MOST_FAILED:
                    raise Inconclusive(f"{failed} pairs of launches failed: {found}")
            recorder.close()
    if len(pairs) < FEWEST_MEASURED:
        enough_s = math.ceil((FEWEST_MEASURED + 1) * longest_s)
        raise Inconclusive(
            f"Only {len(pairs)} pairs fit into {budget_s:.0f} s; at least {FEWEST_MEASURED} are "
            f"needed: give it --budget {enough_s}s, or wait until the machine is less busy."
        )
    return Noise(pairs_s=pairs, pair_s=(time.monotonic() - began) / len(pairs))


def _pair(recorder: Recorder, chance: random.Random) -> tuple[float, float] | str:
    """Seconds a step of two launches side by side; or why there are none."""

    def launch(poll: Poll) -> TurnsTaken:
        return recorder.take_turns("noise", _BOUNDARY, _TURNS, _TIMEOUT_S, poll)

    both: tuple[Start, Start] = (launch, launch)
    taken = take_turns_by_lot(both, _TURNS, chance, time.monotonic() + _TIMEOUT_S)
    if any(one.timing.ended == "interrupted" for one in taken):
        raise KeyboardInterrupt
    found = pair_times(
        neighbours(*taken), lambda one: seconds_per_sample(one, "median", per_step=True), TRIMMED
    )
    if found is not None:
        return found
    return next((one.timing.reason for one in taken if one.timing.reason), "no reason is known")


def _goes_on(measured: int, spent_s: float, longest_s: float, budget_s: float) -> bool:
    """Whether there is time for another pair: a loaded machine must still get its answer."""
    most_s = budget_s if measured >= FEWEST_MEASURED else _PATIENCE * budget_s
    return spent_s + longest_s < most_s or not measured


def noise_lines(noise: Noise) -> Sequence[str]:
    """The answer in one paragraph of at most 80 columns, and a table."""
    lines = [*textwrap.wrap(_answer(noise), _WIDTH), "", "A true difference shows from:"]
    for pairs in _PAIRS:
        cost_s = pairs * noise.pair_s
        lines.append(f"  {noise.visible(pairs):6.1%}  with {pairs:2} pairs (about {cost_s:.0f} s)")
    return [*lines, "", *textwrap.wrap(_of_the_gate(noise), _WIDTH)]


def _of_the_gate(noise: Noise) -> str:
    """The gate asks for more before it fails, and what it was computed from is uncertain itself."""
    seen = [
        f"{noise.visible(n, FAIL_FINAL):.1%} with {n} pairs" for n in (FEWEST_PAIRS, *_PAIRS[2:])
    ]
    low, high = noise.deviation_interval
    return (
        f"torchdoctor gate fails below p = {FAIL_FINAL:g}, from {FEWEST_PAIRS} pairs on, so it "
        f"sees less: from {', '.join(seen)}. All these are estimates: the standard deviation of "
        f"{len(noise.pairs_s)} pairs lies between {low:.1%} and {high:.1%} (95 % interval), and "
        "the figures with it."
    )


def _answer(noise: Noise) -> str:
    seen = []
    for minutes in _MINUTES:
        pairs = noise.pairs_within(60.0 * minutes)
        if pairs >= FEWEST_MEASURED:
            seen.append(f"{noise.visible(pairs):.1%} in {minutes} minutes")
    needed = noise.seconds_for(_SMALL)
    small = f"more than a day for {_SMALL:.0%}"
    if needed is not None:
        small = f"about {max(needed / 60.0, 1.0):.0f} min for {_SMALL:.0%}"
    return (
        f"On this machine, as busy as it is now, a difference shows four times in five from "
        f"{', '.join(seen) or 'a size that takes over ten minutes'} on; it takes {small}. "
        f"Two launches of one program side by side, in alternate blocks of steps as run and gate "
        f"compare them, differ by {noise.deviation:.1%} (standard deviation of "
        f"{len(noise.pairs_s)} pairs of a small training program, "
        f"{time_words(fmean(one for one, _ in noise.pairs_s))} a step, {noise.pair_s:.1f} s a "
        "pair; yours takes longer in proportion to its launches). Launches that follow each other "
        f"differ by {noise.between_launches:.1%}: so much of a stored baseline is chance."
    )
