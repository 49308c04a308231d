"""Does a recommended patch run to the end, and gain what was printed, when applied by hand?

    python benchmarks/applied_patches.py run LOG.jsonl [--budget 150s] [--only NAME ...]
    python benchmarks/applied_patches.py table LOG.jsonl
    ... [--clones FOLDER | --programs FOLDER] [--python PYTHON] [--most 20] [--rounds 4]

For each program: its folder is copied into a fresh git repository, and `torchdoctor run` searches
there. If the report has a patch, `torchdoctor patch` prints it, `git apply` takes it in a fresh
checkout, and the patched program runs to its end (an endless one for `--whole` seconds). Then the
untouched and the patched checkout run in turns A B B A A B B A for `--most` seconds each, timed by
`step_times.py`, which knows nothing of torchdoctor. The ratio is that of the mean time per step in
the second half of the steps that all of these runs did, so that what happens once (compiling, a
first epoch that fills a cache) is left out; it has to be over by the middle of `--most`.

Programs are the samples; with `--clones` public scripts (see `public_scripts.py`); with
`--programs` those of a folder, as NAME/train.py. Each appends a line of JSON to LOG; what has a
line for this budget is not run again. It needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from public_patches import overlap, shown, yes_or_no
from public_scripts import OF_PACKAGES, SCRIPTS, public_workloads
from row_log import append, rows_of
from step_times import Timed, run_alone, timed

from torchdoctor.cli.arguments import parse_duration
from torchdoctor.launch.workload import choose_interpreter
from torchdoctor.trials.compare import interval

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_workloads"
_DOCTOR = [sys.executable, "-m", "torchdoctor.cli.front"]
_LEFT_OUT = (".git", "__pycache__", "torchdoctor-runs", ".venv", "out", ".gitignore")
_FEWEST_STEPS = 10  # a second half of fewer says nothing
_MUCH_LONGER = 2.0  # a patched program may take this much more time for as many steps


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program to copy, and how it is started in the copy."""

    name: str
    source: Path | None  # what is copied; None: `public_scripts` writes it
    copied_to: str  # below the repository
    folder: str  # below the repository, where it is started
    command: list[str]  # without the interpreter
    public: bool = False  # its data are made in the copy

    def environment(self, checkout: Path) -> dict[str, str]:
        """Return the program's environment; minGPT's scripts import what lies in their clone."""
        paths = [checkout / "minGPT"] if self.public else []
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return inherited | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"
        }  # fmt: skip


@dataclass(kw_only=True)
class Row:
    """What became of one program."""

    program: str
    budget_s: float
    handed_out: str = "nothing"  # or "patch", "by-hand"
    fixes: list[str] = field(default_factory=list)
    printed: dict[str, float] | None = None
    search_s: float | None = None
    applies: bool | None = None
    to_the_end: bool | None = None
    whole_s: float | None = None  # how long the patched program ran
    measured: dict[str, float] | None = None  # by the mean time per step
    measured_median: dict[str, float] | None = None
    steps: int | None = None  # that all timed runs did
    step_s: list[list[float]] = field(default_factory=list)  # untouched and patched, of each pair
    within: bool | None = None  # the measured ratio lies in the printed interval
    overlaps: bool | None = None  # the two intervals have a value in common
    gains: bool | None = None  # the measured interval lies above 1
    tried: list[str] = field(default_factory=list)  # each trial in a few words
    said: str = ""  # why something is missing


def samples() -> dict[str, Program]:
    """Return the sample workloads by name."""
    return {
        path.stem: Program(
            name=path.stem, source=path, copied_to=path.name, folder="", command=[path.name]
        )
        for path in sorted(SAMPLES.glob("*.py"))
        if path.stem != "expectations"
    }


def of_folder(programs: Path) -> dict[str, Program]:
    """Return the programs NAME/train.py of a folder by name."""
    return {
        path.parent.name: Program(
            name=path.parent.name, source=path.parent, copied_to=".", folder="",
            command=["train.py"],
        )
        for path in sorted(programs.resolve().glob("*/train.py"))
    }  # fmt: skip


def of_clones(clones: Path) -> dict[str, Program]:
    """Return the public scripts that are there, and those of packages, by name."""
    found = {}
    for name, (folder, command) in SCRIPTS.items():
        top = clones.resolve() / Path(folder).parts[0]
        words = command.split()
        if name not in OF_PACKAGES and not (clones / folder / words[0]).is_file():
            print(f"{name}: skipped, there is no {folder}/{words[0]}", file=sys.stderr)
            continue
        found[name] = Program(
            name=name, source=None if name in OF_PACKAGES else top, copied_to=top.name,
            folder=folder, command=words, public=True,
        )  # fmt: skip
    return found


