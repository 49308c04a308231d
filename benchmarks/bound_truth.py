"""Work out what fixes can gain at most in a trace, without a line of torchdoctor's own.

    python benchmarks/bound_truth.py TRACE.json[.gz] ... [--diagnose]

For each fix: the time in which anything that it works on runs, on the host or the device, less what
is left in its place, as a speed-up of the step. What the device does beside stays, so it takes that
much at least. With --diagnose the bound that torchdoctor prints stands beside it: it may be lower,
where a replay shows that other work hides the cost, and must not be higher by more than a tenth.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

from trace_truth import COLLECTIVE, Span, events_of, kind_of, length_in, merged, steps_of

MATRIX = re.compile(
    r"gemm(?!_gpu)|matmul|bmm_|cijk|xmma|cutlass|conv(?!ert)|wgrad|dgrad|fprop|scudnn|winograd|fmha"
    r"|flash|attn_|nvjet|triton_tem",
    re.I,
)
HELPS = re.compile(
    r"elementwise|reduce|softmax|norm|bn_[fb]w|im2col|col2im|nchwTo|nhwcTo|splitK|Offsets|copy",
    re.I,
)
CONVOLUTION = re.compile(r"aten::\w*conv(?!ert)")
RANDOM = re.compile(r"aten::_?(?:rand|normal|uniform|bernoulli|exponential)")
PRODUCT = re.compile(r"aten::.*(?:conv(?!ert)|mm(?:_|$)|linear|matmul|attention|lstm|gru)")
STAYS = re.compile(r"aten::(?:to|_to_copy|copy_|_?empty|item|_local_scalar)")
ATTENTION = re.compile(r"aten::(?:_softmax|bmm|baddbmm)$|(?<!log)_softmax_back")
ALLOCATES = re.compile(r"(?:cuda|hip)(?:Malloc|Free)(?!.*(?:Host|Async))|cuMem(?:Create|Map|Unmap)")
WAITS = re.compile(r"Synchronize|Memcpy")
PCIE = {"V100": 15.75, "T4": 15.75, "GP100": 15.75, "2080": 15.75, "A100": 31.5}  # GB/s, one way
TENSOR = {"V100": 8.0, "T4": 8.0, "A100": 16.0, "H100": 15.0}  # 16 bits over float32, by sheets
LINK, LARGE_US, GAP_US = 0.85, 50.0, 500.0


def span(event: dict) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def without(spans: list[Span], others: list[Span]) -> list[Span]:
    """Return what of `spans` lies outside `others`; both merged."""
    left, place = [], 0
    for start, end in spans:
        while place < len(others) and others[place][1] <= start:
            place += 1
        at, number = start, place
        while number < len(others) and others[number][0] < end:
            if others[number][0] > at:
                left.append((at, others[number][0]))
            at = max(at, others[number][1])
            number += 1
        if at < end:
            left.append((at, end))
    return left


class Ranges:
    """Ranges of each thread; `hold` says whether one is open at a time."""

    def __init__(self, events: list[dict]) -> None:
        spans: dict[object, list[Span]] = defaultdict(list)
        for event in events:
            spans[event.get("tid")].append(span(event))
        self.spans = {thread: merged(own) for thread, own in spans.items()}
        self.starts = {thread: [s for s, _ in own] for thread, own in self.spans.items()}

    def hold(self, thread: object, time: float) -> bool:
        place = bisect_right(self.starts.get(thread, []), time) - 1
        return place >= 0 and time < self.spans[thread][place][1]

    def all(self) -> list[Span]:
        return merged([one for own in self.spans.values() for one in own])


class Recorded:
    """One trace, sorted into what its events are."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        root = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        devices = root.get("deviceProperties") or [] if isinstance(root, dict) else []
        self.gpu = str(devices[0].get("name")) if devices else ""
        events = events_of(path)
        self.of = defaultdict(list)
        for event in events:
            self.of[kind_of(event)].append(event)
        begin = self._after_start_up()
        self.steps = steps_of(events, begin)
        self.total = sum(end - start for start, end in self.steps)
        self.calls = {
            e["args"]["correlation"]: e
            for e in self.of["runtime"]
            if "correlation" in e.get("args", {})
        }
        self.device = [
            e for k in ("kernel", "communication", "memcpy", "memset") for e in self.of[k]
        ]
        self.operators = [e for e in self.of["cpu"] if not str(e["name"]).startswith("Optimizer.")]
        self.optimizer = [e for e in self.of["cpu"] if e["name"].startswith("Optimizer.step")]

    def _after_start_up(self) -> float:
        """Return the end of the calls of over 50 ms while the device idles: code is loaded."""
        long = [e for e in self.of["runtime"] if e["dur"] > 5e4 and not WAITS.search(e["name"])]
        busy = merged([span(e) for k in ("kernel", "memcpy") for e in self.of[k]])
        ends = [span(e)[1] for e in long if length_in(busy, [span(e)]) < 0.1 * e["dur"]]
        return max(ends, default=-1.0) if not any("ProfilerStep" in e["name"] for e in long) else -1

    def launched_in(self, ranges: Ranges, events: list[dict]) -> list[dict]:
        found = []
        for event in events:
            call = self.calls.get(event.get("args", {}).get("correlation"))
            if call is not None and ranges.hold(call.get("tid"), float(call["ts"])):
                found.append(event)
        return found

    def within(self, spans: list[Span]) -> float:
        return length_in(merged(spans), self.steps)

    def gain(self, rows: list[dict], host: list[Span] = (), remains_us: float = 0.0) -> float:
        """Return the speed-up without these device events and times of the host."""
        own = {id(row) for row in rows}
        beside = self.within([span(e) for e in self.device if id(e) not in own])
        saved = min(self.within([*map(span, rows), *host]) - remains_us, self.total - beside)
        return self.total / max(self.total - max(saved, 0.0), 0.02 * self.total)


