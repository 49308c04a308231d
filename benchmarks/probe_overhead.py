"""What the probe costs: the same script plainly and under the probe, interleaved by launch.

Each launch is one sample. Launches come in pairs in ABBA order; the ratio is the exponential of
the mean paired difference of log median step times, with a t interval over the pairs. The script
times its own steps, so that both sides are measured by the same clock. The microseconds are of the
thread's CPU clock, which other programs on the machine disturb less.

    python benchmarks/probe_overhead.py [--pairs 6] [--steps 400] [--step-ms 1 5]
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

_TRIED = 400  # products of two matrices, to learn how long one takes here
PROBE = Path(step_log.__file__).parent
SCRIPT = """
import json, sys, time, torch
torch.set_num_threads(1)
steps, work = int(sys.argv[1]), int(sys.argv[2])
x = torch.randn(64, 64)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(2 * (steps + 60), 64)), batch_size=2)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
times, cpu, last, last_cpu = [], [], time.perf_counter(), time.thread_time()
for (batch,) in loader:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    # A fixed amount of work, chosen once so that a step has about the length asked for.
    for _ in range(work):
        x @ x
    now, now_cpu = time.perf_counter(), time.thread_time()
    times.append(now - last)
    cpu.append(now_cpu - last_cpu)
    last, last_cpu = now, now_cpu
print(json.dumps([times[60:], cpu[60:]]))
"""


def launch(folder: Path, steps: int, work: int, probed: bool) -> tuple[float, float, float | None]:
    """Median step time and thread CPU time (s) of a launch, and the probe's own figure (us)."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TORCHDOCTOR_PLAN")}
    env["OMP_NUM_THREADS"] = "1"
    channel = Path(tempfile.mkdtemp(dir=folder))
    if probed:
        boundary = {"kind": "loader", "ident": 0, "every": 1}
        # The window is never complete, so that every timed step is an ordinary one.
        plan = {"channel": str(channel), "purpose": "time", "boundary": boundary}
        plan |= {"warmup_steps": 20, "measure_steps": 10**9, "after": "continue", "fixes": []}
        (channel / "plan.json").write_text(json.dumps(plan))
        env |= {"PYTHONPATH": str(PROBE), "TORCHDOCTOR_PLAN": str(channel / "plan.json")}
    command = [sys.executable, str(folder / "script.py"), str(steps), str(work)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    own = None
    for path in channel.glob("process-*.json"):
        own = json.loads(path.read_text())["probe_cost_us_per_step"]
    wall, cpu = json.loads(done.stdout)
    return statistics.median(wall), statistics.median(cpu), own


def measure(folder: Path, step_ms: float, pairs: int, steps: int) -> str:
    """One row of the table."""
    bare = launch(folder, 200, 0, probed=False)[1]
    more = launch(folder, 200, _TRIED, probed=False)[1]
    work = max(int((step_ms / 1e3 - bare) / max((more - bare) / _TRIED, 1e-9)), 0)
    logs, extra, plain_s, own = [], [], [], None
    for pair in range(pairs):
        order = (False, True) if pair % 2 == 0 else (True, False)
        took, cpu = {}, {}
        for probed in order:
            took[probed], cpu[probed], said = launch(folder, steps, work, probed)
            own = said if said is not None else own
        logs.append(math.log(took[True] / took[False]))
        extra.append(1e6 * (cpu[True] - cpu[False]))
        plain_s.append(took[False])
    half = float(stats.t.ppf(0.975, pairs - 1)) * statistics.stdev(logs) / math.sqrt(pairs)
    half_us = float(stats.t.ppf(0.975, pairs - 1)) * statistics.stdev(extra) / math.sqrt(pairs)
    mean = statistics.mean(logs)
    ratio = f"{math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]"
    us = f"{statistics.mean(extra):7.1f} +- {half_us:.1f}"
    return f"{1e3 * statistics.mean(plain_s):8.3f}  {ratio:26}  {us:>21}  {own or math.nan:9.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[1.0, 5.0])
    wanted = parser.parse_args()
    if wanted.pairs < 2:
        parser.error("an interval needs at least 2 pairs")
    print(" step ms  ratio [95 % interval]       extra CPU us per step  own figure")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        for step_ms in wanted.step_ms:
            print(measure(folder, step_ms, wanted.pairs, wanted.steps), flush=True)


if __name__ == "__main__":
    main()
