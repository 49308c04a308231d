"""A small trace of every sample workload that was run: the profiler window that `run` took itself.

    python benchmarks/gpu/record_traces.py FOLDER SAMPLES

Each run folder SAMPLES/<workload> becomes FOLDER/<workload>.json.gz, and what was planted stands
in FOLDER/planted.json.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

SAMPLES = Path(__file__).parent.parent.parent / "sample_workloads"
sys.path.insert(0, str(SAMPLES))

from expectations import read_all  # noqa: E402


def main() -> None:
    """Keep the trace of each sample's program as it is; of a run, that is the first one."""
    folder, runs = (Path(argument) for argument in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    planted = {}
    for wanted in read_all():
        name = wanted.script.stem
        traces = sorted(runs.glob(f"{name}/launches/*/channel/trace-*.json.gz"))
        if not traces:
            print(f"{name}: no trace")
            continue
        shutil.copy(traces[0], folder / f"{name}.json.gz")
        size = (folder / f"{name}.json.gz").stat().st_size
        planted[name] = {"bottleneck": wanted.bottleneck, "checks": wanted.checks}
        print(f"{name}: {size >> 10} KB")
    (folder / "planted.json").write_text(json.dumps(planted, indent=2) + "\n")


if __name__ == "__main__":
    main()
