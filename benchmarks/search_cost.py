"""What it costs to know a fix's speed-up: fresh launches, or blocks within one launch.

    python benchmarks/search_cost.py [--start-up 5] [--width 0.03] [--rounds 8] [--blocks 40]
    python benchmarks/search_cost.py --loader waits [--width 0.1]

In one run, on one program with a start-up of so many seconds: the same fixes by pairs of launches
that follow each other and by blocks of one launch. For each way the wall
time until every fix's 95 % interval is at most `--width` wide to either side; where one of them
does not come so far in its rounds, until both are as narrow as that one got. And whether the two
intervals of each fix overlap. The two ways take turns (`--repeat`), so that a machine that changes
meanwhile changes for both. With `--loader` the program waits for its loader, whose samples take
2 ms each of sleep ("waits") or of a processor ("computes"), and the fixes are numbers of workers,
which in blocks come from a second loader. It needs a quiet machine, and prints one line of JSON at
its end.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.bench.pair_times import Estimator, switched_differences
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window, choose_window
from torchdoctor.schema import Environment, FixSet, Pair, Recording
from torchdoctor.schema.figures import fix_with_settings
from torchdoctor.trials import compare
from torchdoctor.trials.arm_specs import ArmSpecs

PROGRAM = """
import time, torch
time.sleep(START_UP)  # importing, reading a checkpoint, building a tokenizer
torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32)
while True:
    for x, y in loader:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""
LOADER = """
import time, torch
time.sleep(START_UP)  # importing, reading a checkpoint, building a tokenizer
torch.manual_seed(0)
torch.set_num_threads(1)
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        end = time.thread_time() + 0.002
        if WAITS: time.sleep(0.002)
        else:
            while time.thread_time() < end: pass
        return torch.full((64,), float(index % 10)), index % 10
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = torch.utils.data.DataLoader(Samples(), batch_size=16, shuffle=True)
while True:
    for x, y in loader:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
COMPUTING: list[tuple[str, dict[str, Any]]] = [
    ("channels-last", {}),
    ("cpu-threads", {"num_threads": 1}),
    ("set-to-none", {}),
]
WORKERS: list[tuple[str, dict[str, Any]]] = [
    ("loader-workers", {"num_workers": number}) for number in (1, 2, 4)
]


@dataclass
class Known:
    """A fix's speed-up by one way."""

    speedup: float
    low: float
    high: float
    pairs: int


@dataclass
class Cost:
    """One way: what it found, after how many seconds every interval was narrow enough."""

    found: dict[str, Known]
    seconds: float


@dataclass
class Progress:
    """One way's rounds, and the wall seconds from its start to the end of each.

    differences: of each fix, one for each round.
    """

    differences: dict[str, list[float]]
    seconds: list[float] = field(default_factory=list)

    @property
    def fixes(self) -> list[str]:
        """Return the fixes that are compared."""
        return list(self.differences)

    def logs(self, rounds: int, fix: str) -> list[float]:
        """Return differences of a fix in so many rounds."""
        return self.differences[fix][:rounds]

    def width(self, rounds: int) -> float:
        """Half the widest 95 % interval (in logarithms) of any fix after so many rounds."""
        return max(compare.half_width(self.logs(rounds, fix)) for fix in self.fixes)

    def narrowest(self) -> float:
        """The least that `width` came to."""
        return min(self.width(n) for n in range(2, len(self.seconds) + 1))

    def cost(self, width: float) -> Cost:
        """What was known as soon as every interval was so narrow, which it must have become."""
        enough = next(n for n in range(2, len(self.seconds) + 1) if self.width(n) <= width)
        found = {}
        for fix in self.fixes:
            logs = self.logs(enough, fix)
            one = compare.interval(logs)
            assert one is not None, f"{fix} was measured less than twice"
            found[fix] = Known(one.estimate, one.low, one.high, len(logs))
        return Cost(found, self.seconds[enough - 1])


