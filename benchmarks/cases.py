"""Costs in the user's own code, from public reports: is the line told, and the cure?

    python benchmarks/cases.py run --folder DIR [--budget 60s] [--threads 1] [--only NAME]
    python benchmarks/cases.py true --folder DIR [--pairs 1] [--only NAME] [--log FILE]
    python benchmarks/cases.py table [--log FILE]

Each script of the folder has one planted cause, and a twin that is cured. `run` has
`torchdoctor run` look at it and reads the first screen: a line of the cause, words of the cure, and
the gain of the fix where it was measured. `true` times both twins in fresh processes, in turn.
`table` prints the newest row of each label beside the true gain.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from row_log import append, rows_of

LOG = Path(__file__).parent / "logs" / "cases.jsonl"
_PLACE = re.compile(r"(\w+)\.py:(\d+)")
_SECONDS = re.compile(r"seconds ([\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What should be told: a line that has one of `lines`, and words that name the cure."""

    lines: tuple[str, ...]
    words: str  # a regular expression
    fixes: tuple[str, ...]  # their trial is a measurement of the cure
    steps: int  # for the true gain


CASES = {
    "zip_reopened": Case(
        lines=("with zipfile.ZipFile(self.path)",),
        words=r"open (it )?once|keep (it|the)|same object",
        fixes=("keep-open",),
        steps=150,
    ),
    "tensor_dataset": Case(
        lines=("loader = DataLoader(",),
        words=r"BatchSampler|__getitems__|batch-?wise|gc-freeze",
        fixes=("batched-fetching", "gc-freeze"),
        steps=300,
    ),
    "metric_history": Case(
        lines=("auc = metric.compute()", "self.scores.argsort", "hits", "torch.cat([self."),
        words=r"every N|grows|rarely|every so many steps",
        fixes=("every-tenth-call",),
        steps=1000,
    ),
    "dense_embedding": Case(
        lines=("nn.Embedding(words, size)", "self.c"),
        words=r"sparse=True",
        fixes=("sparse-embedding",),
        steps=60,
    ),
    "gcn_norm": Case(
        lines=("adjacency = normalized_adjacency(", "coalesce()", "scale[rows]", "degree"),
        words=r"keep (the|its) result|same again|compute it once",
        fixes=("keep-result",),
        steps=100,
    ),
    "deque_replay": Case(
        lines=("random.sample(self.memory",),
        words=r"\blist\b",
        fixes=("list-for-deque",),
        steps=300,
    ),
    "infer_no_cache": Case(
        lines=("logits = model(ids)",),
        words=r"key-value cache",
        fixes=("key-value-cache",),
        steps=4,
    ),
    "infer_padding": Case(
        lines=("torch.zeros(len(sentences), LONGEST",),
        words=r"padding",
        fixes=("pad-to-longest",),
        steps=30,
    ),
    "infer_grad": Case(
        lines=("score = model(left, right)",),
        words=r"train(ing)? mode",
        fixes=("eval-mode", "inference-mode"),
        steps=200,
    ),
}


def script_of(folder: Path, name: str) -> Path:
    """Return the script of a case, whose name may have a number in front."""
    plain = folder / f"{name}.py"
    return plain if plain.exists() else next(folder.glob(f"[0-9]*_{name}.py"), plain)


def score(folder: Path, name: str, screen: str, report: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the first screen of a run told, and what the run measured of the cure."""
    case, source = CASES[name], script_of(folder, name).read_text(encoding="utf-8").splitlines()
    places = {int(line) for file, line in _PLACE.findall(screen) if file == name}
    told = [n for n in places if any(x in source[n - 1] for x in case.lines)]
    trials = report["trials"] if report else []
    measured = [t for t in trials if t["speedup"] and set(t["fixes"]) & set(case.fixes)]
    best = max(measured, key=lambda t: t["speedup"]["estimate"], default=None)
    shown = " ".join(screen.split())
    return {
        "line": bool(told),
        "cure": "measured" if best else "told" if re.search(case.words, shown) else "",
        "gain": best["speedup"] if best else None,
        "fixes": sorted(best["fixes"]) if best else [],
    }


def run(cases: Path, name: str, budget: str, threads: int | None) -> dict[str, Any]:
    """Run torchdoctor on a copy of one case; `threads`: of the program, on a busy machine."""
    with tempfile.TemporaryDirectory(prefix="torchdoctor-case-", dir="/var/tmp") as folder:
        script = Path(folder, f"{name}.py")
        script.write_bytes(script_of(cases, name).read_bytes())
        command = [sys.executable, "-m", "torchdoctor", "run", "--budget", budget]
        command += ["--output", "out", "--timeout", "60s", script.name]
        environment = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        ended = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )
        stored = Path(folder, "out", "report.json")
        report = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else None
    row = score(cases, name, ended.stdout, report)
    return {**row, "rc": ended.returncode, "load": os.getloadavg()[0], "screen": ended.stdout}


def true_gain(folder: Path, name: str, pairs: int) -> float:
    """Return the median ratio of the twins' own seconds, in fresh processes."""
    steps, ratios = str(CASES[name].steps), []
    for _ in range(pairs):
        seconds = []
        for script in (name, f"{name}_cured"):
            command = [sys.executable, str(script_of(folder, script)), "--steps", steps]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds.append(float(_SECONDS.findall(ended.stdout)[-1]))
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def table(log: Path) -> str:
    """Return the newest row of each case and label."""
    newest = {(row["label"], row["case"]): row for row in rows_of(log)}
    labels = list(dict.fromkeys(label for label, _ in newest if label != "true"))
    lines = ["| case | true gain | " + " | ".join(labels) + " |", "|---" * (2 + len(labels)) + "|"]
    for name in CASES:
        true = newest.get(("true", name))
        cells = [name, f"{true['gain']:.1f}x" if true else "?"]
        for label in labels:
            row = newest.get((label, name))
            cells.append("not run" if row is None else _cell(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    gain = row["gain"]
    measured = f" {gain['estimate']:.2f}x ({gain['low']:.2f}-{gain['high']:.2f})" if gain else ""
    return f"{'line' if row['line'] else 'no line'}, {row['cure'] or 'no cure'}{measured}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "true", "table"])
    parser.add_argument("--folder", type=Path, help="of the scripts")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only")
    parser.add_argument("--label", default="now")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--log", type=Path, default=LOG)
    chosen = parser.parse_args()
    if chosen.what != "table" and chosen.folder is None:
        parser.error("name the folder of the scripts with --folder")
    for name in [chosen.only] if chosen.only else CASES:
        if chosen.what == "run":
            row = {
                "label": chosen.label,
                "case": name,
                **run(chosen.folder, name, chosen.budget, chosen.threads),
            }
            print(f"{name}: {_cell(row)}", flush=True)
            append(chosen.log, row)
        elif chosen.what == "true":
            row = {
                "label": "true",
                "case": name,
                "gain": true_gain(chosen.folder, name, chosen.pairs),
            }
            print(f"{name}: {row['gain']:.2f}x", flush=True)
            append(chosen.log, row)
    if chosen.what == "table":
        print(table(chosen.log))


if __name__ == "__main__":
    main()
