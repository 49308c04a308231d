"""Everything that is to be run on a lent GPU, in short, on the simulated one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulated_gpu import devices

SCRIPT = devices.TESTS.parent / "benchmarks" / "gpu" / "run_all.sh"


@pytest.mark.slow
def test_all_that_a_lent_gpu_is_for_works_at_the_first_call(tmp_path: Path) -> None:
    short = {"SIMULATED": "1", "SHORT": "1", "LIMIT_S": "600", "PYTHON": sys.executable}
    short |= {"SAMPLES": "gpu_copies_and_syncs", "HEADLINES": "multiples-of-8"}
    # It ends as soon as it knows enough. Threads that wait for each other would burn both cores.
    short |= {"BUDGET_S": "100", "OMP_NUM_THREADS": "1"}
    (tmp_path / "nvml").write_text("devices=1\n", encoding="utf-8")
    nvml = {"SIMULATED_NVML": str(tmp_path / "nvml"), "LD_LIBRARY_PATH": devices.nvml_folder()}
    ended = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "out")],
        env={**os.environ, **devices.environment(), **short, **nvml},
        capture_output=True,
        text=True,
        check=False,
        timeout=700,
    )
    log = ended.stdout + ended.stderr
    assert ended.returncode == 0, log
    assert "(exit" not in log and "(needs" not in log, log[-3000:]
    assert "what only a real GPU can tell" in log
    out = tmp_path / "out"
    assert (out / "samples" / "gpu_copies_and_syncs" / "report.json").is_file()
    assert (out / "traces" / "gpu_copies_and_syncs.json.gz").is_file(), log[-3000:]
    figures = json.loads((out / "nvml.json").read_text(encoding="utf-8"))["ours, nvidia-smi"]
    assert figures["power_w"][0] > 0
    [claim] = json.loads((out / "headlines.json").read_text(encoding="utf-8"))
    assert claim["said"]
