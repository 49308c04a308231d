"""Run every simulated search that the tests take a tenth of.

    python benchmarks/search_simulation.py

How often fixes that do nothing are recommended, how often intervals hold the true speed-up, and how
much of the attainable speed-up is recommended: the assertions are those of `tests/trials`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.exit(
        subprocess.call(
            [sys.executable, "-m", "pytest", "-q", "-n", "auto", "tests/trials"],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "TORCHDOCTOR_FULL_SIMULATION": "1"},
        )
    )
