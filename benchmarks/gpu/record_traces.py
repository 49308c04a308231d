"""A small trace of every sample workload, by the profiler window that `run` takes itself.

    python benchmarks/gpu/record_traces.py FOLDER [WORKLOAD...]

Each becomes FOLDER/<workload>.json.gz with what was planted in FOLDER/planted.json.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parent.parent.parent / "sample_workloads"
sys.path.insert(0, str(SAMPLES))

from expectations import read_all  # noqa: E402


def main() -> None:
    """Run each sample for its diagnosis alone and keep its trace."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    planted = {}
    for wanted in read_all():
        name = wanted.script.stem
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            command = [
                sys.executable,
                "-m",
                "torchdoctor.cli.front",
                "run",
                "--quiet",
                "--no-fixes",
            ]
            result = subprocess.run(
                [
                    *command,
                    "--budget",
                    os.environ.get("TRACE_BUDGET", "20s"),
                    "--output",
                    str(run),
                    str(wanted.script),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            traces = sorted(run.glob("launches/*/channel/trace-*.json.gz"))
            if result.returncode or not traces:
                print(f"{name}: no trace (exit code {result.returncode})")
                continue
            shutil.copy(traces[-1], folder / f"{name}.json.gz")
        size = (folder / f"{name}.json.gz").stat().st_size
        planted[name] = {"bottleneck": wanted.bottleneck, "checks": wanted.checks}
        print(f"{name}: {size >> 10} KB")
    (folder / "planted.json").write_text(json.dumps(planted, indent=2) + "\n")


if __name__ == "__main__":
    main()
