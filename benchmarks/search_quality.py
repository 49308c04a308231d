"""How much of the speed-up that there is does the search find, and how often does it find none?

    python benchmarks/search_quality.py run OUT.jsonl [--budget 3m] [--only NAME ...] [--rounds 1]
    python benchmarks/search_quality.py again OUT.jsonl [--budget 3m] [--only NAME ...]
    python benchmarks/search_quality.py nulls OUT.jsonl [--budget 3m] [--least 40]
    python benchmarks/search_quality.py table OUT.jsonl
    ... [--clones FOLDER [--python PYTHON]] [--times 10]

`run`, for each sample workload: `torchdoctor run` with this budget for everything; an exhaustive
search that is given `--times` as much (every candidate in every setting in rounds of fresh
launches, then the best together, one after another, as long as that gains); and both results side
by side in fresh pairs, which alone say what share of the best speed-up (in logarithms) the search
reached. `again`: another search, of any budget, beside what the exhaustive one found before.
`nulls`: candidates that change nothing, eight at a time on each workload in turn, until so many
were searched: how many were confirmed. With `--clones`, public scripts take the place of the sample
workloads: see `public_scripts.py`.

Each workload appends a line of JSON to OUT; what is there already is not run again (but by
`again`), so that it can be stopped and gone on with at any time; the table shows the newest line of
each workload and budget. The whole takes many hours, and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from observed_workload import Workload
from public_scripts import public_workloads
from row_log import append, rows_of

from torchdoctor import schema as words
from torchdoctor.cli.arguments import parse_duration
from torchdoctor.launch.workload import workload_of
from torchdoctor.schema import Candidate, FixSet
from torchdoctor.schema.errors import TorchdoctorError
from torchdoctor.schema.figures import fixes_with_settings
from torchdoctor.schema.specs import FixSpec

SAMPLES = Path(__file__).parent.parent / "sample_workloads"
_NULLS = 8  # at a time
_NULL_FIX = """
def apply(torch, settings, program):
    program.at_first_batch(program.applied, lambda: None)