def outermost(events: list[dict], wanted: re.Pattern[str]) -> list[dict]:
    return [e for e in events if wanted.match(e["name"])]


def is_flat(event: dict) -> bool:
    if "conv1d" in event["name"]:
        return True
    shapes = (
        event.get("args", {}).get("Input Dims") or event.get("args", {}).get("Input dims") or []
    )
    image = next((s for s in shapes if isinstance(s, list) and len(s) > 2), [])
    return bool(image) and sum(side > 1 for side in image[2:]) <= 1


def longest_of_runs(trace: Recorded, rows: list[dict]) -> float:
    """Return the us of the longest of each run of these kernels on a stream."""
    own = {id(row) for row in rows}
    streams: dict[object, list[dict]] = defaultdict(list)
    for event in trace.device:
        if length_in([span(event)], trace.steps) > 0:
            streams[event.get("args", {}).get("stream", event.get("tid"))].append(event)
    total = longest = 0.0
    for events in streams.values():
        for event in sorted(events, key=lambda e: float(e["ts"])):
            if id(event) in own:
                longest = max(longest, float(event["dur"]))
            else:
                total, longest = total + longest, 0.0
        total, longest = total + longest, 0.0
    return total


def handed_out(trace: Recorded) -> list[Span]:
    """Return when the host only hands work out: operators that launch, small ones, short gaps."""
    operators = trace.operators
    launching = defaultdict(list)
    for event in trace.of["runtime"]:
        if "Launch" in event["name"] or "Memcpy" in event["name"] or "Memset" in event["name"]:
            launching[event.get("tid")].append(float(event["ts"]))
    for own in launching.values():
        own.sort()
    computing = []
    for event in leaves(operators):
        start, end = span(event)
        own = launching.get(event.get("tid"), [])
        if end - start >= LARGE_US and bisect_right(own, end) == bisect_right(own, start):
            computing.append((start, end))
    covered = merged([span(e) for kind in ("cpu", "runtime", "loader") for e in trace.of[kind]])
    gaps = [(a[1], b[0]) for a, b in itertools.pairwise(covered)]
    short = [gap for gap in gaps if 0 < gap[1] - gap[0] < GAP_US]
    waits = [
        e for e in trace.of["runtime"] if WAITS.search(e["name"]) or ALLOCATES.match(e["name"])
    ]
    aside = [e for e in trace.of["cpu"] if e["name"].startswith("Optimizer.")]
    away = merged([*computing, *map(span, [*waits, *aside, *trace.of["loader"]])])
    return without(merged([*map(span, operators), *short]), away)


