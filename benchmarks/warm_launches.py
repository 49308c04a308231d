"""Is a launch that was forked from a warm image as fast as one of a fresh interpreter?

    python benchmarks/warm_launches.py OUT.jsonl [--pairs 40] [--script train.py] [--python PYTHON]

Pairs of the untouched program with itself, side by side as `run` measures them, in three kinds by
turns: both cold, both warm, a cold one beside a warm one. The table says for each kind how much
faster the second was (for the last kind: the warm one), with the 95 % interval of the mean, the
spread of single pairs, and what a pair took; and whether all launches had the same losses. It needs
a quiet machine. Pairs are appended to OUT, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from calibration import PROGRAM
from row_log import append, rows_of

from torchdoctor.bench.measurement import turns_of_trials
from torchdoctor.bench.pair_times import Estimator
from torchdoctor.bench.record import Recorder
from torchdoctor.bench.turns import abba, neighbours, take_turns
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.observe.window import choose_window
from torchdoctor.schema import Pair
from torchdoctor.trials.compare import interval

KINDS = {"cold, cold": (False, False), "warm, warm": (True, True), "cold, warm": (False, True)}


def measure(script: Path, python: str, pairs: int, out: Path) -> None:
    """Append pairs until each kind has so many."""
    workload = workload_of([script.name], python=python, cwd=str(script.parent))
    chance = random.Random(len(rows_of(out)))
    with (
        tempfile.TemporaryDirectory() as name,
        Sandbox.choose("overlay", Path(name), workload) as box,
    ):
        recorder = Recorder(workload, Path(name), box, 0, None, 120.0, forks=True)
        observed = recorder.observe(None, 8.0, 30.0)
        turns = turns_of_trials(observed, choose_window(observed.steps, 150.0), left_s=150.0)
        if isinstance(turns, str) or recorder.image() is None:
            sys.exit(f"No pairs: {turns}" if isinstance(turns, str) else "It can have no image.")
        boundary, how = observed.steps.boundary, Estimator(by="median", trimmed=0.25)
        spec = replace(UNTOUCHED, plan=turns.plan, boundary=boundary)
        for number in range(len(KINDS) * pairs):
            kind = list(KINDS)[number % len(KINDS)]
            if number < len(rows_of(out)):
                continue
            specs = [replace(spec, forked=warm) for warm in KINDS[kind]]
            starts = [partial(recorder.time, each, 300.0) for each in specs]
            order, began_s = chance.sample([0, 1], 2), time.monotonic()
            shuffled = starts[order[0]], starts[order[1]]
            most_turn_s = turns.pair_s / (2 * turns.blocks)
            timings = take_turns(shuffled, abba(turns.blocks, chance), most_turn_s, began_s + 600.0)
            first, second = timings[order[0]], timings[order[1]]
            pair = Pair(
                launches=(first.counted, second.counted),
                blocks=neighbours(first, second),
                side_by_side=True,
            )
            row = {"kind": kind, "took_s": time.monotonic() - began_s}
            row |= {"log": how.difference(pair), "losses": [x.losses[:20] for x in timings]}
            append(out, row)
        recorder.close()


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--python", default=sys.executable)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = wanted.script or Path(folder, "train.py")
        if wanted.script is None:
            script.write_text(PROGRAM.replace("float(sys.argv[1])", "0.0"), encoding="utf-8")
        python = shutil.which(wanted.python) or wanted.python
        measure(script.resolve(), python, wanted.pairs, wanted.out)
    rows = rows_of(wanted.out)
    print("| kind | pairs | second faster by | spread of a pair | seconds of a pair |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        logs = [row["log"] for row in rows if row["kind"] == kind and row["log"] is not None]
        mean = interval(logs)
        spread = statistics.stdev(logs) if len(logs) > 1 else math.nan
        took_s = statistics.median(row["took_s"] for row in rows if row["kind"] == kind)
        ratio = f"{mean.estimate:.4f}x ({mean.low:.4f}-{mean.high:.4f})" if mean else "-"
        print(f"| {kind} | {len(logs)} | {ratio} | {100 * spread:.1f} % | {took_s:.1f} |")
    losses = {str(each) for row in rows for each in row["losses"]}
    print(f"\nLosses of the first 20 steps: {len(losses)} kinds in {2 * len(rows)} launches.")


if __name__ == "__main__":
    main()
