"""Two other tools beside torchdoctor, on eight programs with a planted cause.

    python benchmarks/rivals.py install --folder DIR
    python benchmarks/rivals.py run --folder DIR [--only PROGRAM] [--tool NAME] [--budget 90s]
    python benchmarks/rivals.py true [--only PROGRAM]
    python benchmarks/rivals.py table

`install` puts each tool into an environment of its own below the folder, which sees the torch of
this Python. `run` starts each tool as its own page says on a copy of each program, and reads what
it printed: does it name the cause, its line and its cure, and did it measure one? `true` times the
program beside its cured twin. `table` prints the rows as Markdown. TraceML times no plain loop by
itself, so its copy gets the two calls that its page describes.

The programs were written for this comparison, after the tools; none is a sample of torchdoctor's.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from row_log import append, rows_of

PROGRAMS = Path(__file__).parent / "rival_programs"
LOG = Path(__file__).parent / "logs" / "rivals.jsonl"
TOOLS = ("torchdoctor", "train-doctor", "traceml-ai")
# On a machine with other programs, two threads wait for each other: that would drown the causes.
_ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
_PATIENCE_S = 420
_TRACED_STEPS = 150
_PROGRESS = re.compile(r"\[\d+ (s|min)\b|\s*\[\d+/\d+\]|\[TraceML\]")


@dataclass(frozen=True)
class Planted:
    """What is wrong with a program: words for it and its cure, its line, and edits that cure it."""

    cause: str
    cure: str
    line: str
    edits: tuple[tuple[str, str], ...]
    # The process's own time, which other programs do not lengthen; workers have times of their own.
    clock: str = "process_time"


PLANTED = {
    "augmented_images": Planted(
        cause=r"num_workers=0|input-bound|waits for data|per-sample preprocessing",
        cure=r"loader workers|num_workers=[1-9]|increase workers",
        line=r"def __getitem__|image = |loader = |in loader",
        edits=(("drop_last=True)", "drop_last=True, num_workers=2, persistent_workers=True)"),),
        clock="perf_counter",
    ),
    "saved_each_step": Planted(
        cause=r"torch\.save|save every|checkpoints are written inside",
        cure=r"save every|checkpoint_in_hot_loop",
        line=r"torch\.save",
        edits=((" " * 12 + "torch.save", f"{' ' * 12}if done % 50 == 0:\n{' ' * 16}torch.save"),),
    ),
    "histograms": Planted(
        cause=r"histc|spread\(",
        cure=r"less often|every so many|called rarely",
        line=r"torch\.histc|spread\(model\)",
        edits=(
            (" " * 12 + "histograms = spread(model)\n", ""),
            (" " * 16 + "largest", f"{' ' * 16}histograms = spread(model)\n{' ' * 16}largest"),
        ),
    ),
    "recurrence_by_hand": Planted(
        cause=r"operators a step with a median of|small (operators|kernels)",
        cure=r"torch[.-]compile|compiled model",
        line=r"self\.cell\(|for moment|model\(values\)",
        edits=(("    model = Readings()", "    model = torch.compile(Readings())"),),
    ),
    "left_in_anomaly": Planted(
        cause=r"anomaly detection|detect_anomaly",
        cure=r"debug-off|debugging aids off|anomaly (detection|mode) off",
        line=r"set_detect_anomaly",
        edits=(("    torch.autograd.set_detect_anomaly(True)\n", ""),),
    ),
    "padded_texts": Planted(
        cause=r"padd(ing|ed)",
        cure=r"longest of (its|the) batch|pad-to-longest",
        line=r"LONGEST|together",
        edits=(("len(samples), LONGEST,", "len(samples), max(len(text) for text, _ in samples),"),),
    ),
    "scored_with_gradients": Planted(
        cause=r"records? (the )?(graph|gradients)|with gradients|no_grad|inference_mode",
        cure=r"no_grad|inference_mode|without gradients",
        line=r"model\(rows\)|in loader|def main",
        edits=(("    done, scores", "    torch.set_grad_enabled(False)\n    done, scores"),),
    ),
    "double_precision": Planted(
        cause=r"float64|double precision|64[ -]bit",
        cure=r"single[ -]precision|float32",
        line=r"double\(\)|from_numpy|model\(features\)",
        edits=(
            ("standard_normal((8192, 512))", "standard_normal((8192, 512)).astype(np.float32)"),
            ("    model.double()\n", ""),
        ),
    ),
}


def install(folder: Path) -> None:
    """Make one environment for each tool; none gets a torch of its own."""
    for tool in TOOLS[1:]:
        venv.create(folder / tool, with_pip=True)
        [packages] = (folder / tool).glob("lib/python*/site-packages")
        (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [str(folder / tool / "bin" / "python"), "-m", "pip", "install", "--quiet", tool]
        done = subprocess.run(pip, check=False, capture_output=True, text=True)
        print(f"{tool}: {'installed' if done.returncode == 0 else done.stderr[-500:]}")


def command_of(tool: str, folder: Path, script: Path, budget: str) -> list[str]:
    """Return the command that the tool's own page tells."""
    if tool == "torchdoctor":
        own = [sys.executable, "-m", "torchdoctor", "run", "--budget", budget]
        return [*own, "--output", "out", script.name]
    commands = folder / tool / "bin"
    if tool == "train-doctor":
        fix = [str(commands / "train-doctor"), "fix", "--no-card", "--"]
        return [*fix, str(commands / "python"), script.name]
    return [
        str(commands / "traceml"), "run", script.name, "--args", "--steps", str(_TRACED_STEPS)
    ]  # fmt: skip


