"""Does the gate cry wolf, and does it catch a planted slow-down, on this machine?

    python benchmarks/gate_alarms.py --same 40 --slower 20 --log gates.jsonl \\
        --traceml VENV/bin/traceml

Runs `torchdoctor gate` on a small training program against itself (A/A), and against itself made
10 % slower by busy-waiting, in random order. Beside it, on the same versions in the same minutes:

- a stored figure with a fixed bound of 5 %: the reference's time in the first gate of the log
  against the new version's time in each (both of all its pairs, so better than one launch);
- TraceML's own gate: one `traceml run` of each version and `traceml compare
  --max-step-time-regression-pct 5`. It needs `--traceml`, the command in a virtual environment that
  sees the same torch: `python -m venv --system-site-packages VENV; VENV/bin/pip install --no-deps
  traceml-ai` and its small dependencies (rich, psutil, numpy, msgspec, pyyaml, nvidia-ml-py).
  `--traceml-alone` gates by it as often as the log holds other gates without it beside them. Two
  of its runs at a time fail, for they share a port: one after the other only.

Every gate is appended to the log, so a run that was stopped goes on; the table is of all of it
(`--same 0 --slower 0`: only the table).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from row_log import append, rows_of

BOUND = 0.05
TRACEML_WORSE = 4  # its exit code for "slower in this pair"; 3: inconclusive
PROGRAM = """
import time, torch
from slowdown import SLOWDOWN
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(4096, 256))
loader = torch.utils.data.DataLoader(data, batch_size=256)
for epoch in range(100000):
    for (x,) in loader:
        began = time.perf_counter()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        until = time.perf_counter() + SLOWDOWN * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
"""
# The same program as TraceML's documentation has it for a plain loop; it must end by itself.
TRACED = (
    PROGRAM.replace("import time, torch", "import time, torch, traceml_ai as traceml")
    .replace("torch.manual_seed(0)", 'traceml.init(mode="auto")\ntorch.manual_seed(0)')
    .replace("range(100000)", "range(25)")
    .replace("in loader:", "in loader:\n      with traceml.trace_step(model):")
)


# Without it, its gate answers "inconclusive" whatever was measured.
DECLARED = """
guard:
  schema_version: 1
  workload:
    name: gate-alarms
    parameters: {batch_size: 256}
  measurement: {start_step: 50, completed_steps: 300}
