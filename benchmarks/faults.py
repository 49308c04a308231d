"""The fault matrix: faults planted in real runs, what is promised, and what happens.

    python benchmarks/faults.py run [--only NAME] [--log FILE]
    python benchmarks/faults.py page [--log FILE]

Each fault gets a folder of its own with a small training, and one or more torchdoctor processes.
After it the user's files have to be what they were, no process, scratch folder, mount or shared
memory may be left, no traceback of ours may be shown, and what is said has to be what is promised.
`run` adds a JSON line for each fault and goes on where the last call ended; `page` writes
docs/decisions/faults.md. Faults that need root, or a tool that is missing, are said to be skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_cases import FAULTS, Case, Skipped

ROOT = Path(__file__).parent.parent
LOG = Path(__file__).parent / "logs" / "faults.jsonl"
PAGE = ROOT / "docs" / "decisions" / "faults.md"
HEAD = """\
# What happens when something breaks?

**Choice.** A fault costs a measurement, never the user's files, other processes or the machine.
Each row is planted in a real run by `benchmarks/faults.py run`, which checks beside the promise
that the user's files are unchanged, that no process, mount or shared memory is left, and that
no traceback of ours is shown; `page` writes this table. The last column names the test of the suite
that plants the same; "by hand" are those that take the suite too long.

| planted | promised | happens | test |
|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault as it was tried."""

    name: str
    holds: bool
    happens: str  # in a few words, by what was observed
    seconds: float


def attempt(name: str) -> Row:
    """Plant one fault and check what came of it."""
    fault = FAULTS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchdoctor-fault-", dir="/var/tmp") as folder:
        case = Case(Path(folder))
        try:
            happens = fault.plant(case)
            wrong = case.left_behind()
        except Skipped as reason:
            return Row(name=name, holds=True, happens=f"not planted: {reason}", seconds=0.0)
        except AssertionError as error:
            happens, wrong = "", [str(error).splitlines()[0] if str(error) else "not as promised"]
        finally:
            case.close()
    told = "; ".join(filter(None, [happens, *wrong]))
    return Row(name=name, holds=not wrong, happens=told, seconds=time.monotonic() - began)


def run(log: Path, only: str | None) -> None:
    """Try the faults that the log does not hold yet, or the one that is named."""
    known = {} if only else _read(log)
    for name in [only] if only else FAULTS:
        if name in known and known[name].holds:
            continue
        row = attempt(name)
        print(
            f"{'ok  ' if row.holds else 'FAIL'} {row.seconds:5.1f} s  {name}: {row.happens}",
            flush=True,
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def _read(log: Path) -> dict[str, Row]:
    if not log.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]
    return {row.name: row for row in rows}


def page(log: Path) -> None:
    """Write the table; a fault that was not tried, or did not hold, is said to be so."""
    rows = _read(log)
    lines = []
    for name, fault in FAULTS.items():
        row = rows.get(name)
        happens = "not tried" if row is None else row.happens
        if row is not None and not row.holds:
            happens = f"NOT AS PROMISED: {happens}"
        lines.append(f"| {name} | {fault.promised} | {happens} | {fault.test} |\n")
    PAGE.write_text(HEAD + "".join(lines), encoding="utf-8")


def main() -> None:
    """Run faults, or write their page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--only", choices=list(FAULTS))
    parser.add_argument("--log", type=Path, default=LOG)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A shell in the background lets its children ignore them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if given.command == "run":
        run(given.log, given.only)
    else:
        page(given.log)


if __name__ == "__main__":
    main()
