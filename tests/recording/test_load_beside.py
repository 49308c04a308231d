"""Which part of the CPUs' time is that of strangers, told by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from torchdoctor.machine import sensors
from torchdoctor.machine.sensors import LoadBeside

BURN = "import time\nwhile time.process_time() < 1.2: pass"


def _our_own_s() -> float:
    return sum(os.times()[:4])


@pytest.mark.parametrize("strangers_s", [0.0, 3.0])
def test_what_was_started_and_waited_for_is_no_strangers_load(
    strangers_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair side by side is two launches: to the sensors of each the other is a stranger."""
    others = [0.0]

    def cpu_times(percpu: bool) -> list[SimpleNamespace]:
        return [SimpleNamespace(user=_our_own_s() + others[0], iowait=9e9, idle=9e9)]

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    began, beside = time.monotonic(), LoadBeside()
    # A grandchild, which its parent waits for: a program with loader workers.
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
    subprocess.run([sys.executable, "-c", inner], check=True)
    others[0] = strangers_s
    found = beside.cpus()
    assert found is not None
    assert found == pytest.approx(strangers_s / (time.monotonic() - began), rel=0.1, abs=0.05)


def test_a_moment_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "_SHORTEST_S", 1e9)
    assert LoadBeside().cpus() is None
