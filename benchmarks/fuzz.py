"""Damages traces, reports, recordings and logs by their structure, and has the commands read them.

    python benchmarks/fuzz.py --traces 10000 --reports 3000
    python benchmarks/fuzz.py --seed 0 --only trace:1234

Each case is made of its kind, the seed and its number alone, but that recorded traces are among the
files only where they are (TORCHDOCTOR_TRACES). A defect is a traceback, exit code 70 or another
that is not documented, more than one sentence for an error, a warning of Python or NumPy, a report
that `diagnose` wrote and `report` refuses, more than 30 s, more than 2 GB, or a process that died.
`--keep` leaves the files of the cases in a folder.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from unittest import mock

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import commands
import fuzz_seeds as seeds
from fuzz_mutations import Odd, mutated_bytes, mutated_document, packed

LONGEST_S, LARGEST_BYTES = 30, 2 << 30
_PIECE = 250  # cases that one process reads
_DOCUMENTED = {0, 2, 4, 6}
_FORMATS = ("terminal", "html", "markdown", "json", "sarif")
_NAMES = (
    *("trace.json", "trace.json", "trace.json.gz", "x.pt.trace.json", "rank1.json", "t.json.bz2"),
    *("rank 99999999999999999999.json", "t.json.zst", "\u00e9\u4e2d [x].json", "no_suffix"),
)


class TooLong(BaseException):
    """A command ran for longer than `LONGEST_S`."""


@dataclass
class Case:
    """One damaged input and the commands that read it, in its own folder."""

    kind: str  # "trace", "report", "run" or "watch"
    of: str  # the valid file that was damaged
    commands: list[list[str]] = field(default_factory=list)
    stdin: bytes = b""


@dataclass(frozen=True)
class Defect:
    """What a command did that it must not, and how to see it again."""

    case: str
    of: str
    command: list[str]
    problem: str


def made(kind: str, number: int, seed: int, folder: Path, scratch: Path) -> Case:
    """Write the files of a case into a folder; return what reads them."""
    rng = random.Random(f"{kind} {seed} {number}")
    if kind == "trace":
        return _trace_case(rng, folder)
    kind = rng.choice(("report", "report", "run", "watch"))
    if kind == "report":
        return _report_case(rng, folder)
    shutil.copytree(seeds.kept(kind, scratch), folder, dirs_exist_ok=True)
    damage = {"run": _damage_run, "watch": _damage_watch}[kind]
    damaged = [damage(rng, folder) for _ in range(rng.randint(1, 3))]
    case = Case(kind, f"{kind} with {', '.join(damaged)}")
    case.commands = [["report", ".", "--format", x] for x in rng.sample(_FORMATS, 2)]
    case.commands.append(["report", ".", "--details"])
    if kind == "watch":
        case.commands.append(["top", "."])
    else:
        case.commands.append(rng.choice((["diagnose", "."], ["compare", ".", "."])))
        case.commands.append(["patch", ".", "--fixes", "loader-workers,pin-memory"])
    return case


def _trace_case(rng: random.Random, folder: Path) -> Case:
    name = rng.choice(list(seeds.traces()))
    odd = Odd(rng)
    case = Case("trace", name)
    data = json.dumps(seeds.traces()[name]()).encode()
    (folder / "intact.json").write_bytes(data)
    if rng.random() < 0.8:
        data = odd.written(mutated_document(json.loads(data), odd))
    if rng.random() < 0.3:
        data = mutated_bytes(data, rng)
    if rng.random() < 0.25:
        data = packed(data, rng)
    file = rng.choice(_NAMES)
    (folder / file).write_bytes(data)
    case.commands = [["diagnose", file, "--output", "out.json"], ["report", "out.json"]]
    more = rng.choice(
        (
            ["diagnose", file, "--details", "--output", "page.html"],
            ["diagnose", file, "--annotate", "copy.json"],
            ["diagnose", file, "intact.json"],
            ["diagnose", "."],
            ["diagnose", "-"],
            ["compare", file, "intact.json"],
            ["compare", "intact.json", file, "--format", rng.choice(_FORMATS[:4])],
            ["report", file],
            ["gate", "--baseline", file, "--quiet", "nothing.py"],
        )
    )
    if more[0] == "gate":
        (folder / "nothing.py").write_bytes(b"")
    if more[-1] == "-":
        case.stdin = data
    case.commands.append(more)
    if more[-2] == "--annotate":
        case.commands.append(["diagnose", "copy.json"])
    return case


def _report_case(rng: random.Random, folder: Path) -> Case:
    name = rng.choice(seeds.REPORTS)
    odd = Odd(rng)
    document = seeds.report(name)
    (folder / "intact.json").write_text(json.dumps(document))
    (folder / "nothing.py").write_bytes(b"")
    data = odd.written(mutated_document(document, odd, 3))
    if rng.random() < 0.1:
        data = mutated_bytes(data, rng)
    file = "report.json"
    (folder / file).write_bytes(data)
    case = Case("report", name)
    case.commands = [["report", file, "--format", x] for x in rng.sample(_FORMATS, 2)]
    case.commands += [["report", file, "--details"], ["patch", file]]
    case.commands.append(
        rng.choice(
            (
                ["compare", file, "intact.json", "--format", rng.choice(_FORMATS[:4])],
                ["compare", "intact.json", file, "--output", "compared.json"],
                ["compare", file, file, "--output", "page.html"],
                ["diagnose", file],
                ["gate", "--baseline", file, "--quiet", "nothing.py"],
                ["patch", file, "--fixes", "loader-workers"],
                ["report", "--list"],
            )
        )
    )
    return case


def _damage_run(rng: random.Random, folder: Path) -> str:
    files = sorted(x for x in folder.rglob("*") if x.is_file())
    path = rng.choice([folder / "report.json", folder / "recording.json", rng.choice(files)])
    if path.is_file():
        _damage(rng, path)
    return str(path.relative_to(folder))


def _damage_watch(rng: random.Random, folder: Path) -> str:
    files = sorted(x for x in (folder / "watch").rglob("*") if x.is_file())
    path = rng.choice(files)
    if path.suffix in (".steps", ".sensors") and rng.random() < 0.7:
        _damage_rows(rng, path)
    else:
        _damage(rng, path)
    return path.name


def _damage(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        path.write_bytes(mutated_bytes(data, rng))
        return
    odd = Odd(rng)
    data = odd.written(mutated_document(document, odd, 3)) + b"\n"
    path.write_bytes(mutated_bytes(data, rng) if rng.random() < 0.1 else data)


def _damage_rows(rng: random.Random, path: Path) -> None:
    """Put figures that nobody measured into a table, or another description of its columns."""
    data = path.read_bytes()
    size = int.from_bytes(data[8:12], "little")
    try:
        described = json.loads(data[12 : 12 + size])
    except (ValueError, RecursionError):
        described = None
    if not isinstance(described, dict) or rng.random() < 0.2:
        odd = Odd(rng)
        text = odd.written(mutated_document(described, odd, 2) if described else {})
        head = data[:8] + len(text).to_bytes(4, "little") + text
        path.write_bytes(head + bytes(-len(head) % 64) + data[-(-(12 + size) // 64) * 64 :])
        return
    begin = -(-(12 + size) // 64) * 64
    try:
        kinds = np.dtype([(name, kind) for name, kind in described["columns"]])
        rows = np.frombuffer(data[begin:], kinds).copy()
    except (KeyError, TypeError, ValueError):
        return
    for _ in range(rng.randint(1, 3) if len(rows) else 0):
        column = rng.choice(kinds.names)
        first = rng.randrange(len(rows))
        some = slice(first, first + rng.choice((1, 20, len(rows))))
        odd_values = (0, -1, 1, 3, 65535, 2**31, 2**62, 1e-30, 1e30, np.nan, np.inf, -np.inf)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = np.array(rng.choice(odd_values)).astype(kinds[column])
            rows[column][some] = value
    path.write_bytes(data[:begin] + rows.tobytes())


def defects_of(case: Case, name: str, folder: Path) -> Iterator[Defect]:
    """Run the commands of a case; yield what is wrong with them."""
    diagnosed = True
    for words in case.commands:
        if words[-1] in ("out.json", "copy.json") and words[0] != "diagnose" and not diagnosed:
            continue
        if (
            words[-1] == "copy.json"
            and words[-2] == "diagnose"
            and not (folder / words[-1]).exists()
        ):
            continue
        problem, code = _run(words, case, folder)
        if "out.json" in words and words[0] == "diagnose":
            diagnosed = code == 0
        elif words == ["report", "out.json"] and code and not problem:
            problem = f"report refuses what diagnose wrote (exit code {code})"
        if problem:
            yield Defect(case=name, of=case.of, command=words, problem=problem)


def _run(words: list[str], case: Case, folder: Path) -> tuple[str, int]:
    """Return what is wrong with a command, or "", and its exit code."""
    now_s = seeds.START_UNIX_NS / 1e9 + seeds.WATCHED_S
    with (
        mock.patch.object(tempfile, "tempdir", str(folder)),
        mock.patch.object(time, "time", lambda: now_s),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", RuntimeWarning)
        signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        try:
            result = commands.torchdoctor(*words, cwd=folder, text=False, input=case.stdin)
        except TooLong:
            return f"it ran for more than {LONGEST_S} s", -1
        except Exception as error:
            return f"{type(error).__name__}: {error}", -1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    errors = result.stderr.decode(errors="replace")
    output = errors + result.stdout.decode(errors="replace")
    return _problem(result.returncode, errors, output, folder), result.returncode


def _problem(code: int, errors: str, output: str, folder: Path) -> str:
    if code == 70:
        files = sorted(folder.glob("torchdoctor-defect-*.txt"))
        return "exit code 70: " + (
            _told(files[-1].read_text(errors="replace")) if files else errors
        )
    if code not in _DOCUMENTED:
        return f"exit code {code}: {errors[-300:]}"
    if "Traceback (most recent call last)" in output:
        return f"a traceback: {errors[-300:]}"
    if code and (not errors.startswith("torchdoctor: ") or len(errors.strip().splitlines()) > 1):
        return f"exit code {code} without one sentence: {errors[:300]!r}"
    if re.search(r"Warning: ", errors):
        return f"a warning: {errors[:300]}"
    return ""


def _told(traceback: str) -> str:
    """Return the innermost place of ours in a traceback, and the exception."""
    places = re.findall(r'File ".*/(torchdoctor/[^"]+)", line (\d+), in (\w+)', traceback)
    place = " ".join(places[-1]) if places else "?"
    return f"{place}: {traceback.strip().splitlines()[-1][:200]}"


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def piece(kind: str, first: int, last: int, seed: int, keep: Path | None) -> None:
    """Read the cases of a range in this process, and print a line of JSON for each defect."""
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))
    with tempfile.TemporaryDirectory(prefix="torchdoctor-fuzz-") as text:
        scratch = Path(text)
        for number in range(first, last):
            name = f"{kind}:{number}"
            print(json.dumps({"begun": name}), flush=True)
            folder = (keep or scratch) / name.replace(":", "-")
            folder.mkdir(parents=True)
            case = made(kind, number, seed, folder, scratch)
            for defect in defects_of(case, name, folder):
                print(json.dumps(defect.__dict__), flush=True)
            if keep is None:
                shutil.rmtree(folder)


def _pieces(kind: str, first: int, last: int, options: argparse.Namespace) -> list[Defect]:
    """Read a range in processes of their own; one that dies goes on after the case it died of."""
    defects: list[Defect] = []
    while first < last:
        words = [sys.executable, __file__, "--piece", f"{kind}:{first}:{last}"]
        words += ["--seed", str(options.seed)]
        words += ["--keep", str(options.keep)] if options.keep else []
        done = subprocess.run(words, capture_output=True, check=False)
        begun = f"{kind}:{first}"
        for line in map(json.loads, done.stdout.decode().splitlines()):
            if "begun" in line:
                begun = line["begun"]
            else:
                defects.append(Defect(**line))
        if done.returncode == 0:
            break
        ended = f"the process ended with {done.returncode}: {done.stderr[-600:].decode()}"
        defects.append(Defect(case=begun, of="", command=[], problem=ended))
        first = int(begun.rpartition(":")[2]) + 1
    return defects


def main() -> None:
    """Read all cases that are asked for; exit with 1 where there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=0)
    parser.add_argument("--reports", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="CASE", help="trace:NUMBER or report:NUMBER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", type=Path, help="leave the files of the cases here")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.piece:
        kind, first, last = options.piece.split(":")
        piece(kind, int(first), int(last), options.seed, options.keep)
        return
    ranges = [("trace", options.traces), ("report", options.reports)]
    todo = [
        (kind, first, min(first + _PIECE, options.first + count))
        for kind, count in ranges
        for first in range(options.first, options.first + count, _PIECE)
    ]
    if options.only:
        kind, _, number = options.only.partition(":")
        todo = [(kind, int(number), int(number) + 1)]
    began_s, problems = time.monotonic(), Counter[str]()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for defects in pool.map(lambda range: _pieces(*range, options), todo):
            for defect in defects:
                problems[defect.problem[:120]] += 1
                if problems[defect.problem[:120]] <= 3:
                    told = f"{defect.case} (--seed {options.seed}), of {defect.of}: "
                    print(f"{told}{' '.join(defect.command)}\n    {defect.problem}", flush=True)
    cases = sum(last - first for _, first, last in todo)
    print(f"{cases} cases, {problems.total()} defects, {time.monotonic() - began_s:.0f} s")
    for problem, count in problems.most_common():
        print(f"{count:6d}  {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
