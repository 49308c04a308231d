"""How long the report of many ranks takes, and how much memory: simulated logs on one disk.

python benchmarks/watch_ranks.py --ranks 512 --steps 20000
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import watch_simulation as simulation
import watched_folders

from torchdoctor.watch.recording import Process, Start


def write_ranks(folder: Path, ranks: int, steps: int, slow: int, per_host: int = 8) -> None:
    """Write the logs of ranks on hosts whose clocks differ; one rank waits long for its data."""
    base = simulation.steady(steps * 0.2 / 3600)
    rng = np.random.default_rng(0)
    behind = 0.04
    for rank in range(ranks):
        host, clock_ns = f"node{rank // per_host}", (rank // per_host) * 3_000_000_000
        rows = base.steps.copy()
        wait = rng.uniform(0.001, 0.004, len(rows))
        rows["wait"] += behind if rank == slow else 0.0
        rows["backward"] += wait + (0.0 if rank == slow else behind)
        wait += 0.0 if rank == slow else behind
        total = simulation.total(rows)
        rows["start_ns"] += np.cumsum(np.full(len(rows), behind) * 1e9).astype(np.int64) + clock_ns
        ready = total - rows["optimizer"] - rows["other"]
        rows["entry"], rows["exchanged"] = _coded(ready - wait), _coded(ready)
        process = Process(
            host=host,
            pid=1000 + rank,
            start_ns=simulation.START_NS + clock_ns,
            start_unix_ns=simulation.START_UNIX_NS,
            rank=rank,
            world_size=ranks,
        )
        sensors = base.process[::20].copy()
        sensors["t_ns"] += clock_ns
        watched_folders.write_process(folder, process, rows, sensors)
        if rank % per_host == 0:
            start = Start(
                host=host,
                pid=1,
                command=["torchrun", "train.py"],
                cwd="/",
                start_ns=simulation.START_NS + clock_ns,
                start_unix_ns=simulation.START_UNIX_NS,
            )
            watched_folders.write_start(folder, start)


def _coded(seconds: np.ndarray) -> np.ndarray:
    return np.clip(np.round(2340.0 * np.log2(1 + seconds * 1e6)), 1, 65535)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_ranks(Path(name) / "watch", options.ranks, options.steps, options.ranks // 3)
        size = sum(path.stat().st_size for path in Path(name).rglob("*"))
        began_s = time.perf_counter()
        command = [sys.executable, "-m", "torchdoctor", "report", name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        took_s = time.perf_counter() - began_s
        most = resource.getrusage(resource.RUSAGE_CHILDREN)
        print("\n".join(text.splitlines()[:6]))
        print(
            f"{options.ranks} ranks, {options.steps} steps, {size / 1e6:.0f} MB: report in "
            f"{took_s:.1f} s ({most.ru_utime + most.ru_stime:.1f} s of CPU), "
            f"{most.ru_maxrss / 1e6:.2f} GB at most"
        )


if __name__ == "__main__":
    main()
