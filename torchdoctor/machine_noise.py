"""How noisy is this machine: one and the same program, launched again and again (A/A)."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from torchdoctor.errors import Inconclusive
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.sandbox import Sandbox
from torchdoctor.recording.window import Window
from torchdoctor.recording.workload import workload_of
from torchdoctor.records import Boundary
from torchdoctor.trials.compare import seconds_per_sample, t_quantile, usable

FEWEST_LAUNCHES = 4
_PAIRS = (4, 6, 12, 24)
_POWER = 0.8  # how often a true difference of that size is then seen
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

    def visible(self, pairs: int) -> float:
        """The smallest speed-up that so many pairs show four times in five, as a ratio - 1."""
        degrees = pairs - 1
        reach = t_quantile(0.975, degrees) + t_quantile(_POWER, degrees)
        return math.expm1(reach * self.deviation * math.sqrt(2.0 / pairs))


def measure_noise(budget_s: float, progress: Callable[[str], None]) -> Noise:
    """Launch a small training program for about that long.

    Args:
        budget_s: wall time.
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
            while time.monotonic() - began + longest_s < budget_s or not times:
                progress(f"launch {len(times) + 1}")
                start = time.monotonic()
                timing = recorder.time("noise", Boundary(kind="optimizer"), _STEPS, [], 120.0)
                longest_s = max(longest_s, time.monotonic() - start)
                seconds = seconds_per_sample(timing, "median", per_step=True)
                if not usable(timing) or seconds is None:
                    raise Inconclusive(f"A launch could not be measured: {timing.reason}")
                times.append(seconds)
            recorder.close()
    if len(times) < FEWEST_LAUNCHES:
        raise Inconclusive(
            f"Only {len(times)} launches fit into {budget_s:.0f} s; at least {FEWEST_LAUNCHES} are "
            "needed: give it more with --budget."
        )
    return Noise(step_s=times, launch_s=(time.monotonic() - began) / len(times))


def noise_lines(noise: Noise) -> Sequence[str]:
    """The result as lines of text."""
    lines = [
        f"A step of a small program takes {1e3 * fmean(noise.step_s):.3g} ms here "
        f"({len(noise.step_s)} launches of about {noise.launch_s:.1f} s).",
        f"From launch to launch it differs by {noise.deviation:.1%} (standard deviation).",
        "",
        "A true difference is seen four times in five from this size on:",
    ]
    for pairs in _PAIRS:
        cost_s = 2 * pairs * noise.launch_s
        lines.append(f"  {noise.visible(pairs):6.1%}  with {pairs:2} pairs (about {cost_s:.0f} s)")
    return lines
