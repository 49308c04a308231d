"""Do the 95 % intervals hold the truth, how often is a verdict false, and what is seen?

    python benchmarks/calibration.py --same 60 --planted 60 --log calibration.jsonl
    python benchmarks/calibration.py --how side-by-side --log calibration.jsonl

One trial compares a small training program with itself (A/A), or with itself made 3, 10 or 30 %
slower by busy-waiting that share of each step, on four pairs: side by side as `run` and `gate`
measure, or of launches in turns. A trial takes 30 to 60 s. Each is appended to the log, so a run
that was stopped goes on; the table is of everything in the log (`--same 0 --planted 0`: only the
table).

The share is of the step's processor time. Of its wall time, as in rows of the log that do not say
`planted_by`, it is too much where others want the core: who waits until an instant and loses the
core just before it wakes up late (3 % became 7 %, 30 % became 35 % at a load of 3).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from row_log import append, rows_of

from torchdoctor.bench.block_plan import TurnBlocks
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import Pace, ProgramLaunches
from torchdoctor.bench.pair_times import Estimator
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.observe.window import Window
from torchdoctor.schema import Boundary, Interval, Pair, Workload
from torchdoctor.trials.claims import claim_interval, sigma_prior_log
from torchdoctor.trials.compare import SMALLEST_DELTA, interval, p_value

PAIRS = 4
EFFECTS = (0.03, 0.10, 0.30)
HOW = ("launches", "side-by-side")
BOUNDARY = Boundary(kind="optimizer")
WINDOW = Window(warmup_steps=15, measure_steps=100, max_window_s=3.0)
TURNS = TurnBlocks(
    warmup_steps=15, block_steps=40, discard_steps=8, blocks=6, step_s=0.006, setup_s=3.2
)
TIMEOUT_S = 120.0
PLANTED_BY = "processor time"
PROGRAM = """
import sys, time, torch
slowdown = float(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    began = time.thread_time()
    loss = model(torch.randn(192, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    until = time.thread_time() + slowdown * (time.thread_time() - began)
    while time.thread_time() < until:
        pass
"""


def engine(how: str, recorder: Recorder, seed: int) -> Engine:
    """Return what measures pairs of the program."""
    pace = Pace(start_s=2.0, step_s=0.006, boundary=BOUNDARY)
    turns = TURNS if how == "side-by-side" else None
    launches = ProgramLaunches(recorder=recorder, pace=pace, window=WINDOW, turns=turns)
    return Engine(launches, random.Random(seed))


def program(folder: Path, slowdown: float) -> Workload:
    """Return the command of the program, slower by that share."""
    command = [sys.executable, str(folder / "train.py"), str(slowdown)]
    return Workload(command=command, cwd=str(folder), script=str(folder / "train.py"))


def trial(how: str, slowdown: float, seed: int) -> dict[str, Any]:
    """One comparison: its interval, its verdict, and what it cost."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="calibration-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        with Sandbox.choose("auto", folder) as sandbox:
            workload, slower = (program(folder, share) for share in (0.0, slowdown))
            recorder = Recorder(workload, folder / "run", sandbox, 0, None, TIMEOUT_S)
            pairs, candidate = engine(how, recorder, seed), LaunchSpec(name="new", workload=slower)
            found = [pairs.pair(candidate, most_s=60.0) for _ in range(PAIRS)]
    how_long = Estimator(per_step=True)
    differences = [how_long.difference(pair) for pair in found if isinstance(pair, Pair)]
    measured = [x for x in differences if x is not None]
    bounds = interval(measured)
    return {
        "how": how,
        "slowdown": slowdown,
        "planted_by": PLANTED_BY,
        "differences": measured,
        "low": bounds.low if bounds else None,
        "high": bounds.high if bounds else None,
        "p": p_value(measured),
        "verdict": _verdict(bounds),
        "seconds": round(time.monotonic() - began, 1),
        "load": os.getloadavg()[0],
    }


def _verdict(bounds: Interval | None) -> str:
    """Return "faster", "slower", "same" (within 2 %) or "unclear" by the 95 % interval."""
    if bounds is None:
        return "unclear"
    if bounds.low > 1 or bounds.high < 1:
        return "faster" if bounds.low > 1 else "slower"
    delta = 1 + SMALLEST_DELTA
    return "same" if bounds.low >= 1 / delta and bounds.high <= delta else "unclear"


def _planted_by(one: dict[str, Any]) -> str:
    """ "-" where nothing was planted."""
    return one.get("planted_by", "wall time") if one["slowdown"] else "-"


def table(trials: list[dict[str, Any]]) -> str:
    """Coverage, false verdicts and power of what the log holds."""
    lines = [
        "| pairs | slow-down | of its | trials | interval holds it | half width | slower | faster "
        "| same | unclear |",
        "| --- " * 10 + "|",
    ]
    for how in HOW:
        kinds = {(x["slowdown"], _planted_by(x)) for x in trials if x["how"] == how}
        for slowdown, of in sorted(kinds):
            kind = (how, slowdown, of)
            some = [x for x in trials if (x["how"], x["slowdown"], _planted_by(x)) == kind]
            whole = [x for x in some if x["low"] is not None]
            truth = 1.0 / (1.0 + slowdown)
            held = sum(x["low"] <= truth <= x["high"] for x in whole)
            halves = sorted(math.sqrt(x["high"] / x["low"]) - 1.0 for x in whole)
            half = f"{halves[len(halves) // 2]:.1%}" if halves else "-"
            share = f"{held} of {len(whole)}"
            share += f" ({held / len(whole):.0%})" if whole else ""
            verdicts = [x["verdict"] for x in some]
            counts = [verdicts.count(x) for x in ("slower", "faster", "same", "unclear")]
            row = [how, f"{slowdown:.0%}", of, len(some), share, half, *counts]
            lines.append(f"| {' | '.join(map(str, row))} |")
    same = [x for x in trials if x["slowdown"] == 0.0]
    false = sum(x["verdict"] in ("slower", "faster") for x in same)
    false += sum(x["verdict"] == "faster" for x in trials if x["slowdown"] > 0.0)
    seen = [x for x in trials if x["slowdown"] > 0.0]
    caught = sum(x["verdict"] == "slower" for x in seen)
    spent = sum(x["seconds"] for x in trials) / max(len(trials), 1)
    return "\n".join(
        [
            *lines,
            "",
            f"False verdicts (a difference where there is none, or the wrong way): {false} of "
            f"{len(trials)}. Planted slow-downs seen: {caught} of {len(seen)}. "
            f"{spent:.0f} s a trial.",
            *(claims(trials, how, pairs) for how in HOW for pairs in (1, 2, PAIRS)),
        ]
    )


def claims(trials: list[dict[str, Any]], how: str, pairs: int) -> str:
    """How often the interval that a search claims by its first pairs alone holds the truth."""
    some = [x for x in trials if x["how"] == how and len(x["differences"]) >= pairs]
    prior = sigma_prior_log(how == "side-by-side")
    intervals = [claim_interval(x["differences"][:pairs], prior) for x in some]
    truths = [-math.log1p(x["slowdown"]) for x in some]
    held = sum(x.low <= truth <= x.high for x, truth in zip(intervals, truths, strict=True))
    faster = sum(x.low > 0 for x in intervals)
    return f"Claims by {pairs} pairs, {how}: {held} of {len(some)} hold; {faster} called faster."


def main() -> None:
    """Run what the log does not hold yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--same", type=int, default=60)
    parser.add_argument("--planted", type=int, default=60, help="Of all three sizes together.")
    parser.add_argument("--how", choices=HOW, default="launches")
    parser.add_argument("--log", type=Path, default=Path("calibration.jsonl"))
    arguments = parser.parse_args()
    trials = rows_of(arguments.log)
    wanted = [0.0] * arguments.same + [EFFECTS[i % 3] for i in range(arguments.planted)]
    for one in trials:
        counts = _planted_by(one) in ("-", PLANTED_BY)
        if counts and one["how"] == arguments.how and one["slowdown"] in wanted:
            wanted.remove(one["slowdown"])
    random.Random(len(trials)).shuffle(wanted)
    for slowdown in wanted:
        trials.append(trial(arguments.how, slowdown, len(trials)))
        append(arguments.log, trials[-1])
        print(trials[-1], flush=True)
    print(table(trials))


if __name__ == "__main__":
    main()