"""


def git(folder: Path, *arguments: str) -> None:
    """Run git with an identity."""
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def traceml_alone(slowdown: float, traceml: str) -> dict[str, Any]:
    """Its verdict on one pair of versions, in a row of its own."""
    with tempfile.TemporaryDirectory() as name:
        found = {"slowdown": slowdown, "traceml": traceml_gate(Path(name), traceml, slowdown)}
    return {**found, "load": os.getloadavg()[0]}


def lacking(gates: list[dict[str, Any]], wanted: list[float], key: str) -> list[float]:
    """Slow-downs of `wanted` that no row with this key has yet, one for one."""
    left = list(wanted)
    for gate in gates:
        if key in gate and gate["slowdown"] in left:
            left.remove(gate["slowdown"])
    return left


def one_gate(slowdown: float, budget: str, traceml: str | None) -> dict[str, Any]:
    """The verdicts of all gates on one pair of versions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        (folder / "slowdown.py").write_text("SLOWDOWN = 0.0\n")
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "reference")
        (folder / "slowdown.py").write_text(f"SLOWDOWN = {slowdown}\n")
        command = [
            sys.executable,
            "-m",
            "torchdoctor.cli.front",
            "gate",
            "--quiet",
            "--against",
            "HEAD",
        ]
        began = time.monotonic()
        result = subprocess.run(
            [*command, "--budget", budget, "--output", "out", "train.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, Any] = {"slowdown": slowdown, "exit": result.returncode, "budget": budget}
        found |= {"seconds": round(time.monotonic() - began, 1), "load": os.getloadavg()[0]}
        if result.returncode in (0, 1, 6) and (folder / "out" / "gate.json").exists():
            report = json.loads((folder / "out" / "gate.json").read_text())
            row = report["metrics"][0]
            found |= {key: report[key] for key in ("verdict", "pairs", "blind_spot", "measured")}
            found |= {"ratio": row["ratio"], "reference": row["reference"], "new": row["new"]}
        else:
            found["error"] = result.stderr[-500:]
        if traceml is not None:
            found["traceml"] = traceml_gate(folder, traceml, slowdown)
        return found


def traceml_gate(folder: Path, traceml: str, slowdown: float) -> dict[str, Any]:
    """TraceML's gate on one run of each version: its exit code, and its verdict."""
    (folder / "traced.py").write_text(TRACED)
    (folder / "traceml.yaml").write_text(DECLARED)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    began = time.monotonic()

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [traceml, *arguments],
            cwd=folder,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )

    summaries = []
    for name, share in (("reference", 0.0), ("new", slowdown)):
        (folder / "slowdown.py").write_text(f"SLOWDOWN = {share}\n")
        ran = said("run", "traced.py", "--run-name", name)
        summaries.append(str(folder / "logs" / name / "final_summary.json"))
        if ran.returncode or not Path(summaries[-1]).exists():
            return {"error": (ran.stderr or ran.stdout)[-300:]}
    bound = str(round(100 * BOUND))
    result = said("compare", *summaries, "--max-step-time-regression-pct", bound, "--output", "tc")
    seconds = round(time.monotonic() - began, 1)
    policy = json.loads((folder / "tc.json").read_text())["ci_policy"]
    return {"exit": result.returncode, "seconds": seconds, "policy": policy}


def table(gates: list[dict[str, Any]]) -> str:
    """Alarms and catches of each kind of gate, of what the log holds."""
    stored = next((g["reference"] for g in gates if g.get("reference")), None)
    # The first gate is where the stored figure comes from.
    kinds: dict[str, list[tuple[float, bool | None]]] = {
        "torchdoctor gate": [
            (g["slowdown"], None if g["verdict"] == "inconclusive" else g["verdict"] == "slower")
            for g in gates
            if "verdict" in g
        ],
        f"stored figure, bound {BOUND:.0%}": [
            (g["slowdown"], g["new"] > stored * (1 + BOUND))
            for g in gates[1:]
            if stored and g.get("new")
        ],
        f"TraceML compare, bound {BOUND:.0%}": [
            (g["slowdown"], {0: False, TRACEML_WORSE: True}.get(g["traceml"].get("exit")))
            for g in gates
            if "traceml" in g
        ],
    }
    lines = ["| gate | false alarms | caught | not decided |", "| --- | --- | --- | --- |"]
    for name, answers in kinds.items():
        same = [alarm for slowdown, alarm in answers if slowdown == 0.0]
        slower = [alarm for slowdown, alarm in answers if slowdown > 0.0]
        lines.append(
            f"| {name} | {same.count(True)} of {len(same)} | {slower.count(True)} of {len(slower)} "
            f"| {[*same, *slower].count(None)} |"
        )
    blind = sorted(g["blind_spot"] for g in gates if g.get("verdict") == "not slower")
    middle = f"{blind[len(blind) // 2]:.1%}" if blind else "-"
    times = [g["seconds"] for g in gates if "seconds" in g]
    spent = sum(times) / max(len(times), 1)
    failed = sum("error" in g for g in gates)
    return "\n".join(
        [
            *lines,
            "",
            f"A gate took {spent:.0f} s. Blind spot of a pass, median: {middle}. Failed: {failed}.",
        ]
    )


def main() -> None:
    """Run what the log does not hold yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--same", type=int, default=40)
    parser.add_argument("--slower", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=0.10)
    parser.add_argument("--budget", default="10m", help="Of each gate.")
    parser.add_argument("--traceml", help="TraceML's command, to gate the same versions by it.")
    parser.add_argument("--traceml-alone", action="store_true", help="Only what lacks it.")
    parser.add_argument("--log", type=Path, default=Path("gates.jsonl"))
    arguments = parser.parse_args()
    gates = rows_of(arguments.log)
    alone = arguments.traceml if arguments.traceml_alone else None
    wanted = [0.0] * arguments.same + [arguments.slowdown] * arguments.slower
    wanted = lacking(gates, wanted, "exit" if alone is None else "traceml")
    random.Random(len(gates)).shuffle(wanted)
    for slowdown in wanted:
        if alone is not None:
            gates.append(traceml_alone(slowdown, alone))
        else:
            gates.append(one_gate(slowdown, arguments.budget, arguments.traceml))
        append(arguments.log, gates[-1])
        print(gates[-1], flush=True)
    print(table(gates))


if __name__ == "__main__":
    main()