def traced(source: str) -> str:
    """Return the program with TraceML's calls, as its page has them for a plain loop."""
    lines = source.splitlines()
    loops = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.For) and "done % 50" in (ast.get_source_segment(source, node) or "")
    ]
    body = loops[-1].body
    first, end, indent = body[0].lineno - 1, body[-1].end_lineno or 0, " " * body[0].col_offset
    inside = [f"    {line}" for line in lines[first:end]]
    lines[first:end] = [f"{indent}with traceml.trace_step(model):", *inside]
    text = "\n".join(lines) + "\n"
    text = text.replace("import torch\n", "import torch\nimport traceml_ai as traceml\n", 1)
    return text.replace(
        "torch.manual_seed(0)", 'traceml.init(mode="auto")\n    torch.manual_seed(0)'
    )


def run_one(tool: str, name: str, folder: Path, budget: str) -> dict[str, Any]:
    """Start a tool on a copy of a program and return what it told."""
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.py"
        script.write_text(traced(source) if tool == "traceml-ai" else source)
        began = time.monotonic()
        process = subprocess.Popen(
            command_of(tool, folder, script, budget), cwd=place, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_ONE_THREAD,
        )  # fmt: skip
        try:
            text, _ = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
        seconds = time.monotonic() - began
        row = {"tool": tool, "program": name, "seconds": round(seconds), "exit": process.returncode}
        kept = text[-9000:].replace(place, "").replace(str(folder), "").replace(sys.prefix, "")
        row |= {"load": os.getloadavg()[0], "text": kept}
        report = Path(place) / "out" / "report.json"
        if report.exists():
            row["summary"] = {"recommendation": _recommendation(report)}
    return row


def _recommendation(report: Path) -> Any:
    return json.loads(report.read_text(encoding="utf-8"))["summary"]["recommendation"]


def told(row: dict[str, Any]) -> dict[str, bool]:
    """Return what a tool said of the planted cause, lines of its progress left out."""
    planted = PLANTED[row["program"]]
    text = "\n".join(line for line in row["text"].splitlines() if not _PROGRESS.match(line))
    source = (PROGRAMS / f"{row['program']}.py").read_text(encoding="utf-8").splitlines()
    named = {int(n) for n in re.findall(r"train\.py:(\d+)", text)}
    return {
        "cause": bool(re.search(planted.cause, text, re.IGNORECASE)),
        "line": any(re.search(planted.line, source[n - 1]) for n in named if n <= len(source)),
        "cure": bool(re.search(planted.cure, text, re.IGNORECASE)),
    }


