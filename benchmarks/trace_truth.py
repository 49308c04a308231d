"""Work out where the time of a trace goes, without a line of torchdoctor's own reader.

    python benchmarks/trace_truth.py TRACE.json[.gz] [--from MS] [--diagnose]

Prints the exposed shares of the average step in the order kernel, communication, copy, memset,
driver, loader, operators, other; the longest kernels, driver calls and operators of the steps; and
with --diagnose the largest difference to torchdoctor's shares, in points. Steps are ProfilerStep
marks, each begun when earlier device work is done and ended by its last device event, as in
TensorBoard's plugin; without marks all is one step. `--from` leaves out the first milliseconds.
The pages in docs/traces rest on these figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ORDER = ("kernel", "communication", "memcpy", "memset", "runtime", "loader", "cpu")
NAMES = {"kernel": "gpu", "loader": "data_loader"}
COLLECTIVE = re.compile(
    r"nccl|rccl|deep_ep|dpsk::ep|multimem_all|cross_device_reduce|all_?reduce_fusion", re.I
)
LOADER = re.compile(r"DataLoader")
STEP = re.compile(r"ProfilerStep")
KINDS = {"memcpy": "memcpy", "gpu_memcpy": "memcpy", "memset": "memset", "gpu_memset": "memset"}
Span = tuple[float, float]


def events_of(path: Path) -> list[dict]:
    content = path.read_bytes()
    root = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events = root["traceEvents"] if isinstance(root, dict) else root
    return [e for e in events if e.get("ph") == "X" and e.get("dur") is not None]


def merged(spans: list[Span]) -> list[Span]:
    result: list[list[float]] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return [(start, end) for start, end in result]


def length_in(spans: list[Span], steps: list[Span]) -> float:
    return sum(
        max(0.0, min(end, last) - max(start, first))
        for first, last in steps
        for start, end in spans
    )


def kind_of(event: dict) -> str | None:
    category, name = str(event.get("cat", "")).lower(), event["name"]
    if category in KINDS:
        return KINDS[category]
    if category.endswith("kernel") or category == "mtia_ccp_events":
        return "communication" if COLLECTIVE.search(name) else "kernel"
    if category.endswith(("runtime", "driver")):
        return "runtime"
    if category in ("cpu_op", "operator", "user_annotation"):
        if STEP.match(name):
            return None
        return "loader" if LOADER.search(name) else "cpu"
    return None


def steps_of(events: list[dict], begin: float) -> list[Span]:
    """Return the steps, from the end of the one before to the last device event launched in it."""
    marks = sorted(
        {
            (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
            for e in events
            if STEP.match(e["name"]) and not str(e.get("cat")).lower().startswith("gpu")
        }
    )
    if not marks:
        host = [e for e in events if kind_of(e) in ("cpu", "loader", "runtime")]
        timed = [e for e in events if kind_of(e)]
        first = min(float(e["ts"]) for e in host or timed)
        return [(max(first, begin), max(float(e["ts"]) + float(e["dur"]) for e in timed))]
    launched = {
        e["args"]["correlation"]: float(e["ts"])
        for e in events
        if kind_of(e) == "runtime" and "correlation" in e.get("args", {})
    }
    ends: dict[int, list[float]] = defaultdict(list)
    begun, outside = [], []  # when the first step's device events begin; ends of other ones
    for event in events:
        if kind_of(event) in ("kernel", "communication", "memcpy", "memset"):
            called = launched.get(event.get("args", {}).get("correlation"), -1.0)
            start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            inside = [n for n, (first, last) in enumerate(marks) if first <= called < last]
            for number in inside:
                ends[number].append(end)
            begun += [start] * (0 in inside)
            outside += [end] * (not inside)
    before = [end for end in outside if begun and end < min(begun)]  # delays the first step
    steps, free = [], max([marks[0][0], *before])
    for number, (first, last) in enumerate(marks):
        if ends and not ends[number]:
            continue
        if number and len(ends[number]) < 0.8 * len(ends[number - 1]) and number == len(marks) - 1:
            continue
        start = max(first, free)
        free = max([last, *ends[number]])
        steps.append((start, free))
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--from", dest="begin", type=float, default=0.0, help="ms from the start")
    parser.add_argument("--diagnose", action="store_true")
    asked = parser.parse_args()
    events = events_of(asked.trace)
    first = min(float(e["ts"]) for e in events if kind_of(e))
    begin = first + 1000 * asked.begin if asked.begin else -1.0
    steps = steps_of(events, begin)
    spans: dict[str, list[Span]] = defaultdict(list)
    longest: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        kind = kind_of(event)
        if kind is None:
            continue
        span = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        spans[kind].append(span)
        longest[kind][event["name"][:100]] += length_in([span], steps)
    total, below, covered = sum(end - start for start, end in steps), 0.0, []
    shares = {}
    for kind in ORDER:
        covered = merged([*covered, *spans[kind]])
        reached = length_in(covered, steps)
        shares[NAMES.get(kind, kind)] = 100 * (reached - below) / total
        below = reached
    shares["other"] = 100 * (total - below) / total
    print(f"{len(steps)} steps of {total / len(steps) / 1000:.2f} ms: ", end="")
    print(", ".join(f"{name} {share:.2f} %" for name, share in shares.items() if share))
    for kind in ("kernel", "communication", "runtime", "cpu"):
        for name, spent in longest[kind].most_common(4):
            print(f"  {kind:13} {100 * spent / total:6.2f} %  {name}")
    if asked.diagnose:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "torchdoctor", "diagnose", str(asked.trace)]
            path = Path(folder) / "report.json"
            subprocess.run([*command, "--output", str(path)], check=True, capture_output=True)
            own = json.loads(path.read_text())["baseline"]["shares"]
        apart = {name: abs(100 * (own.get(name) or 0.0) - share) for name, share in shares.items()}
        worst = max(apart, key=lambda name: apart[name])
        print(f"torchdoctor differs by at most {apart[worst]:.2f} points ({worst})")


if __name__ == "__main__":
    main()
