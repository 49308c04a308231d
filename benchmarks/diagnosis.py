"""Does torchdoctor find what ails each sample workload, and the fix that helps?

Runs `torchdoctor run` on every script of sample_workloads/ and prints a table: bottleneck expected
and found, fix expected and best found, its speed-up with the interval, and what is wrong, false
alarms on the tuned one among it.

    python benchmarks/diagnosis.py [--budget 3m] [--rounds 1] [--only NAME ...] [--keep FOLDER]
    python benchmarks/diagnosis.py --simulated-gpu [--budget 3m] [--only NAME ...] [--keep FOLDER]

The expectations stand in the scripts' own docstrings. On the simulated GPU illnesses are planted
(tests/simulated_gpu/planted.py); beside each stands what the device itself counted in a run without
torchdoctor. Exit code 1 where a row is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "sample_workloads"
sys.path[:0] = [str(SAMPLES), str(SAMPLES.parent / "tests")]

from expectations import Expectation, applying, read_all  # noqa: E402
from simulated_gpu.planted import PLANTED, shares  # noqa: E402

COLUMNS = (
    "workload",
    "bottleneck expected",
    "found",
    "fix expected",
    "recommended",
    "speed-up",
    "wrong",
)
SIMULATED_COLUMNS = (
    *("illness", "bottleneck planted", "found", "shares planted", "found"),
    *("finding", "place", "fix", "gain planted", "measured", "wrong"),
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
        interval(speedup) if speedup else "-",
        "; ".join(wrong),
    )


def simulated_row(name: str, budget: str, folder: Path) -> tuple[str, ...]:
    """One planted illness, alone and through `torchdoctor run`."""
    planted = PLANTED[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    truth, gain = planted.truth(folder) if planted.ranks == 1 else None, None
    options = ["--fixes", planted.fix, *planted.options] if planted.fix else ["--no-fixes"]
    report = planted.report(folder, "--quiet", "--budget", budget, *options)
    wrong = planted.mistakes(report, truth)
    findings = {row["check"]: row for row in reversed(report["diagnosis"]["findings"])}
    place = (findings.get(planted.finding) or {}).get("location") or {}
    measured = "-"
    if planted.fix and truth:
        tried = (
            t for t in report["trials"] if list(t["fixes"]) == [planted.fix] and t.get("speedup")
        )
        trial = next(tried, None)
        measured = interval(trial["speedup"]) if trial else "nothing"
        if trial:  # with the very settings that were measured
            settings = trial["fixes"][planted.fix]
            cured = planted.truth(folder, fixed_by=settings)
            gain = cured["steps_per_s"] / truth["steps_per_s"]
            gain *= settings.get("batch_size", planted.batch) / planted.batch
        chosen = [fix["fix"] for fix in (report.get("recommendation") or {}).get("fixes") or []]
        wrong += [] if planted.fix in chosen else [f"{planted.fix} not recommended"]
    return (
        name,
        " or ".join(planted.bottleneck),
        str(report["diagnosis"]["bottleneck"]),
        in_percent(truth["shares"]) if truth else "-",
        in_percent(shares(report)),
        planted.finding,
        str(place.get("line", "-")),
        planted.fix or "-",
        f"{gain:.2f}x" if gain else "-",
        measured,
        "; ".join(wrong),
    )


def in_percent(known: dict[str, float]) -> str:
    """Shares in words, without those that are next to nothing."""
    return ", ".join(f"{name} {share:.0%}" for name, share in known.items() if share >= 0.005)


def interval(speedup: dict[str, float]) -> str:
    """A speed-up with its interval."""
    return f"{speedup['estimate']:.2f}x ({speedup['low']:.2f}-{speedup['high']:.2f})"


def simulated(arguments: argparse.Namespace, keep: Path) -> int:
    """Print the table of planted illnesses; return how many rows are wrong."""
    print(f"| {' | '.join(SIMULATED_COLUMNS)} |\n|{' --- |' * len(SIMULATED_COLUMNS)}", flush=True)
    bad = 0
    for name in arguments.only or PLANTED:
        cells = simulated_row(name, arguments.budget, keep / name)
        bad += bool(cells[-1])
        print(f"| {' | '.join(cells)} |", flush=True)
    return bad


def main() -> int:
    """Run the samples and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--simulated-gpu", action="store_true", help="the planted illnesses")
    arguments = parser.parse_args()
    if arguments.simulated_gpu:
        with tempfile.TemporaryDirectory() as scratch:
            return 1 if simulated(arguments, arguments.keep or Path(scratch)) else 0
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
