"""Planted against found, from run folders that exist: python benchmarks/gpu/table.py SAMPLES"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from diagnosis import COLUMNS, read_all, row


def main() -> None:
    """Print the table of `benchmarks/diagnosis.py`; a workload without a report is named."""
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for wanted in read_all():
        path = Path(sys.argv[1]) / wanted.script.stem / "report.json"
        if not path.exists():
            print(f"| {wanted.script.stem} | not run |" + " |" * (len(COLUMNS) - 2))
            continue
        cells = row(wanted, json.loads(path.read_text(encoding="utf-8")))
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
