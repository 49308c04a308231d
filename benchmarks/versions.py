"""Does the suite pass with each supported version of torch and of Python?

    python benchmarks/versions.py run FOLDER [--only NAME,NAME] [--parts PART,PART] [--speeds fast]
    python benchmarks/versions.py page

Each row gets an environment of its own in FOLDER, made when it is not there: an interpreter named
`pythonX.Y` on the PATH or of pyenv, torch in exactly the row's version, then this checkout with
what its tests need. In it the tests of each part run. What fails runs a second time, alone: what
passes then is counted as passed and kept as `again`. Each row of the log holds the versions as the
environment's own interpreter states them. `run` goes on where the last call ended; what is named by
`--only` runs again. `page` prints the table of the last row of each environment and part; its
tests marked slow, which start programs, have rows of their own.

By hand, not in CI: torch's builds for CUDA, which load without a GPU, take 6 GB each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from row_log import append, rows_of

ROOT = Path(__file__).parent.parent
LOG = Path(__file__).parent / "logs" / "versions.jsonl"
PARTS = {
    "probe": ("tests/probe",),
    "fixes": ("tests/fixes",),
    "runs": (
        "tests/test_runs.py",
        "tests/recording/test_steps_of_programs.py",
        "tests/recording/test_trace_torch.py",
        "tests/trials/test_run_trials.py",
        "tests/watch/test_watch_fidelity.py",
    ),
}
SPEEDS = {"fast": "not slow", "slow": "slow"}
_VERSIONS = """
import json, platform, torch
print(json.dumps({"python": platform.python_version(), "torch": str(torch.__version__)}))
"""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One row of the table."""

    name: str
    python: str  # 3.11
    torch: str