def leaves(operators: list[dict]) -> list[dict]:
    """Return the operators that call no other."""
    by_thread = defaultdict(list)
    for event in operators:
        by_thread[event.get("tid")].append(event)
    found = []
    for own in by_thread.values():
        own.sort(key=lambda e: (float(e["ts"]), -float(e["dur"])))
        for event, after in zip(own, [*own[1:], None], strict=True):
            if after is None or float(after["ts"]) >= span(event)[1]:
                found.append(event)
    return found


def gains(trace: Recorded) -> dict[str, float]:
    """Return the most that each fix gains."""
    of, busy = trace.of, merged([span(e) for e in trace.device])
    loading = [span(e) for e in of["loader"]]
    result = {"loader-workers": trace.gain([], loading)}
    optimizer = Ranges(trace.optimizer)
    updates = trace.launched_in(optimizer, trace.device)
    result["fused-optimizer"] = trace.gain(updates, optimizer.all())
    convolving = outermost(trace.operators, CONVOLUTION)
    flat = [e for e in convolving if is_flat(e)]
    in_flat = Ranges(flat)
    images = [e for e in convolving if not in_flat.hold(e.get("tid"), float(e["ts"]))]
    if not trace.device:
        result["channels-last"] = trace.gain([], [span(e) for e in images])
        result["cpu-bfloat16-products"] = trace.gain(
            [], [span(e) for e in outermost(trace.operators, PRODUCT)]
        )
        fused = [
            e
            for e in leaves(trace.operators)
            if not any(p.match(e["name"]) for p in (PRODUCT, RANDOM, STAYS))
        ]
        stays = merged([span(e) for p in (PRODUCT, RANDOM) for e in outermost(trace.operators, p)])
        result["use-the-gpu"] = result["cpu-threads"] = trace.gain(
            [], [span(e) for e in trace.operators]
        )
        spent = merged([*map(span, fused), *handed_out(trace)])
        result["torch-compile"] = trace.gain([], without(spent, stays))
        return result
    kernels = [e for e in of["kernel"] if not COLLECTIVE.search(e["name"])]
    result["channels-last"] = trace.gain(trace.launched_in(Ranges(images), kernels))
    result["cudnn-benchmark"] = trace.gain(trace.launched_in(Ranges(convolving), kernels))
    result["attention"] = trace.gain(_innermost(trace, ATTENTION, kernels))
    result["allocator"] = trace.gain(
        [], [span(e) for e in of["runtime"] if ALLOCATES.match(e["name"])]
    )
    products = [e for e in kernels if MATRIX.search(e["name"]) and not HELPS.search(e["name"])]
    chosen = {id(e) for e in products}
    chosen |= {id(e) for e in updates}
    rest = [e for e in kernels if id(e) not in chosen]
    torch_own = Ranges([e for e in trace.operators if re.match("aten::|torch::", e["name"])])
    rest = trace.launched_in(torch_own, rest)
    draws = outermost(trace.operators, RANDOM)
    drawn = Ranges(draws).all()
    launches = [e for e in of["runtime"] if "Launch" in e["name"] and "Graph" not in e["name"]]
    called = merged([*handed_out(trace), *without(merged(map(span, launches)), optimizer.all())])
    result["cuda-graphs"] = trace.gain([], called)
    result["nccl-backend"] = trace.gain(of["communication"])
    starting = defaultdict(list)
    for event in launches:
        starting[event.get("tid")].append(float(event["ts"]))
    on_host = [e for e in draws if not _holds(sorted(starting[e.get("tid")]), span(e))]
    to_device = [e for e in of["memcpy"] if re.search(r"HtoD|HostToDevice", e["name"])]
    if on_host:
        given = [trace.calls.get(e.get("args", {}).get("correlation")) for e in to_device]
        held_by = [*map(span, on_host), *(span(c) for c in given if c)]
        result["tensor-on-device"] = trace.gain(to_device, held_by)
    biases = re.compile(r"elementwise|reduce_kernel|bias", re.I)
    convolved = trace.launched_in(Ranges(convolving), kernels)
    result["conv-bias-off"] = trace.gain([e for e in convolved if biases.search(e["name"])])
    handed = without(handed_out(trace), drawn)
    result["torch-compile"] = trace.gain(rest, handed, longest_of_runs(trace, rest))
    ratio = next((x for name, x in TENSOR.items() if name in trace.gpu), 16.0)
    single = [
        e for e in products if re.search(r"sgemm|scudnn|<float|f32f32_f32f32|_fp32", e["name"])
    ]
    halved = trace.within([span(e) for e in rest]) / 2
    left = trace.within([span(e) for e in single]) / ratio + halved
    result["mixed-precision"] = trace.gain([*single, *rest], [], left)
    result["tf32"] = trace.gain(single, [], trace.within([span(e) for e in single]) / 8)
    for fix, pattern in (("pin-memory", r"ageable"), ("device-prefetch", r"HtoD|HostToDevice")):
        copies = [e for e in of["memcpy"] if re.search(pattern, e["name"])]
        if fix == "pin-memory" and loading:
            copies = [e for e in copies if "HtoD" in e["name"]]
        calls = [trace.calls.get(e.get("args", {}).get("correlation")) for e in copies]
        own = {id(e) for e in copies}
        others = merged([span(e) for e in trace.device if id(e) not in own])
        held = without(merged([span(c) for c in calls if c]), others)
        moved = sum(e.get("args", {}).get("bytes", 0) for e in copies)
        link = next((x for name, x in PCIE.items() if name in trace.gpu), 63.0) * LINK * 1e3
        result[fix] = trace.gain(copies, held, moved / link if fix == "pin-memory" else 0.0)
    waits = [span(e) for e in of["runtime"] if WAITS.search(e["name"])]
    given = [span(e) for e in of["runtime"] if ALLOCATES.match(e["name"])]
    result["remove-sync"] = trace.gain([], [*without(merged(waits), busy), *given])
    return result


