"""Store reports of the sample workloads in workloads.json.gz, whose first screens are held.

Run each sample from the top of the project, then name its run folders here:

    torchdoctor run --budget 2m --output RUNS/tuned sample_workloads/tuned.py
    python tests/reports/store_workloads.py RUNS/*
    TORCHDOCTOR_UPDATE_GOLD=1 python -m pytest tests/reports -k sample_workload

A report replaces the stored one of the same script; the others stay. Folders of the machine are
replaced, so that screens do not depend on where the reports were made.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

STORED = Path(__file__).with_name("workloads.json.gz")
HOME, RUN = "/home/ada/torchdoctor", "torchdoctor-runs/20261124-010000"


def told_elsewhere(text: str, project: str) -> dict:
    """Return a report as if it had been made in the folder that all stored ones name."""
    run_folder = json.loads(text)["run_folder"]
    text = text.replace(run_folder, f"{HOME}/{RUN}").replace(project, HOME)
    python = re.escape(sys.prefix)
    return json.loads(re.sub(python, f"{HOME}/.venv", text))


def main(folders: list[str]) -> int:
    """Store the reports of these run folders."""
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    stored = json.loads(gzip.decompress(STORED.read_bytes()))
    project = str(Path(__file__).resolve().parents[2])
    for folder in folders:
        text = (Path(folder) / "report.json").read_text(encoding="utf-8")
        report = told_elsewhere(text, project)
        script = next(word for word in report["workload"]["command"] if word.endswith(".py"))
        stored[Path(script).stem] = report
        print(f"stored {Path(script).stem}")
    # Without a time in the header the file changes only where a report does.
    STORED.write_bytes(gzip.compress(json.dumps(stored, sort_keys=True).encode(), mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