def recommended(row: dict[str, Any]) -> str:
    """Return the gain that the tool measured and recommends; another change is told as such."""
    recommendation = row.get("summary", {}).get("recommendation")
    if recommendation and recommendation["speedup"]:
        gain = "{estimate:.2f}x ({low:.2f}-{high:.2f})".format(**recommendation["speedup"])
        is_cure = re.search(PLANTED[row["program"]].cure, recommendation["fixes"], re.IGNORECASE)
        return gain if is_cure else f"another change: {gain}"
    proven = re.search(r"([\d.]+)x faster \(95% interval ([\d.]+) to ([\d.]+)\), loss", row["text"])
    return f"{proven[1]}x ({proven[2]}-{proven[3]})" if proven else "none"


def true_gain(name: str, steps: int = 150, rounds: int = 2) -> dict[str, Any]:
    """Time the program and its cured twin in turn, without any tool."""
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    cured = source
    for old, new in PLANTED[name].edits:
        if old not in cured:
            raise ValueError(f"{name} has no {old!r}")
        cured = cured.replace(old, new)
    clock = PLANTED[name].clock
    ratios = [_seconds(source, steps, clock) / _seconds(cured, steps, clock) for _ in range(rounds)]
    return {"program": name, "ratios": ratios}


# The programs print at every fiftieth step: the time from the first print to the last is of steps.
_TIMED = """
import builtins, runpy, sys, time

marks, kept, clock = [], print, getattr(time, sys.argv[3])
builtins.print = lambda *words, **options: marks.append(clock())
script = sys.argv[1]
sys.argv = [script, "--steps", sys.argv[2]]
runpy.run_path(script, run_name="__main__")
kept(marks[-1] - marks[0])
"""


def _seconds(source: str, steps: int, clock: str) -> float:
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.py"
        script.write_text(source)
        done = subprocess.run(
            [sys.executable, "-c", _TIMED, str(script), str(steps), clock], cwd=place, check=True,
            capture_output=True, text=True, env=_ONE_THREAD,
        )  # fmt: skip
        return float(done.stdout.splitlines()[-1])


def table() -> Iterator[str]:
    """Yield the newest rows as Markdown."""
    newest = {(row.get("tool"), row["program"]): row for row in rows_of(LOG)}
    yield "| program | tool | cause | line | cure | recommended, measured | seconds |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in PLANTED:
        ratios = newest.get((None, name), {}).get("ratios")
        for tool in TOOLS:
            row = newest.get((tool, name))
            if row is None:
                continue
            marks = " | ".join("yes" if said else "no" for said in told(row).values())
            cured = f" (cured: {_range(ratios)})" if ratios else ""
            first = f"{name}{cured}" if tool == TOOLS[0] else ""
            yield f"| {first} | {tool} | {marks} | {recommended(row)} | {row['seconds']} |"


def _range(ratios: list[float]) -> str:
    least, most = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return f"{least}x" if least == most else f"{least} to {most}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["install", "run", "true", "table"])
    parser.add_argument("--folder", type=Path, help="of the environments")
    parser.add_argument("--budget", default="90s")
    parser.add_argument("--only", choices=list(PLANTED))
    parser.add_argument("--tool", choices=TOOLS)
    chosen = parser.parse_args()
    if chosen.what in ("install", "run") and chosen.folder is None:
        parser.error("name the folder of the environments with --folder")
    names = [chosen.only] if chosen.only else list(PLANTED)
    if chosen.what == "install":
        install(chosen.folder.absolute())
    elif chosen.what == "table":
        print("\n".join(table()))
    elif chosen.what == "true":
        for name in names:
            append(LOG, true_gain(name))
    else:
        for name in names:
            for tool in [chosen.tool] if chosen.tool else TOOLS:
                append(LOG, run_one(tool, name, chosen.folder.absolute(), chosen.budget))


if __name__ == "__main__":
    main()