ENVIRONMENTS = (
    Environment(name="torch-2.4.1", python="3.11", torch="2.4.1"),
    Environment(name="torch-2.6.0", python="3.11", torch="2.6.0"),
    Environment(name="torch-2.11.0", python="3.11", torch="2.11.0"),
    Environment(name="torch-2.13.0", python="3.11", torch="2.13.0"),
    Environment(name="torch-2.14.1", python="3.11", torch="2.14.1"),
    Environment(name="py-3.10", python="3.10", torch="2.13.0"),
    Environment(name="py-3.12", python="3.12", torch="2.13.0"),
    Environment(name="py-3.13", python="3.13", torch="2.13.0"),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the tests of one part came to in one environment."""

    name: str
    part: str
    speed: str  # "slow": the tests marked so; "fast": the others
    python: str
    torch: str
    commit: str
    seconds: float
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)  # passed the second time
    skipped: dict[str, int] = field(default_factory=dict)  # by their reasons
    error: str | None = None  # no test ran


def interpreter(version: str) -> str:
    """Return where `pythonX.Y` is; raise LookupError where it is not installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for found in sorted(pyenv.glob(f"{version}.*/bin/python{version}")):
        return str(found)
    on_path = shutil.which(f"python{version}")
    if on_path is None:
        raise LookupError(f"there is no python{version}")
    return on_path


def prepared(environment: Environment, folder: Path) -> Path:
    """Return the environment's interpreter; make the environment first where it is not there."""
    made = folder / environment.name
    python = made / "bin" / "python"
    if (made / "installed").exists():
        return python
    exactly = f"torch=={environment.torch}"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", exactly]
    subprocess.run([interpreter(environment.python), "-m", "venv", made], check=True)
    # First by itself: a build that lies on the disk is then not replaced by another one.
    subprocess.run(pip, check=True)
    subprocess.run([*pip, "-e", f"{ROOT}[dev]"], check=True)
    (made / "installed").touch()
    return python


def tried(environment: Environment, part: str, speed: str, folder: Path) -> Outcome:
    """Run the tests of one part; where none could run, the row says why."""
    began = time.monotonic()
    stated = {"name": environment.name, "part": part, "speed": speed, "commit": _commit()}
    versions = {"python": environment.python, "torch": environment.torch}
    printed = folder / f"{environment.name}-{part}-{speed}.txt"
    chosen = ["-n", "auto", "--dist", "loadgroup", "-m", SPEEDS[speed], *PARTS[part]]
    try:
        python = prepared(environment, folder)
        said = subprocess.run([python, "-c", _VERSIONS], capture_output=True, check=True).stdout
        versions = json.loads(said)
        first = _outcomes(python, chosen, printed)
        failed = [name for name, outcome in first if outcome == "failed"]
        second = dict(_outcomes(python, failed, printed.with_suffix(".again"))) if failed else {}
    except (LookupError, RuntimeError, subprocess.CalledProcessError) as error:
        return Outcome(**stated, **versions, seconds=0.0, error=str(error))
    again = [name for name in failed if second.get(name) == "passed"]
    counted = Counter(outcome for _, outcome in first)
    passed = counted.pop("passed", 0) + len(again)
    counted.pop("failed", None)
    return Outcome(
        **stated, **versions, seconds=round(time.monotonic() - began), passed=passed, again=again,
        failed=[name for name in failed if name not in again], skipped=dict(counted),
    )  # fmt: skip


def _outcomes(python: Path, arguments: list[str], printed: Path) -> list[tuple[str, str]]:
    """Return each test's name beside "passed", "failed" or the reason why it was skipped.

    Raises:
        RuntimeError: pytest ended without a word of any test; what it printed is in `printed`.
    """
    with TemporaryDirectory() as folder, printed.open("w", encoding="utf-8") as output:
        written = Path(folder, "outcomes.xml")
        subprocess.run(
            [python, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={written}",
             "-o", "junit_family=xunit1", *arguments],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=output,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if not written.exists():
            raise RuntimeError(f"pytest wrote no outcomes: see {printed}")
        cases = ElementTree.parse(written).iter("testcase")
        return [(_name(case), _outcome(case)) for case in cases]


def _name(case: ElementTree.Element) -> str:
    """Return the test's name as pytest takes it, without the group that xdist adds."""
    return re.sub(r"@[\w-]+$", "", f"{case.get('file')}::{case.get('name')}")


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    return "passed" if skipped is None else str(skipped.get("message"))


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def run(folder: Path, only: list[str], parts: list[str], speeds: list[str], log: Path) -> None:
    """Try what the log does not hold yet, or what is named."""
    rows = rows_by_key(log).items()
    known = {key for key, row in rows if not row.failed and not row.error}
    for environment, part, speed in product(ENVIRONMENTS, parts, speeds):
        key = (environment.name, part, speed)
        if environment.name not in only if only else key in known:
            continue
        outcome = tried(environment, part, speed, folder)
        append(log, asdict(outcome))
        print(json.dumps(asdict(outcome), indent=1), flush=True)


def rows_by_key(log: Path) -> dict[tuple[str, str, str], Outcome]:
    """Return the last row of each environment, part and speed."""
    return {(row["name"], row["part"], row["speed"]): Outcome(**row) for row in rows_of(log)}


def page(log: Path) -> None:
    """Print the table; what was not tried is said to be so."""
    rows = rows_by_key(log)
    print(f"| torch | Python | {' | '.join(PARTS)} | failed |\n|{' --- |' * (len(PARTS) + 3)}")
    for environment in ENVIRONMENTS:
        own = [row for key, row in rows.items() if key[0] == environment.name]
        stated = own[-1] if own else environment
        cells = [
            ", ".join(_cell(rows.get((environment.name, part, speed)), speed) for speed in SPEEDS)
            for part in PARTS
        ]
        failed = [name.partition("::")[2] for row in own for name in row.failed]
        failed += [row.error for row in own if row.error]
        words = f"| {stated.torch} | {stated.python} | {' | '.join(cells)} |"
        print(words, ", ".join(failed) or ("none" if own else ""), "|")


def _cell(row: Outcome | None, speed: str) -> str:
    """Return how many passed of those that were not skipped."""
    if row is None:
        return f"{speed} not tried"
    skipped = f" ({sum(row.skipped.values())} skipped)" if row.skipped else ""
    return f"{speed} {row.passed} of {row.passed + len(row.failed)}{skipped}"


def main() -> None:
    """Run the tests of each row, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("folder", type=Path, help="for the environments and what the tests print")
    runs.add_argument("--only", default="", help="names of rows, comma-separated")
    runs.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    runs.add_argument("--speeds", default=",".join(SPEEDS), help="comma-separated")
    pages = commands.add_parser("page")
    for command in (runs, pages):
        command.add_argument("--log", type=Path, default=LOG)
    given = parser.parse_args()
    if given.command == "page":
        page(given.log)
        return
    only = [name for name in given.only.split(",") if name]
    parts, speeds = given.parts.split(","), given.speeds.split(",")
    names = {environment.name for environment in ENVIRONMENTS}
    unknown = {*only} - names | {*parts} - {*PARTS} | {*speeds} - {*SPEEDS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    given.folder.mkdir(parents=True, exist_ok=True)
    run(given.folder, only, parts, speeds, given.log)


if __name__ == "__main__":
    main()
