"""Does the suite pass with each supported version of torch and of Python?

    python benchmarks/versions.py run FOLDER [--only NAME,NAME] [--parts PART,PART] [--quick]
    python benchmarks/versions.py page

Each row gets an environment of its own in FOLDER, made when it is not there: an interpreter named
`pythonX.Y` on the PATH or of pyenv, torch in exactly the row's version, then this checkout with
what its tests need. In it the tests of each part run. What fails runs a second time, alone: what
passes then is counted as passed and kept as `again`. Each row of the log holds the versions as the
environment's own interpreter states them. `run` goes on where the last call ended; what is named by
`--only` runs again. `page` prints the table of the last row of each environment and part.

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
_VERSIONS = """
import json, platform, torch
print(json.dumps([platform.python_version(), str(torch.__version__)]))
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
    quick: bool  # without the tests marked slow
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


def tried(environment: Environment, part: str, quick: bool, folder: Path) -> Outcome:
    """Run the tests of one part; what goes wrong before them is said in the row."""
    began = time.monotonic()
    stated = {"name": environment.name, "part": part, "quick": quick, "commit": _commit()}
    try:
        python = prepared(environment, folder)
        said = subprocess.run([python, "-c", _VERSIONS], capture_output=True, check=True).stdout
    except (LookupError, subprocess.CalledProcessError) as error:
        wanted = {"python": environment.python, "torch": environment.torch}
        return Outcome(**stated, **wanted, seconds=0.0, error=f"not installed: {error}")
    version, torch = json.loads(said)
    printed = folder / f"{environment.name}-{part}.txt"
    chosen = ["-m", "not slow"] if quick else []
    first = _outcomes(python, ["-n", "auto", "--dist", "loadgroup", *chosen, *PARTS[part]], printed)
    failed, again = [name for name, outcome in first if outcome == "failed"], []
    if failed:
        second = dict(_outcomes(python, failed, printed.with_suffix(".again.txt")))
        again = [name for name in failed if second.get(name) == "passed"]
    counted = Counter(outcome for _, outcome in first)
    passed = counted.pop("passed", 0) + len(again)
    counted.pop("failed", None)
    return Outcome(
        **stated, python=version, torch=torch, seconds=round(time.monotonic() - began),
        passed=passed, failed=[name for name in failed if name not in again], again=again,
        skipped=dict(counted), error=None if first else _last_line(printed),
    )  # fmt: skip


def _outcomes(python: Path, arguments: list[str], printed: Path) -> list[tuple[str, str]]:
    """Return each test's name beside "passed", "failed" or the reason why it was skipped."""
    with TemporaryDirectory() as folder, printed.open("w", encoding="utf-8") as output:
        written = Path(folder, "outcomes.xml")
        subprocess.run(
            [python, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={written}",
             "-o", "junit_family=xunit1", *arguments],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=output,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if not written.exists():
            return []
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


def _last_line(printed: Path) -> str:
    return printed.read_text(encoding="utf-8").strip().splitlines()[-1]


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def run(folder: Path, only: list[str], parts: list[str], quick: bool, log: Path) -> None:
    """Try what the log does not hold yet, or what is named."""
    known = {(row.name, row.part) for row in last_rows(log) if not row.failed and not row.error}
    for environment in ENVIRONMENTS:
        for part in parts:
            if environment.name not in only if only else (environment.name, part) in known:
                continue
            outcome = tried(environment, part, quick, folder)
            append(log, asdict(outcome))
            print(json.dumps(asdict(outcome), indent=1), flush=True)


def last_rows(log: Path) -> list[Outcome]:
    """Return the last row of each environment and part, in the order of the table."""
    rows = {(row["name"], row["part"]): Outcome(**row) for row in rows_of(log)}
    order = [(environment.name, part) for environment in ENVIRONMENTS for part in PARTS]
    return [rows[key] for key in order if key in rows]


def page(log: Path) -> None:
    """Print the table; of a part that was not tried nothing is said."""
    print("| torch | Python | part | passed | failed | skipped |\n|---|---|---|---|---|---|")
    for row in last_rows(log):
        part = f"{row.part}, without the slow tests" if row.quick else row.part
        failed = row.error or "; ".join(row.failed) or "0"
        skipped = sum(row.skipped.values())
        print(f"| {row.torch} | {row.python} | {part} | {row.passed} | {failed} | {skipped} |")


def main() -> None:
    """Run the tests of each row, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("folder", type=Path, help="for the environments and what the tests print")
    runs.add_argument("--only", default="", help="names of rows, comma-separated")
    runs.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    runs.add_argument("--quick", action="store_true", help="without the tests marked slow")
    pages = commands.add_parser("page")
    for command in (runs, pages):
        command.add_argument("--log", type=Path, default=LOG)
    given = parser.parse_args()
    if given.command == "page":
        page(given.log)
        return
    only = [name for name in given.only.split(",") if name]
    unknown = {*only} - {x.name for x in ENVIRONMENTS} | {*given.parts.split(",")} - {*PARTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    given.folder.mkdir(parents=True, exist_ok=True)
    run(given.folder, only, given.parts.split(","), given.quick, given.log)


if __name__ == "__main__":
    main()
