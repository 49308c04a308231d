"""Where do the seconds of a pair go? Interpreter, imports, data and model, warm-up, blocks.

    python benchmarks/pair_seconds.py FOLDER [--python PYTHON] [--only mnist ...] [--pairs 2]

FOLDER holds clones of public repositories, and PYTHON has what they import: `public_scripts.py`. A
script that is not there, or does not run, is named and left out. Each is observed once; then it is
measured beside itself, as a run measures a fix.

Seconds are those that the pair takes on the clock. Both launches start at once, on the same cores;
so what an interpreter and the script's leading imports take was measured alone, before, and "data
and model" is the rest until the later of the two comes to its first step, in pairs that start cold.
"forked" is all of that in pairs of forked launches, to which the other columns belong: "settling"
is what is discarded before each block, and what handing over takes. Launches of programs that
cannot run side by side follow each other, cold: their seconds are added.
"""

from __future__ import annotations

import argparse
import ast
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from public_scripts import SCRIPTS, public_workloads

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import ProgramLaunches, turns_of_trials
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.observe.events import read_channel
from torchdoctor.observe.window import choose_window
from torchdoctor.probe import step_log
from torchdoctor.schema import Pair, Workload
from torchdoctor.schema.errors import TorchdoctorError

BUDGET_S = 150.0
COLD = ("interpreter", "imports", "data and model")
COLUMNS = ("forked", "warm-up", "blocks", "settling", "end")


def leading_imports(script: Path) -> str:
    """Return the imports that the script begins with."""
    lines = []
    for statement in ast.parse(script.read_text()).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            lines.append(ast.unparse(statement))
        elif not isinstance(statement, ast.Expr):
            break
    return "\n".join(lines)


def alone_s(python: str, source: str, folder: Path) -> float:
    """Return the seconds of an interpreter that runs this, the median of three."""
    took_s = []
    for _ in range(3):
        began_s = time.monotonic()
        subprocess.run([python, "-c", source], cwd=folder, check=True, capture_output=True)
        took_s.append(time.monotonic() - began_s)
    return statistics.median(took_s)


def seconds_of(workload: Workload, pairs: int) -> dict[str, float]:
    """Return the seconds of a pair of the script with itself, by what they go to.

    Raises:
        TorchdoctorError: it cannot be measured.
    """
    python, folder = workload.python, Path(workload.cwd)
    assert python is not None and workload.script is not None
    interpreter_s = alone_s(python, "pass", folder)
    imports_s = alone_s(python, leading_imports(Path(workload.script)), folder) - interpreter_s
    cold = _pair_s(workload, pairs, forks=False)
    forked = _pair_s(workload, pairs, forks=True)
    rest_s = cold[0] - interpreter_s - imports_s
    return dict(zip((*COLD, *COLUMNS), (interpreter_s, imports_s, rest_s, *forked), strict=True))


def _pair_s(workload: Workload, pairs: int, forks: bool) -> list[float]:
    """Return seconds of a pair until its first steps, and as `COLUMNS`: the medians of pairs."""
    rows = []
    with tempfile.TemporaryDirectory() as name, Sandbox.choose("auto", Path(name), workload) as box:
        recorder = Recorder(workload, Path(name), box, 0, None, 120.0, forks)
        observed = recorder.observe(None, 0.06 * BUDGET_S, 0.35 * BUDGET_S)
        window = choose_window(observed.steps, BUDGET_S)
        turns = turns_of_trials(observed, window, left_s=BUDGET_S)
        beside = None if isinstance(turns, str) else turns
        launches = ProgramLaunches.of_trials(recorder, observed, window, beside)
        engine = Engine(launches, random.Random(0))
        recorder.image()  # once for all pairs
        for number in range(pairs):
            began_s = time.monotonic()
            pair = engine.pair(replace(UNTOUCHED, name=f"same-{number}"))
            ended_s = time.monotonic()
            if not isinstance(pair, Pair):
                raise TorchdoctorError(f"no pair: {pair}")
            channels = sorted(Path(name).glob("launches/*/channel"))[-2:]
            firsts, begins, ends = zip(*(_marks_s(x) for x in channels), strict=True)
            measured_s = sum(block.window_s for both in pair.blocks for block in both)
            if beside:
                start_s, warm_s = max(firsts) - began_s, min(begins) - max(firsts)
                blocks_s, end_s = max(ends) - min(begins), ended_s - max(ends)
            else:  # one after the other: the seconds of both add up, but for the end of the first
                start_s = firsts[0] - began_s + firsts[1] - ends[0]
                warm_s = sum(begins) - sum(firsts)
                blocks_s, end_s = sum(ends) - sum(begins), ended_s - ends[1]
            rows.append([start_s, warm_s, measured_s, blocks_s - measured_s, end_s])
        recorder.close()
    return np.median(np.array(rows), axis=0).tolist()


def _marks_s(channel: Path) -> tuple[float, float, float]:
    """Return when a launch came to its first step, and when its measurement began and ended."""
    log = max(read_channel(channel)[0].values(), key=len)
    begins = log.at(step_log.BLOCK_BEGIN, step_log.WINDOW_BEGIN)
    steps = log.at(step_log.BOUNDARY)
    return tuple(float(log.t_ns[row]) / 1e9 for row in (steps[0], begins[0], steps[-1]))


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=list(SCRIPTS), choices=list(SCRIPTS))
    parser.add_argument("--pairs", type=int, default=2)
    wanted = parser.parse_args()
    workloads = public_workloads(wanted.clones, wanted.python)
    columns = (*COLD, *COLUMNS)
    print(f"| script | pair | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for name in wanted.only:
        if name not in workloads:
            print(f"| {name} | not there |", flush=True)
            continue
        try:
            seconds = seconds_of(workloads[name], wanted.pairs)
        except (TorchdoctorError, subprocess.CalledProcessError) as error:
            print(f"| {name} | {' '.join(str(error).split())[:200]} |", flush=True)
            continue
        figures = " | ".join(f"{seconds[column]:.1f}" for column in columns)
        pair_s = sum(seconds[column] for column in COLUMNS)
        print(f"| {name} | {pair_s:.1f} s | {figures} |", flush=True)


if __name__ == "__main__":
    main()
