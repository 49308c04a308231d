"""How noisy is this machine, and what can it still tell?"""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from torchdoctor import machine_noise
from torchdoctor.errors import Inconclusive
from torchdoctor.machine_noise import Noise, _goes_on, measure_noise, noise_lines
from torchdoctor.records import LaunchTiming, TurnsTaken
from torchdoctor.trials.compare import interval, visible

ROOT = Path(__file__).parent.parent


def noise(deviation: float, pairs: int = 4000, shared: float = 0.0) -> Noise:
    """Pairs that differ by this (log), and have so much in common that changes between them."""
    chance, found = random.Random(0), []
    for _ in range(pairs):
        both = chance.gauss(0, shared)
        one = both + chance.gauss(0, deviation)
        found.append((math.exp(one), math.exp(both)))
    return Noise(pairs_s=found, pair_s=8.0)


def test_what_is_called_visible_is_seen_four_times_in_five() -> None:
    measured, chance = noise(0.05), random.Random(1)
    deviation = measured.deviation
    for pairs in (4, 6, 12):
        effect, seen = measured.visible(pairs), 0
        for _ in range(2000):
            found = interval([effect + chance.gauss(0, deviation) for _ in range(pairs)])
            seen += found is not None and found.low > 1
        assert 0.72 < seen / 2000 < 0.90, (pairs, seen)


def test_more_pairs_show_smaller_differences() -> None:
    measured = noise(0.02)
    assert measured.visible(4) > measured.visible(6) > measured.visible(24) > 0
    text = "\n".join(noise_lines(measured))
    assert "24 pairs (about 192 s)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_answer_names_differences_and_times() -> None:
    measured = noise(0.03)
    text = " ".join(noise_lines(measured)[0:8])
    assert f"{measured.visible(15):.1%} in 2 minutes" in text  # 15 pairs of 8 s
    assert f"{measured.visible(75):.1%} in 10 minutes" in text
    needed = measured.seconds_for(0.02)
    assert needed is not None and f"about {needed / 60:.0f} min for 2%" in text
    assert measured.visible(round(needed / 8.0)) <= 0.02 < measured.visible(round(needed / 9.5))
    assert "more than a day for 2%" in " ".join(noise_lines(noise(3.0))[0:8])


def test_the_gates_own_bound_and_the_uncertainty_are_said() -> None:
    """What it said was for p < 0.05 and 4 pairs; a gate that fails needs p < 0.01 and 5."""
    measured = noise(0.03, pairs=6)
    text = " ".join(" ".join(noise_lines(measured)).split())
    seen = visible(measured.deviation, 5, 0.01)
    assert f"fails below p = 0.01, from 5 pairs on, so it sees less: from {seen:.1%} with 5" in text
    assert seen > measured.visible(5)
    low, high = measured.deviation_interval
    assert f"of 6 pairs lies between {low:.1%} and {high:.1%}" in text


def test_what_both_launches_of_a_pair_meet_is_no_difference() -> None:
    """`run` and `gate` compare side by side; the answer was of launches that follow each other."""
    measured = noise(0.01, shared=0.2)
    assert measured.deviation == pytest.approx(0.01, rel=0.05)
    assert measured.between_launches == pytest.approx(math.sqrt(2) * 0.2, rel=0.05)
    text = " ".join(" ".join(noise_lines(measured)).split())
    assert "differ by 1.0% (standard deviation of 4000 pairs" in text
    assert f"Launches that follow each other differ by {measured.between_launches:.1%}" in text


def test_the_interval_of_a_deviation_holds_the_true_one() -> None:
    chance, held = random.Random(4), 0
    for _ in range(1000):
        pairs = [(math.exp(chance.gauss(0.0, 0.03)), 1.0) for _ in range(6)]
        low, high = Noise(pairs_s=pairs, pair_s=4.0).deviation_interval
        held += low <= 0.03 <= high
    assert 0.93 <= held / 1000 <= 0.97


def test_a_slow_machine_still_gets_its_four_pairs() -> None:
    assert _goes_on(0, 1000.0, 0.0, 60.0)  # the first in any case
    assert _goes_on(3, 100.0, 35.0, 60.0)  # beyond the budget
    assert not _goes_on(4, 100.0, 35.0, 60.0)
    assert not _goes_on(1, 150.0, 100.0, 60.0)
    assert _goes_on(9, 10.0, 3.0, 60.0)


@pytest.mark.slow
@pytest.mark.xdist_group("trials")  # one at a time: it measures
def test_it_is_measured_here() -> None:
    command = [sys.executable, "-m", "torchdoctor.cli", "env", "--noise", "--budget", "12s"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 6), result.stderr
    assert "Traceback" not in result.stderr
    if result.returncode == 0:
        assert "side by side" in result.stdout


def test_ctrl_c_in_a_launch_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as a launch that failed, and the next one was started."""
    started = []

    def stopped(*_: object, **__: object) -> tuple[TurnsTaken, TurnsTaken]:
        started.append(1)
        return (TurnsTaken(timing=LaunchTiming(ended="interrupted")),) * 2

    monkeypatch.setattr(machine_noise, "take_turns_by_lot", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure_noise(30.0, lambda text: None)
    assert len(started) == 1


def test_pairs_that_fail_are_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = TurnsTaken(timing=LaunchTiming(ended="failed", reason="No torch."))
    monkeypatch.setattr(machine_noise, "take_turns_by_lot", lambda *_: (lost, lost))
    with pytest.raises(Inconclusive, match=r"3 pairs of launches failed: No torch\."):
        measure_noise(30.0, lambda text: None)