"""


def run_as_a_user(
    workload: words.Workload, folder: Path, budget_s: float, seed: int
) -> tuple[dict[str, Any], float | None]:
    """The report of `torchdoctor run`; seconds until it recommended 2x or more, None if never."""
    output = folder / f"search-{seed}"
    options = ["--budget", f"{budget_s:g}s", "--seed", str(seed)]
    command = [sys.executable, "-m", "torchdoctor.cli.front", "run", *options]
    command += ["--output", str(output), f"--python={workload.python}"]
    command += workload.command[1:]
    began_s, twice_s = time.monotonic(), None
    with subprocess.Popen(
        command, cwd=workload.cwd, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            best = re.search(r"Best so far: .*?([\d.]+)x \(", line)
            if twice_s is None and best is not None and float(best[1]) >= 2.0:
                twice_s = time.monotonic() - began_s
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, command)
    found: dict[str, Any] = json.loads((output / "report.json").read_text())
    gain = found["recommendation"]["speedup"]
    if twice_s is None and gain and gain["estimate"] >= 2.0:  # by its last measurement
        twice_s = time.monotonic() - began_s
    return found, twice_s


def _tried(report: dict[str, Any]) -> list[str]:
    """Each trial in a few words, so that a search which missed something can be understood."""
    return [
        f"{one['fixes']} {one['verdict']} "
        f"{round(one['speedup']['estimate'], 3) if one['speedup'] else '-'} {one['pairs']} pairs"
        for one in report["trials"]
    ]


def run_one(
    name: str, budget_s: float, number: int, options: argparse.Namespace, best: FixSet | None = None
) -> dict[str, Any]:
    """One workload by both ways; `best`: what an exhaustive search found before."""
    workload = options.workloads[name]
    with (
        tempfile.TemporaryDirectory() as folder,
        Workload.observed(workload, Path(folder), budget_s) as one,
    ):
        tried = one.candidates()
        began = time.monotonic()
        report, twice_s = run_as_a_user(workload, Path(folder), budget_s, number)
        took_s = time.monotonic() - began
        ours = FixSet((x["fix"], x["settings"]) for x in report["recommendation"]["fixes"])
        if best is None:
            best = one.exhaustive(tried, options.times * budget_s, number)
        several = {"search": ours, "exhaustive": best}
        if ours == best:  # measured twice, chance alone would tell them apart
            found = one.side_by_side({"search": ours}, number, options.pairs)
            both = dict.fromkeys(several, found.get("search"))
        else:
            both = one.side_by_side(several, number, options.pairs)
    return {
        "kind": "run",
        "workload": name,
        "round": number,
        "budget_s": budget_s,
        "candidates": len(tried),
        "search_s": round(took_s, 1),
        "twice_s": twice_s and round(twice_s, 1),  # until 2x or more was recommended
        "tried": _tried(report),
        "search": fixes_with_settings(ours),
        "exhaustive": fixes_with_settings(best),
        "exhaustive_fixes": list(best.items()),
        **{f"{way}_speedup": asdict(x) if x else None for way, x in both.items()},
    }


def run_nulls(
    name: str, budget_s: float, number: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Eight candidates that change nothing; half of them can be switched."""
    with tempfile.TemporaryDirectory() as around:
        folder = Path(around)
        (folder / "null_fix.py").write_text(_NULL_FIX)
        with Workload.observed(options.workloads[name], folder, budget_s) as one:
            tried = []
            for index in range(_NULLS):
                one.modules[f"null-{index}"] = FixSpec(
                    name=f"nothing, number {index}",
                    file=str(folder / "null_fix.py"),
                    page="Change nothing.",
                    treats=(),
                    keeps_results="exactly",
                    when="between steps" if index % 2 else "launch",
                    refuses=lambda recording: None,
                    instruction=lambda settings, recording: "",
                )
                tried.append(Candidate(fixes=FixSet.of(f"null-{index}")))
            found = one.search(tried, budget_s, number)
    fresh = [x for x in found.trials if "screened only" not in (x.reason or "")]
    confirmed = [fix for x in fresh if x.verdict == "faster" and (fix := x.fixes.only)]
    return {
        "kind": "nulls",
        "workload": name,
        "round": number,
        "budget_s": budget_s,
        "candidates": _NULLS,
        "confirmed": confirmed,
        "recommended": [x.fix for x in found.recommendation.fixes],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """What is there as text."""
    lines = ["| workload | search | exhaustive | reached |", "| --- | --- | --- | --- |"]
    reached = []
    newest = {(x["workload"], x["budget_s"]): x for x in rows if x["kind"] == "run"}
    for row in newest.values():
        ours, best = (row.get(f"{way}_speedup") for way in ("search", "exhaustive"))
        share = reached_share(ours, best)
        reached += [share] if share is not None else []
        lines.append(
            f"| {row['workload']}, {row['budget_s']:g} s "
            f"| {row['search'] or 'none'} {_figures(ours)} "
            f"| {row['exhaustive'] or 'none'} {_figures(best)} "
            f"| {'nothing to gain' if share is None else f'{share:.0%}'} |"
        )
    if reached:
        lines.append(
            f"\nreached on average {fmean(reached):.0%} of what the exhaustive search found, on "
            f"{sum(share >= 0.9 for share in reached)} of {len(reached)} workloads 90 % or more"
        )
    nulls = [row for row in rows if row["kind"] == "nulls"]
    if nulls:
        false = sum(len(row["confirmed"]) for row in nulls)
        total = sum(row["candidates"] for row in nulls)
        lines.append(f"\nof {total} candidates that change nothing, {false} were confirmed")
    return "\n".join(lines)


def reached_share(ours: dict[str, float] | None, best: dict[str, float] | None) -> float | None:
    """Share of the best speed-up, in logarithms; None where no gain to speak of is proven."""
    proven = [x for x in (ours, best) if x and x["low"] > 1.0]
    most = max((math.log(x["estimate"]) for x in proven), default=0.0)
    if most < math.log(1.02):
        return None
    return min(max(math.log(ours["estimate"]), 0.0) / most, 1.0) if ours else 0.0


def _figures(found: dict[str, float] | None) -> str:
    if not found:
        return ""
    return f"{found['estimate']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"


def _again(budget_s: float, options: argparse.Namespace) -> None:
    """Another search of each workload that was searched exhaustively."""
    for name in options.workloads:
        rows = [x for x in rows_of(options.out) if x["kind"] == "run" and x["workload"] == name]
        if not rows:
            continue
        best = FixSet((fix, settings) for fix, settings in rows[-1]["exhaustive_fixes"])
        try:
            row = run_one(name, budget_s, len(rows) + 1, options, best)
        except TorchdoctorError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        append(options.out, row)
        print(json.dumps(row), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "again", "nulls", "table"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--least", type=int, default=40, help="candidates that change nothing")
    parser.add_argument("--pairs", type=int, default=8, help="of each result, side by side")
    parser.add_argument("--times", type=float, default=10, help="budgets of the exhaustive search")
    parser.add_argument("--clones", type=Path, help="of public scripts, instead of the samples")
    parser.add_argument("--python", default=sys.executable, help="has what these import")
    options = parser.parse_args()
    if options.clones is not None:
        options.workloads = public_workloads(options.clones, options.python)
    else:
        options.workloads = {
            path.stem: workload_of([str(path)], cwd=str(SAMPLES))
            for path in sorted(SAMPLES.glob("*.py"))
            if path.stem != "expectations"
        }
    if options.only:
        options.workloads = {name: options.workloads[name] for name in options.only}
    return options


def main() -> int:
    """Run what is lacking, and print the table of what is there."""
    options = _options()
    budget_s, rounds = parse_duration(options.budget), options.rounds
    if options.what == "nulls":
        rounds = math.ceil(options.least / (_NULLS * len(options.workloads)))
    if options.what == "again":
        _again(budget_s, options)
    for number in range(1, rounds + 1):
        for name in options.workloads if options.what in ("run", "nulls") else []:
            rows = rows_of(options.out)
            key = (options.what, name, number, budget_s)
            if key in [(x["kind"], x["workload"], x["round"], x["budget_s"]) for x in rows]:
                continue
            done = sum(row["candidates"] for row in rows if row["kind"] == "nulls")
            if options.what == "nulls" and done >= options.least:
                break
            try:
                one_more = run_one if options.what == "run" else run_nulls
                row = one_more(name, budget_s, number, options)
            except TorchdoctorError as error:  # the next start tries it again
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            append(options.out, row)
            print(json.dumps(row), flush=True)
    print(table(rows_of(options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
