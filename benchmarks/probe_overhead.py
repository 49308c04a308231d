"""What the probe costs an iteration: switched on and off in blocks of one and the same loop.

Two launches differ by more than the probe costs, so both sides are measured within one process:
blocks of 100 iterations in ABBA order, all hooks in place, `session.on` True or False. A block's
figure is the median step; pairs of neighbouring blocks give the differences, a launch of the whole
script its median pair (a stall hits single blocks), and the t interval is over launches. Switched
off, a hook still looks at one attribute; that part (under a microsecond an iteration) is not in the
difference.

    python benchmarks/probe_overhead.py [--launches 6] [--blocks 40] [--step-ms 0 5] [--logs timed]

`--step-ms 0` is a bare step of a small model, where the microseconds are seen best. "timed" is
what launches of trials log (iterations, batches, losses), "phases" what an observing one does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy import stats

from torchdoctor.probe import step_log

PROBE = Path(step_log.__file__).parent
_LOGS = ("timed", "phases")
SCRIPT = """
import json, statistics, sys, time, torch
torch.set_num_threads(1)
blocks, wanted_s, BLOCK = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
total = (blocks + 3) * BLOCK
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(2 * total + 2, 64)), batch_size=2)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = sys.modules["_torchdoctor_probe_attach"]._session
x, clock = torch.randn(64, 64), time.perf_counter
began = clock()
for _ in range(2000):
    x @ x
work = int(wanted_s / ((clock() - began) / 2000))
times, number, last = [], 0, clock()
for (batch,) in loader:
    block, within = divmod(number, BLOCK)
    if within == 0:
        session.on = block < 3 or block % 4 in (1, 2)  # off on on off
        last = clock()
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    for _ in range(work):
        x @ x
    now = clock()
    # The first iterations of a block find the caches as the other side left them.
    if block >= 4 and within > BLOCK // 10:
        times.append((block, now - last))
    last, number = now, number + 1
session.on = True
session.flush()
by_block = {}
for block, seconds in times:
    by_block.setdefault(block, []).append(seconds)
medians = {block: statistics.median(found) for block, found in by_block.items()}
pairs = [(medians[b], medians[b + 1]) for b in sorted(medians) if b % 2 == 0 and b + 1 in medians]
# b % 4 == 0: off, on; b % 4 == 2: on, off.
print(json.dumps([(off, on) if i % 2 == 0 else (on, off) for i, (off, on) in enumerate(pairs)]))
"""


def launch(
    folder: Path, step_ms: float, blocks: int, phases: bool
) -> tuple[list[tuple[float, float]], float]:
    """(off, on) seconds of every pair of blocks, and the probe's own figure (us)."""
    channel = Path(tempfile.mkdtemp(dir=folder))
    boundary = {"kind": "loader", "ident": 0, "every": 1}
    # The window is never complete, so that every timed step is an ordinary one.
    plan = {"channel": str(channel), "purpose": "time", "boundary": boundary}
    plan |= {"warmup_steps": 20, "measure_steps": 10**9, "after": "continue", "fixes": []}
    plan["phases"] = phases
    (channel / "plan.json").write_text(json.dumps(plan))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROBE)}
    env["TORCHDOCTOR_PLAN"] = str(channel / "plan.json")
    block = 100 if step_ms < 2 else 20
    command = [sys.executable, str(folder / "script.py"), str(blocks), str(step_ms / 1e3)]
    done = subprocess.run(
        [*command, str(block)], env=env, capture_output=True, text=True, check=True
    )
    own = math.nan
    for path in channel.glob("process-*.json"):
        own = json.loads(path.read_text())["probe_cost_us_per_step"]
    return [(off, on) for off, on in json.loads(done.stdout)], own


def measure(folder: Path, step_ms: float, launches: int, blocks: int, phases: bool) -> str:
    """One row of the table."""
    logs, extra, plain, own = [], [], [], []
    for _ in range(launches):
        pairs, cost = launch(folder, step_ms, blocks, phases)
        own.append(cost)
        logs.append(statistics.median(math.log(on / off) for off, on in pairs))
        extra.append(1e6 * statistics.median(on - off for off, on in pairs))
        plain.append(1e3 * statistics.median(off for off, _ in pairs))
    t = float(stats.t.ppf(0.975, launches - 1)) / math.sqrt(launches)
    mean, half = statistics.mean(logs), t * statistics.stdev(logs)
    ratio = f"{math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]"
    us = f"{statistics.mean(extra):.1f} +- {t * statistics.stdev(extra):.1f}"
    log = "phases" if phases else "timed"
    figure = statistics.mean(own)
    return f"{log:6}  {statistics.mean(plain):8.3f}  {ratio:26}  {us:>18}  {figure:10.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0, 5.0])
    parser.add_argument("--logs", nargs="+", choices=_LOGS, default=_LOGS)
    wanted = parser.parse_args()
    if wanted.launches < 2:
        parser.error("an interval needs at least 2 launches")
    print("log      step ms  ratio [95 % interval]       extra us per step  own figure")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        for step_ms in wanted.step_ms:
            for log in wanted.logs:
                row = measure(folder, step_ms, wanted.launches, wanted.blocks, log == "phases")
                print(row, flush=True)


if __name__ == "__main__":
    main()
