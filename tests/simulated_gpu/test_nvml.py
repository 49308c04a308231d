"""The simulated NVML, read by the official client, and through it by torchdoctor's sensors."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulated_gpu import devices

PROGRAM = """
import dataclasses, json
from torchdoctor.machine.nvml import session
with session() as nvml:
    rows = []
    for device in nvml.devices if nvml else []:
        rows.append({
            "utilization": nvml.read("utilization", device),
            "memory": nvml.read("memory_bytes", device),
            "power": nvml.read("power_w", device), "clock": nvml.read("sm_clock_mhz", device),
            "throttle": nvml.read("throttle", device),
            "processes": sorted(nvml.processes(device) or []),
        })
    named = [gpu.name for gpu in nvml.describe()] if nvml else None
print(json.dumps([rows, named, nvml.driver() if nvml else None]))
"""


def read(folder: Path, state: str, program: str = PROGRAM) -> Any:
    (folder / "state").write_text(state, encoding="utf-8")
    variables = {
        **os.environ,
        "SIMULATED_NVML": str(folder / "state"),
        "LD_LIBRARY_PATH": devices.nvml_folder(),
    }
    ended = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_what_the_driver_says_is_read(tmp_path: Path) -> None:
    rows, names, driver = read(
        tmp_path,
        "devices=2\ndriver=555.1\n1.name=NVIDIA H100\nutilization=37\nused=1048576\n"
        "power_w=300\nsm_mhz=1200\n1.throttle=4\nrx_kb=2000\ntx_kb=10\npids=11 12\n",
    )
    assert names == ["NVIDIA A100-SIM", "NVIDIA H100"]
    assert driver == "555.1"
    first, second = rows
    assert (first["utilization"], first["memory"], first["power"]) == (0.37, 1 << 20, 300.0)
    assert (first["clock"], first["throttle"], second["throttle"]) == (1200.0, 0, 4)
    assert first["processes"] == [11, 12]


def test_what_a_driver_lacks_is_not_measured(tmp_path: Path) -> None:
    missing = "nvmlDeviceGetUtilizationRates nvmlDeviceGetComputeRunningProcesses_v3"
    [row], _, _ = read(tmp_path, f"missing={missing}\n")
    assert math.isnan(row["utilization"])
    assert row["clock"] == 1410.0


def test_a_device_that_vanished_is_no_crash(tmp_path: Path) -> None:
    rows, names, _ = read(tmp_path, "devices=2\n0.lost=1\n1.name=still there\n")
    assert len(rows) == 1
    assert names == ["still there"]


MODES = """
import json
from torchdoctor.machine.nvml import session
with session() as nvml:
    print(json.dumps([nvml.takes_one_process({uuid}) for uuid in UUIDS]))
"""


def test_a_gpu_that_takes_one_process_at_a_time_is_known(tmp_path: Path) -> None:
    program = MODES.replace("UUIDS", repr(["aa", "bb", "cc"]))
    state = "devices=2\n0.uuid=GPU-aa\n1.uuid=GPU-bb\n1.compute_mode=3\n"
    assert read(tmp_path, state, program) == [False, True, False]


def test_env_shows_the_gpu_and_that_a_cpu_build_of_torch_cannot_use_it(tmp_path: Path) -> None:
    ended = devices.doctor(tmp_path, "env", nvml="name=NVIDIA A100\nmemory=42949672960\n")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert "GPU          NVIDIA A100 (40.0 GiB, compute capability 8.0)" in lines
    assert "is a CPU build" in ended.stdout.split("Ruled out on this machine:")[1]
