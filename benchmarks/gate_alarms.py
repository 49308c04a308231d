"""Does the gate cry wolf, and does it catch a planted slow-down, on this machine?

    python benchmarks/gate_alarms.py --same 40 --slower 20 --log gates.jsonl

Runs `torchdoctor gate` on a small training program against itself (A/A), and against itself made
10 % slower by busy-waiting, in random order. Beside it, on the launches of the same gates: a stored
figure with a fixed bound of 5 % (the reference's first launch of the whole log against the median
of the new version's). Every gate is appended to the log, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

BOUND = 0.05
PROGRAM = """
import time, torch
from slowdown import SLOWDOWN
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    began = time.perf_counter()
    loss = model(torch.randn(256, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    until = time.perf_counter() + SLOWDOWN * (time.perf_counter() - began)
    while time.perf_counter() < until:
        pass
"""


def git(folder: Path, *arguments: str) -> None:
    """Run git with an identity."""
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def one_gate(slowdown: float) -> dict:
    """The verdict of one gate, and both versions' median times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        (folder / "slowdown.py").write_text("SLOWDOWN = 0.0\n")
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "reference")
        (folder / "slowdown.py").write_text(f"SLOWDOWN = {slowdown}\n")
        command = [sys.executable, "-m", "torchdoctor.cli", "gate", "--quiet", "--against", "HEAD"]
        result = subprocess.run(
            [*command, "--json", "gate.json", "--output", "out", "train.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        found = {"slowdown": slowdown, "exit": result.returncode}
        if result.returncode in (0, 1, 6) and (folder / "gate.json").exists():
            report = json.loads((folder / "gate.json").read_text())
            time = report["metrics"][0]
            found |= {"verdict": report["verdict"], "pairs": report["pairs"]}
            found |= {"ratio": time["ratio"], "reference": time["reference"], "new": time["new"]}
        else:
            found["error"] = result.stderr[-500:]
        return found


def table(gates: list[dict]) -> str:
    """Alarms and catches of both kinds of gate."""
    same = [g for g in gates if g["slowdown"] == 0.0 and "verdict" in g]
    slower = [g for g in gates if g["slowdown"] > 0.0 and "verdict" in g]
    stored = gates[0].get("reference") if gates else None

    def alarms(found: list[dict]) -> int:
        return sum(g["verdict"] == "slower" for g in found)

    def stored_alarms(found: list[dict]) -> int:
        return sum(bool(stored) and g["new"] > stored * (1 + BOUND) for g in found)

    rows = [
        ("torchdoctor", alarms),
        (f"stored figure, bound {BOUND:.0%}", stored_alarms),
    ]
    lines = ["| gate | false alarms | caught |", "| --- | --- | --- |"]
    for name, count in rows:
        caught = f"{count(slower)} of {len(slower)}"
        lines.append(f"| {name} | {count(same)} of {len(same)} | {caught} |")
    undecided = sum(g.get("verdict") == "inconclusive" for g in gates)
    failed = sum("error" in g for g in gates)
    return "\n".join([*lines, "", f"not decided: {undecided}; failed: {failed}"])


def main() -> None:
    """Run what the log does not hold yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--same", type=int, default=40)
    parser.add_argument("--slower", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=0.10)
    parser.add_argument("--log", type=Path, default=Path("gates.jsonl"))
    arguments = parser.parse_args()
    gates = []
    if arguments.log.exists():
        gates = [json.loads(line) for line in arguments.log.read_text().splitlines()]
    wanted = [0.0] * arguments.same + [arguments.slowdown] * arguments.slower
    for gate in gates:
        if gate["slowdown"] in wanted:
            wanted.remove(gate["slowdown"])
    random.Random(len(gates)).shuffle(wanted)
    for slowdown in wanted:
        gates.append(one_gate(slowdown))
        with arguments.log.open("a") as log:
            log.write(json.dumps(gates[-1]) + "\n")
        print(gates[-1], flush=True)
    print(table(gates))


if __name__ == "__main__":
    main()
