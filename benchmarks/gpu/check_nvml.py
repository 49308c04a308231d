"""Are torchdoctor's NVML figures those of nvidia-smi? Keeps the GPU busy and reads both.

python benchmarks/gpu/check_nvml.py OUT.json
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from torchdoctor.machine.sensors import Sensors

_FIELDS = ("utilization.gpu", "memory.used", "power.draw", "clocks.sm")
_BUSY_S = 2.0 if os.environ.get("SHORT") == "1" else 8.0


def nvidia_smi() -> dict[str, float]:
    """One reading of the first GPU; empty where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = [f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits", "-i", "0"]
    text = subprocess.run(
        ["nvidia-smi", *query], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        name: float(value)
        for name, value in zip(_FIELDS, text.split(","), strict=True)
        if value.strip().replace(".", "", 1).isdigit()
    }


def main() -> None:
    """Multiply matrices, sample with both, write the means."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    real = device == "cuda" and os.environ.get("SIMULATED") != "1"
    size = 8192 if real else 256
    matrix = torch.randn(size, size, device=device)
    sensors = Sensors()
    sensors.start(os.getpid())
    readings, begin = [], time.monotonic_ns()
    until = time.monotonic() + (_BUSY_S if device == "cuda" else 2.0)
    while time.monotonic() < until:
        for _ in range(20):
            matrix = (matrix @ matrix).clamp(-1, 1)
        if device == "cuda":
            torch.cuda.synchronize()
        readings.append(nvidia_smi())
    ours = sensors.stop().statistics(begin, time.monotonic_ns())
    theirs = {
        name: sum(r[name] for r in readings if name in r) / max(sum(name in r for r in readings), 1)
        for name in _FIELDS
        if any(name in r for r in readings)
    }
    pairs = {
        "utilization": (ours.gpu_utilization, theirs.get("utilization.gpu", 0.0) / 100),
        "power_w": (ours.gpu_power_w, theirs.get("power.draw")),
        "sm_clock_mhz": (ours.gpu_sm_clock_mhz, theirs.get("clocks.sm")),
        "memory_bytes": (
            ours.gpu_memory_peak_bytes,
            theirs["memory.used"] * 2**20 if "memory.used" in theirs else None,
        ),
    }
    Path(sys.argv[1]).write_text(json.dumps({"ours, nvidia-smi": pairs}, indent=2) + "\n")
    for name, (mine, other) in pairs.items():
        print(f"{name}: {mine} (torchdoctor), {other} (nvidia-smi)")


if __name__ == "__main__":
    main()
