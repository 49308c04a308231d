"""Does a run recommend what is right, and nothing else, while another program keeps a core busy?

    python benchmarks/busy.py OUT.jsonl [--budget 100s] [--only NAME ...] [--cores 1] [--rounds 1]

`torchdoctor run` on each sample workload (`slow_decode` is the demo's), beside as many programs as
`--cores` that never rest. It is right if it recommends one of the fixes that the workload's
docstring expects, or fewer threads where a core is taken: two threads that wait for each other on
one core cost 3 to 20 times as much as one. What else it recommends is named: whether that gains on
a quiet machine, the same run with `--cores 0` says. Each run appends a line to OUT; what is there
is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from row_log import append, rows_of

SAMPLES = Path(__file__).parent.parent / "sample_workloads"
sys.path.insert(0, str(SAMPLES))
from expectations import applying, read_all  # noqa: E402

FEWER_THREADS = "cpu-threads"
NEVER_RESTS = "n = 0\nwhile True: n += 1"


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep so many cores busy."""
    others = [subprocess.Popen([sys.executable, "-c", NEVER_RESTS]) for _ in range(cores)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(script: Path, budget: str, seed: int) -> dict[str, Any]:
    """Return what a run of the workload recommends, and when it was decided."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--budget", budget, "--seed", str(seed), "--output", folder]
        command = [sys.executable, "-m", "torchdoctor.cli.front", "run", *options, str(script)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads(Path(folder, "report.json").read_text(encoding="utf-8"))
    recommended = report["recommendation"]
    rows = [row for row in report["trials"] if row["speedup"] is not None]
    return {
        "fixes": [each["fix"] for each in recommended["fixes"]],
        "speedup": recommended["speedup"],
        "tried": {" + ".join(row["fixes"]): row["speedup"]["estimate"] for row in rows},
        "ending": report["ending"],
    }


def main() -> None:
    """Run what is missing and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", default="100s")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+")
    wanted = parser.parse_args()
    expected = {
        each.script.stem: applying(each.fix, gpu=False, bfloat16=False)
        for each in read_all()
        if not wanted.only or each.script.stem in wanted.only
    }
    done = {(row["workload"], row["round"], row["cores"]) for row in rows_of(wanted.out)}
    for number in range(wanted.rounds):
        for name in expected:
            if (name, number, wanted.cores) in done:
                continue
            with busy(wanted.cores):
                outcome = run(SAMPLES / f"{name}.py", wanted.budget, number)
            head = {"workload": name, "round": number, "cores": wanted.cores}
            append(wanted.out, {**head, "budget": wanted.budget, **outcome})
    print("| workload | busy cores | recommended | faster by | expected | right | not expected |")
    print("|---|---|---|---|---|---|---|")
    for row in rows_of(wanted.out):
        if row["workload"] not in expected:
            continue
        taken = [FEWER_THREADS] if row["cores"] else []
        fixes, known = row["fixes"], [*expected[row["workload"]], *taken]
        gain = f"{row['speedup']['estimate']:.2f}x" if row["speedup"] else "-"
        right = bool(set(fixes) & set(known)) if known else not fixes
        further = ", ".join(fix for fix in fixes if fix not in known) or "-"
        print(
            f"| {row['workload']} | {row['cores']} | {', '.join(fixes) or '-'} | {gain} |"
            f" {', '.join(known) or 'none'} | {'yes' if right else 'no'} | {further} |"
        )


if __name__ == "__main__":
    main()
