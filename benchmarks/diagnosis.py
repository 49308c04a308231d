"""Does torchdoctor find what ails each sample workload, and the fix that helps?

Runs `torchdoctor run` on every script of sample_workloads/ and prints a table: bottleneck expected
and found, fix expected and best found, its speed-up with the interval, and what is wrong, false
alarms on the tuned one among it.

    python benchmarks/diagnosis.py [--budget 3m] [--rounds 1] [--only NAME ...] [--keep FOLDER]

The expectations stand in the scripts' own docstrings. Exit code 1 where a row is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "sample_workloads"
sys.path.insert(0, str(SAMPLES))

from expectations import Expectation, applying, read_all  # noqa: E402

COLUMNS = (
    "workload",
    "bottleneck expected",
    "found",
    "fix expected",
    "recommended",
    "speed-up",
    "wrong",
)
_BFLOAT16_UNITS = {"avx512_bf16", "amx_bf16"}


def run(script: Path, budget: str, folder: Path) -> dict:
    """One run's report.json; an empty dictionary where there is none."""
    command = [sys.executable, "-m", "torchdoctor.cli.front", "run", "--quiet", "--budget", budget]
    result = subprocess.run(
        [*command, "--output", str(folder), str(script)],
        capture_output=True,
        text=True,
        cwd=SAMPLES.parent,
        check=False,
    )
    path = folder / "report.json"
    if result.returncode or not path.exists():
        print(f"{script.stem}: exit code {result.returncode}\n{result.stderr}", file=sys.stderr)
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def row(wanted: Expectation, report: dict) -> tuple[str, ...]:
    """One line of the table; the last cell is empty or says what is wrong."""
    environment = report.get("environment") or {}
    machine = (
        bool(environment.get("gpus")),
        bool(_BFLOAT16_UNITS & set(environment.get("cpu_features", []))),
    )
    bottlenecks = applying(wanted.bottleneck, *machine)
    checks, fixes = applying(wanted.checks, *machine), applying(wanted.fix, *machine)
    diagnosis = report.get("diagnosis") or {}
    seen = {finding["check"] for finding in diagnosis.get("findings", [])}
    recommendation = report.get("recommendation") or {}
    names = [fix["fix"] for fix in recommendation.get("fixes") or []]
    speedup = recommendation.get("speedup")
    wrong = []
    if diagnosis.get("bottleneck") not in (bottlenecks or ("none",)):
        wrong.append("bottleneck")
    if checks and not seen & set(checks):
        wrong.append(f"none of {', '.join(checks)} found")
    if fixes and not set(fixes) & set(names):
        wrong.append("fix not recommended")
    if wanted.script.stem == "tuned" and names:
        wrong.append("false alarm")
    return (
        wanted.script.stem,
        " or ".join(bottlenecks) or "none",
        f"{diagnosis.get('bottleneck')}: {diagnosis.get('detail')}",
        " or ".join(fixes) or "none",
        ", ".join(names) or "none",
        f"{speedup['estimate']:.2f}x ({speedup['low']:.2f}-{speedup['high']:.2f})"
        if speedup
        else "-",
        "; ".join(wrong),
    )


def main() -> int:
    """Run the samples and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    arguments = parser.parse_args()
    wanted = [w for w in read_all() if not arguments.only or w.script.stem in arguments.only]
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        keep = arguments.keep or Path(scratch)
        for number in range(1, arguments.rounds + 1):
            print(f"\nround {number}, budget {arguments.budget}\n\n| {' | '.join(COLUMNS)} |")
            print(f"|{' --- |' * len(COLUMNS)}", flush=True)
            for one in wanted:
                folder = keep / f"{one.script.stem}-{number}"
                cells = row(one, run(one.script, arguments.budget, folder))
                bad += bool(cells[-1])
                print(f"| {' | '.join(cells)} |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