def repository(program: Program, folder: Path, python: str) -> None:
    """Make a fresh git repository of the program, with its data."""
    folder.mkdir()
    target = folder / program.copied_to
    if program.source is not None and program.source.is_dir():
        left_out = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(program.source, target, ignore=left_out, dirs_exist_ok=True)
    elif program.source is not None:
        shutil.copy(program.source, target)
    if program.public:
        public_workloads(folder, python)
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all", "--force")
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    _git(folder, *identity, "commit", "--quiet", "--message", "As it is")


def row_of(program: Program, python: str, given: argparse.Namespace) -> Row:
    """Search, apply and time one program; whatever goes wrong is said in its row."""
    row = Row(program=program.name, budget_s=parse_duration(given.budget))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        repository(program, scratch / "repository", python)
        report = _search(program, python, scratch, row)
        if report is None or not row.fixes or not report["recommendation"]["patch"]:
            return row
        if not _applied(report, scratch, row):
            return row
        began_s = time.monotonic()
        patched = scratch / "patched"
        code, said = run_alone(
            [python, *program.command], patched / program.folder,
            program.environment(patched), given.whole,
        )  # fmt: skip
        row.whole_s = round(time.monotonic() - began_s, 1)
        row.to_the_end = code in (0, None)
        if code is None:
            row.said = f"stopped after {given.whole:g} s, without an error"
        elif code != 0:
            row.said = f"the patched program ended with {code}: {said}"
            return row
        _time(program, python, scratch, row, given)
    return row


