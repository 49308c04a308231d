"""How noisy is this machine: one and the same program, launched again and again (A/A)."""

from __future__ import annotations

import math
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
from torchdoctor.recording.sandbox import Sandbox
from torchdoctor.recording.window import Window
from torchdoctor.recording.workload import workload_of
from torchdoctor.records import Boundary
from torchdoctor.reports.figures import seconds as time_words
from torchdoctor.trials.compare import (
    CONFIDENCE,
    chi_squared_quantile,
    seconds_per_sample,
    usable,
    visible,
)

FEWEST_LAUNCHES = 4
_PAIRS = (4, 6, 12, 24)
_FEWEST_PAIRS = 4
_MINUTES = (2, 5, 10)
_SMALL = 0.02  # the gate's tolerance where nothing else is said
_A_DAY_S = 86_400.0
_PATIENCE = 3.0  # times the budget, until there are enough launches
_MOST_FAILED = 2
_WIDTH = 80
_STEPS = Window(warmup_steps=20, measure_steps=100, max_window_s=10.0)
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
        step_s: median step time of each launch, in order.
        launch_s: wall time of one launch.
    """

    step_s: list[float]
    launch_s: float

    @property
    def deviation(self) -> float:
        """Standard deviation between launches, of the logarithm (0.02: 2 %)."""
        return stdev(math.log(s) for s in self.step_s)

    @property
    def deviation_interval(self) -> tuple[float, float]:
        """95 % interval of the deviation: a few launches hardly know it."""
        freedom = len(self.step_s) - 1
        low, high = (chi_squared_quantile(share, freedom) for share in (0.975, 0.025))
        return self.deviation * math.sqrt(freedom / low), self.deviation * math.sqrt(freedom / high)

    def visible(self, pairs: int, alpha: float = 1.0 - CONFIDENCE) -> float:
        """The smallest speed-up that so many pairs show four times in five, as a ratio - 1.

        Args:
            pairs: of launches.
            alpha: two-sided p below which it shows.
        """
        return visible(math.sqrt(2.0) * self.deviation, pairs, alpha)

    def pairs_within(self, seconds: float) -> int:
        """Pairs of launches of this program that fit into so much time."""
        return int(seconds / (2 * self.launch_s))

    def seconds_for(self, difference: float) -> float | None:
        """Time in which so small a difference shows, as a ratio - 1; None: not within a day."""
        pairs = _FEWEST_PAIRS
        while self.visible(pairs) > difference:
            pairs = math.ceil(1.1 * pairs)
            if 2 * pairs * self.launch_s > _A_DAY_S:
                return None
        return 2 * pairs * self.launch_s


def measure_noise(budget_s: float, progress: Callable[[str], None]) -> Noise:
    """Launch a small training program for about that long.

    Args:
        budget_s: wall time; up to three times as long where four launches take longer.
        progress: told before each launch.

    Raises:
        Inconclusive: fewer than four launches could be measured.
    """
    began = time.monotonic()
    times: list[float] = []
    longest_s = 0.0
    with tempfile.TemporaryDirectory(prefix="torchdoctor-noise-") as name:
        script = Path(name) / "train.py"
        script.write_text(_PROGRAM)
        workload = workload_of([str(script)], cwd=name)
        folder = Path(name) / "out"
        folder.mkdir()
        with Sandbox.choose("auto", folder, workload) as sandbox:
            recorder = Recorder(workload, folder, sandbox, 0, None, 120.0)
            failed = 0
            while _goes_on(len(times), time.monotonic() - began, longest_s, budget_s):
                progress(f"launch {len(times) + 1}")
                start = time.monotonic()
                timing = recorder.time("noise", Boundary(kind="optimizer"), _STEPS, [], 120.0)
                longest_s = max(longest_s, time.monotonic() - start)
                if timing.ended == "interrupted":
                    raise KeyboardInterrupt
                seconds = seconds_per_sample(timing, "median", per_step=True)
                if not usable(timing) or seconds is None:
                    failed += 1
                    if failed > _MOST_FAILED:
                        raise Inconclusive(f"{failed} launches failed: {timing.reason}")
                    continue
                times.append(seconds)
            recorder.close()
    if len(times) < FEWEST_LAUNCHES:
        raise Inconclusive(
            f"Only {len(times)} launches fit into {budget_s:.0f} s; at least {FEWEST_LAUNCHES} are "
            "needed: give it more with --budget."
        )
    return Noise(step_s=times, launch_s=(time.monotonic() - began) / len(times))


def _goes_on(measured: int, spent_s: float, longest_s: float, budget_s: float) -> bool:
    """Whether there is time for another launch: a loaded machine must still get its answer."""
    most_s = budget_s if measured >= FEWEST_LAUNCHES else _PATIENCE * budget_s
    return spent_s + longest_s < most_s or not measured


def noise_lines(noise: Noise) -> Sequence[str]:
    """The answer in one paragraph of at most 80 columns, and a table."""
    lines = [*textwrap.wrap(_answer(noise), _WIDTH), "", "A true difference shows from:"]
    for pairs in _PAIRS:
        cost_s = 2 * pairs * noise.launch_s
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
        f"sees less: from {', '.join(seen)}, were its launches in turns. All these are estimates: "
        f"the standard deviation of {len(noise.step_s)} launches lies between {low:.1%} and "
        f"{high:.1%} (95 % interval), and the figures with it."
    )


def _answer(noise: Noise) -> str:
    seen = []
    for minutes in _MINUTES:
        pairs = noise.pairs_within(60.0 * minutes)
        if pairs >= _FEWEST_PAIRS:
            seen.append(f"{noise.visible(pairs):.1%} in {minutes} minutes")
    needed = noise.seconds_for(_SMALL)
    small = f"more than a day for {_SMALL:.0%}"
    if needed is not None:
        small = f"about {max(needed / 60.0, 1.0):.0f} min for {_SMALL:.0%}"
    return (
        f"On this machine, as busy as it is now, a difference shows four times in five from "
        f"{', '.join(seen) or 'a size that takes over ten minutes'} on; it takes {small}. "
        f"From launch to launch it differs by {noise.deviation:.1%} (standard deviation of "
        f"{len(noise.step_s)} launches of a small training program, "
        f"{time_words(fmean(noise.step_s))} a step, {noise.launch_s:.1f} s a launch; yours takes "
        "longer in proportion to its launches). torchdoctor run compares such launches; "
        "torchdoctor gate runs both versions side by side, where a changing load disturbs less."
    )
