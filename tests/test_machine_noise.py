"""How noisy is this machine, and what can it still tell?"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from torchdoctor.machine_noise import Noise, noise_lines
from torchdoctor.trials.compare import interval

ROOT = Path(__file__).parent.parent


def noise(deviation: float, launches: int = 4000) -> Noise:
    chance = random.Random(0)
    return Noise(step_s=[2 ** chance.gauss(0, deviation) for _ in range(launches)], launch_s=4.0)


def test_what_is_called_visible_is_seen_four_times_in_five() -> None:
    measured, chance = noise(0.05), random.Random(1)
    deviation = measured.deviation
    for pairs in (4, 6, 12):
        effect, seen = measured.visible(pairs), 0
        for _ in range(2000):
            found = interval(
                [
                    effect + deviation * (chance.gauss(0, 1) - chance.gauss(0, 1))
                    for _ in range(pairs)
                ]
            )
            seen += found is not None and found.low > 1
        assert 0.72 < seen / 2000 < 0.90, (pairs, seen)


def test_more_pairs_show_smaller_differences() -> None:
    measured = noise(0.02)
    assert measured.visible(4) > measured.visible(6) > measured.visible(24) > 0
    text = "\n".join(noise_lines(measured))
    assert "24 pairs (about 192 s)" in text


@pytest.mark.slow
@pytest.mark.xdist_group("trials")  # one at a time: it measures
def test_it_is_measured_here() -> None:
    command = [sys.executable, "-m", "torchdoctor.cli", "env", "--noise", "--budget", "20s"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 6), result.stderr
    assert "Traceback" not in result.stderr
    if result.returncode == 0:
        assert "From launch to launch it differs by" in result.stdout