def _holds(times: list[float], wanted: Span) -> bool:
    return bisect_right(times, wanted[1]) > bisect_right(times, wanted[0])


def _innermost(trace: Recorded, wanted: re.Pattern[str], kernels: list[dict]) -> list[dict]:
    """Return the kernels that leaf operators of such a name launched."""
    return trace.launched_in(Ranges(outermost(leaves(trace.operators), wanted)), kernels)


def printed(path: Path) -> dict[str, tuple[float | None, str]]:
    """Return the bound that torchdoctor prints beside each fix, and what it rests on."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command = [sys.executable, "-m", "torchdoctor", "diagnose", str(path), "--output", target]
        subprocess.run(command, capture_output=True, check=True)
        report = json.loads(target.read_text(encoding="utf-8"))
    offered = report["recommendation"]["also_offered"]
    bounds = {fix["fix"]: fix.get("bound") or {} for fix in offered}
    return {fix: (bound.get("speedup"), bound.get("by", "")) for fix, bound in bounds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--diagnose", action="store_true")
    asked = parser.parse_args()
    for path in asked.traces:
        truth = gains(Recorded(path))
        name = path.name.partition(".")[0]
        if not asked.diagnose:
            shown = sorted(truth.items(), key=lambda row: -row[1])
            print(name, ", ".join(f"{fix} {gain:.2f}x" for fix, gain in shown if gain >= 1.01))
            continue
        for fix, (bound, by) in printed(path).items():
            own = truth.get(fix)
            beyond = " HIGHER" if bound and own and bound > 1.1 * own else ""
            says = f"{bound:.2f}x by {by}" if bound else "no figure"
            print(f"{name:28} {fix:22} {says:18} {f'{own:.2f}x' if own else '-'}{beyond}")


if __name__ == "__main__":
    main()