def _search(program: Program, python: str, scratch: Path, row: Row) -> dict[str, Any] | None:
    """Run torchdoctor in the repository; fill in what it hands out."""
    checkout, output = scratch / "repository", scratch / "run"
    options = ["--quiet", "--budget", f"{row.budget_s:g}s", "--output", str(output)]
    options += [f"--python={python}"]
    began_s = time.monotonic()
    ran = subprocess.run(
        [*_DOCTOR, "run", *options, *program.command], cwd=checkout / program.folder,
        env=_doctors(program.environment(checkout)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    row.search_s = round(time.monotonic() - began_s, 1)
    if not (output / "report.json").is_file():
        row.said = f"no report ({ran.returncode}): {' '.join(ran.stderr.split())[-300:]}"
        return None
    report: dict[str, Any] = json.loads((output / "report.json").read_text(encoding="utf-8"))
    recommended = report["recommendation"]
    row.fixes = [one["fix"] for one in recommended["fixes"]]
    row.printed = recommended["speedup"]
    row.tried = [
        f"{one['fixes']} {one['verdict']} {shown(one['speedup'])}"
        for one in report["trials"]
        if one["pairs"]
    ]
    if row.fixes:
        by_patch = "patch" if recommended["patch"] else "by-hand"
        row.handed_out = recommended.get("handed_out") or by_patch
    return report


def _applied(report: dict[str, Any], scratch: Path, row: Row) -> bool:
    """Apply the printed patch in a fresh checkout, beside one that is left as it is."""
    printed = subprocess.run(
        [*_DOCTOR, "patch", str(scratch / "run")], env=_doctors(dict(os.environ)),
        capture_output=True, check=False,
    )  # fmt: skip
    (scratch / "x.patch").write_bytes(printed.stdout)
    for name in ("untouched", "patched"):
        _git(scratch, "clone", "--quiet", "repository", name)
    recommended = report["recommendation"]
    names_from = Path(recommended["patch_folder"] or report["workload"]["cwd"]).resolve()
    if not names_from.is_relative_to(scratch / "repository"):
        row.applies, row.said = False, f"the patch is of {names_from}, outside the repository"
        return False
    below = names_from.relative_to(scratch / "repository")
    try:
        _git(scratch / "patched" / below, "apply", str(scratch / "x.patch"))
    except subprocess.CalledProcessError as error:
        row.applies, row.said = False, f"git apply: {error.stderr.strip()[-300:]}"
        return False
    row.applies = bool(printed.stdout)
    return row.applies


def _time(
    program: Program, python: str, scratch: Path, row: Row, given: argparse.Namespace
) -> None:
    """Time both checkouts in turns; fill in the ratio."""
    times: dict[str, list[list[float]]] = {"untouched": [], "patched": []}
    steps = 0
    for number, name in enumerate(turns(given.rounds)):
        checkout = scratch / name
        longest_s = given.most * (_MUCH_LONGER if steps else 1.0)
        found: Timed = timed(
            [python, *program.command], checkout / program.folder,
            program.environment(checkout), scratch / f"times-{number}", longest_s, steps,
        )  # fmt: skip
        if found.ended in ("failed", "timed out") or len(found.times_s) < _FEWEST_STEPS:
            count = f"{len(found.times_s)} steps"
            row.said = f"{name}, run {number + 1}: {found.ended} after {count}. {found.said}"
            return
        steps = steps or len(found.times_s)
        times[name].append(found.times_s)
    compare_times(times["untouched"], times["patched"], row)


def turns(rounds: int) -> list[str]:
    """Return whose turn it is: A B B A A B B A for four rounds, so that drift cancels out."""
    pair = ["untouched", "patched"]
    return [name for number in range(rounds) for name in (pair[::-1] if number % 2 else pair)]


def compare_times(untouched: list[list[float]], patched: list[list[float]], row: Row) -> None:
    """Fill in the ratios by the second half of the steps that all runs did, and the judgement."""
    row.steps = min(map(len, untouched + patched))
    half = slice(row.steps // 2, row.steps)
    for by, name in ((fmean, "measured"), (median, "measured_median")):
        pairs = [
            [by(_step_times(times[half])) for times in pair]
            for pair in zip(untouched, patched, strict=True)
        ]
        ratio = interval([log(before) - log(after) for before, after in pairs])
        setattr(row, name, asdict(ratio) if ratio else None)
        if name == "measured":
            row.step_s = pairs
    row.overlaps = overlap(row.printed, row.measured)
    if row.measured is not None:
        row.gains = row.measured["low"] > 1.0
    if row.measured is not None and row.printed is not None:
        row.within = row.printed["low"] <= row.measured["estimate"] <= row.printed["high"]


def _step_times(ends_s: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends_s)]


def table(rows: list[dict[str, Any]]) -> str:
    """The newest row of each program and budget as text."""
    newest = {(row["program"], row["budget_s"]): row for row in rows}
    lines = [
        "| program | fixes | by | printed | measured | to the end | within | search | remarks |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in newest.values():
        search = "-" if row["search_s"] is None else f"{row['search_s']:.0f} s"
        cells = [
            row["program"], ", ".join(row["fixes"]) or "none", row["handed_out"],
            shown(row["printed"]), shown(row["measured"]), yes_or_no(row["to_the_end"]),
            _within(row), search, row["said"].replace("|", "/"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    patches = [row for row in newest.values() if row["handed_out"] == "patch"]
    ended = sum(row["to_the_end"] is True for row in patches)
    gained = sum(row["gains"] is True for row in patches)
    within = sum(row["within"] is True for row in patches)
    agree = sum(row["within"] is True or row["overlaps"] is True for row in patches)
    lines.append(
        f"\nof {len(patches)} recommended patches {ended} ran to the end, {gained} gain; the "
        f"measured ratio lies in the printed interval for {within}, the intervals overlap for "
        f"{agree}"
    )
    return "\n".join(lines)


def _within(row: dict[str, Any]) -> str:
    if row["within"] is False and row["overlaps"]:
        return "overlaps"
    return yes_or_no(row["within"])


def _doctors(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment with this checkout of torchdoctor."""
    paths = [environment.get("PYTHONPATH", ""), str(ROOT)]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("log", type=Path)
    parser.add_argument("--budget", default="150s", help="of each search")
    parser.add_argument("--only", nargs="*", help="names of programs")
    parser.add_argument("--clones", type=Path, help="of public scripts, instead of the samples")
    parser.add_argument("--programs", type=Path, help="with NAME/train.py, instead of the samples")
    parser.add_argument("--python", default=sys.executable, help="has what the programs import")
    parser.add_argument("--most", type=float, default=20.0, help="seconds of each timed run")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of timed runs")
    parser.add_argument("--whole", type=float, default=240.0, help="most seconds of a whole run")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds: an interval takes two pairs of runs")
    return given


def _programs(given: argparse.Namespace) -> dict[str, Program]:
    if given.clones is not None:
        found = of_clones(given.clones)
    else:
        found = samples() if given.programs is None else of_folder(given.programs)
    if unknown := sorted(set(given.only or ()) - set(found)):
        sys.exit(f"No program is named {', '.join(unknown)}; there are: {', '.join(found)}.")
    return {name: found[name] for name in given.only or found}


def main() -> None:
    """Run what is lacking, and print the table of what is there."""
    given = _options()
    if given.what == "run":
        python = choose_interpreter(given.python, str(Path.cwd()))
        done = {(row["program"], row["budget_s"]) for row in rows_of(given.log)}
        for name, program in _programs(given).items():
            if (name, parse_duration(given.budget)) in done:
                continue
            row = asdict(row_of(program, python, given))
            append(given.log, row)
            print(json.dumps(row), flush=True)
    print(table(rows_of(given.log)))


if __name__ == "__main__":
    main()
