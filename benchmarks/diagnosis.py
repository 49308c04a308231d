"""Does torchdoctor find what ails each sample workload, and the fix that helps?

Runs `torchdoctor run` on every script of sample_workloads/ and prints a table: bottleneck and check
expected and found, fix expected and best found with its interval, false alarms on the tuned one.

    python benchmarks/diagnosis.py [--budget 4m] [--only NAME ...] [--rounds 1]

Each row takes the budget. The expectations stand in the scripts' own docstrings.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "sample_workloads"
COLUMNS = ("workload", "bottleneck", "check", "fix expected", "best found", "speed-up", "verdict")


def expectations(script: Path) -> dict[str, str]:
    """The "<Name> expected: value" lines of a sample's docstring, continuation lines joined."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    pattern = r"^([A-Z][a-z]+(?: expected)?): (.*?)(?=^[A-Z][a-z]+(?: expected)?: |\Z)"
    found = re.findall(pattern, docstring, re.MULTILINE | re.DOTALL)
    return {name.removesuffix(" expected").lower(): " ".join(v.split()) for name, v in found}


def run(script: Path, budget: str, folder: Path) -> dict:
    """One run's report.json; an empty dictionary where there is none."""
    command = [sys.executable, "-m", "torchdoctor.cli", "run", "--quiet", "--budget", budget]
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


def row(script: Path, report: dict) -> tuple[str, ...]:
    """One line of the table; the last cell is "ok" or says what is wrong."""
    wanted = expectations(script)
    cpu = lambda text: re.split("[;(]", text)[0].strip()  # noqa: E731 - "cpu; on a GPU: gpu"
    diagnosis = report.get("diagnosis") or {}
    bottleneck, detail = diagnosis.get("bottleneck"), diagnosis.get("detail")
    checks = [part.strip() for part in cpu(wanted["check"]).split(",")]
    seen = {finding["check"] for finding in diagnosis.get("findings", [])}
    recommended = (report.get("recommendation") or {}).get("fixes") or []
    names = [fix["fix"] for fix in recommended]
    speedup = (report.get("recommendation") or {}).get("speedup")
    text = "-"
    if speedup:
        text = f"{speedup['estimate']:.2f}x ({speedup['low']:.2f}-{speedup['high']:.2f})"
    fix = cpu(wanted["fix"])
    wrong = []
    if bottleneck != cpu(wanted["bottleneck"]):
        wrong.append(f"bottleneck is {bottleneck}")
    if not set(checks) & (seen | {"none"}):
        wrong.append(f"check not found (detail {detail})")
    if fix == "none" and script.stem == "tuned" and names:
        wrong.append(f"false alarm: {', '.join(names)}")
    if fix != "none" and fix not in names:
        wrong.append("fix not recommended")
    best = ", ".join(names) or "none"
    return (
        script.stem,
        f"{bottleneck}",
        f"{detail}",
        fix,
        best,
        text,
        "ok" if not wrong else "; ".join(wrong),
    )


def main() -> int:
    """Run the samples and print the table; exit code 1 where a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    scripts = [s for s in sorted(SAMPLES.glob("*.py")) if expectations(s)]
    if arguments.only:
        scripts = [script for script in scripts if script.stem in arguments.only]
    bad = 0
    for number in range(arguments.rounds):
        print(f"\nround {number + 1}\n\n| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
        for script in scripts:
            with tempfile.TemporaryDirectory() as folder:
                report = run(script, arguments.budget, Path(folder) / "run")
            cells = row(script, report)
            bad += cells[-1] != "ok"
            print(f"| {' | '.join(cells)} |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