class Comparison:
    """Both ways on one program.

    Args:
        start_up_s: seconds before the program begins to train.
        width: half a 95 % interval, as a ratio, that is asked for.
        folder: for the program and its launches.
        loader: "waits" or "computes": numbers of workers of a program that waits for its loader.
    """

    def __init__(self, start_up_s: float, width: float, folder: Path, loader: str | None) -> None:
        script = folder / "train.py"
        program = LOADER.replace("WAITS", str(loader == "waits")) if loader else PROGRAM
        script.write_text(program.replace("START_UP", str(start_up_s)))
        workload = workload_of([str(script)], cwd=str(folder))
        self.width = math.log1p(width)
        fixes = WORKERS if loader else COMPUTING
        # Workers that finish together hand out their batches in bursts, whose median is no figure.
        self.how = Estimator(by="mean" if loader else "median")
        self.sandbox = Sandbox.choose("auto", folder, workload)
        self.recorder = Recorder(workload, folder / "run", self.sandbox, 0, None, 600.0)
        self.seen: Observation = self.recorder.observe(None, 4.0, 15.0)
        self.loaders = self.seen.processes[0].loaders
        self.window: Window = choose_window(self.seen.steps, None, self.loaders)
        recording = Recording(
            workload=workload,
            environment=Environment(),
            steps=self.seen.steps,
            processes=self.seen.processes,
        )
        specs = ArmSpecs(catalogue.fixes(), recording)
        self.arms = {fix_with_settings(*fix): specs.of(FixSet([fix])) for fix in fixes}

    def by_launches(self, most_rounds: int, seed: int) -> Progress:
        """Measure pairs of fresh launches until all are known well enough."""
        launches = ProgramLaunches.of_trials(self.recorder, self.seen, self.window)
        engine = Engine(launches, random.Random(seed))
        began = time.monotonic()
        done = Progress({name: [] for name in self.arms})
        for _ in range(most_rounds):
            for name, arm in self.arms.items():
                pair = engine.pair(arm)
                difference = self.how.difference(pair) if isinstance(pair, Pair) else None
                assert difference is not None, f"{name}: {pair}"
                done.differences[name].append(difference)
            done.seconds.append(time.monotonic() - began)
            if len(done.seconds) > 1 and done.width(len(done.seconds)) <= self.width:
                break
        return done

    def by_blocks(self, rounds: int, seed: int) -> Progress:
        """Measure one launch of so many rounds."""
        launches = ProgramLaunches.of_trials(
            self.recorder, self.seen, self.window, loaders=self.loaders
        )
        engine, arms = Engine(launches, random.Random(seed)), list(self.arms.values())
        assert all(map(engine.can_switch, arms)), "the benchmark's own program can be switched"
        switched = engine.switch(arms, rounds)
        assert switched.blocks, switched.reason
        # From the launch's start to the end of each round: what follows the last block that was
        # needed would not have been run.
        start_s = switched.blocks[-1].ended_s - switched.wall_s
        ended = {block.round: block.ended_s - start_s for block in switched.blocks}
        logs = {
            name: switched_differences(switched.blocks, number, self.how)
            for number, name in enumerate(self.arms, 1)
        }
        return Progress(logs, list(ended.values())[: min(map(len, logs.values()))])

    def close(self) -> None:
        """Remove what only launches need."""
        self.recorder.close()
        self.sandbox.close()


def _show(name: str, cost: Cost) -> None:
    print(f"{name}: {cost.seconds:.1f} s", flush=True)
    for fix, one in cost.found.items():
        print(f"  {fix:<30} {one.speedup:.3f}x [{one.low:.3f}, {one.high:.3f}] {one.pairs} pairs")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--start-up", type=float, default=5.0, help="seconds of the program's start"
    )
    parser.add_argument("--width", type=float, default=0.03, help="half interval asked for")
    parser.add_argument("--rounds", type=int, default=8, help="of launches, at most")
    parser.add_argument("--blocks", type=int, default=40, help="rounds of blocks in one launch")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loader", choices=["waits", "computes"], help="numbers of workers")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        both = Comparison(options.start_up, options.width, Path(name), options.loader)
        ways: list[tuple[str, Callable[[int], Progress]]] = [
            ("launches", lambda seed: both.by_launches(options.rounds, seed)),
            ("blocks", lambda seed: both.by_blocks(options.blocks, seed)),
        ]
        try:
            for number in range(options.repeat):
                turns = ways if number % 2 == 0 else ways[::-1]
                measured = {way: measure(options.seed + number) for way, measure in turns}
                width = max(both.width, *(one.narrowest() for one in measured.values()))
                row = {way: one.cost(width) for way, one in measured.items()}
                print(f"to intervals of at most {math.expm1(width):+.1%}:")
                for way, cost in row.items():
                    _show(way, cost)
                pairs = [
                    (row["launches"].found[fix], row["blocks"].found[fix]) for fix in both.arms
                ]
                agree = [a.low <= b.high and b.low <= a.high for a, b in pairs]
                ratio = row["launches"].seconds / row["blocks"].seconds
                print(f"blocks take {ratio:.1f} times less; {sum(agree)} of {len(agree)} agree\n")
                costs = {way: asdict(cost) for way, cost in row.items()}
                rows.append({**costs, "width": math.expm1(width), "agree": sum(agree)})
        finally:
            both.close()
    asked = {"start_up_s": options.start_up, "width": options.width, "loader": options.loader}
    print(json.dumps({**asked, "runs": rows}))


if __name__ == "__main__":
    main()
