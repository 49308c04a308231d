"""Planted illnesses, through `torchdoctor run` on the simulated device: the cause, the place, and
what must not be said. These few run always; `benchmarks/diagnosis.py --simulated-gpu` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulated_gpu.planted import PLANTED

pytestmark = pytest.mark.slow


# tensors-made-on-the-host runs in test_accelerators.py, on another accelerator.
@pytest.mark.parametrize(
    "name",
    [
        *("gpu-bound", "a-value-read-in-each-step"),
        "a-value-read-from-a-device-that-no-profiler-sees",
        "the-optimizer-waits-for-the-queue-by-the-host-s-clock",
    ],
)
def test_an_illness_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    planted = PLANTED[name]
    report = planted.report(tmp_path, "--no-fixes", "--budget", "2m")
    assert planted.mistakes(report) == []
