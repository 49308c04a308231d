"""How fast traces are read, against the floor: `python benchmarks/trace_speed.py [--mb 60 600]`.

For every size a trace is made from shifted copies of one real trace and read by each reader in
its own process, in turns, so that a disturbance of the machine hits all of them alike:

- floor: msgspec's typed decode of the whole file, nothing else done with it
- torchdoctor: the whole way from the file to the statistics
- json.loads: what most scripts do
- HTA: load by HolisticTraceAnalysis (PyPI traceinsight), where it is installed

Times are wall seconds of the work inside the process (imports excluded, named apart), memory is
the peak resident size of the process and of its own children together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
import psutil

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "h100_owlv2_data_loader.json.gz"


class FloorArgs(msgspec.Struct, gc=False):
    correlation: int | None = None
    stream: int | None = None
    device: int | None = None
    bytes: int | None = None


class FloorEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: FloorArgs | None = None


class FloorTrace(msgspec.Struct, rename={"events": "traceEvents"}):
    events: list[FloorEvent]


def read_floor(path: Path) -> int:
    return len(msgspec.json.decode(path.read_bytes(), type=FloorTrace).events)


def read_json(path: Path) -> int:
    return len(json.loads(path.read_bytes())["traceEvents"])


def read_torchdoctor(path: Path) -> int:
    from torchdoctor.recording.trace_summary import read_and_summarise

    return read_and_summarise([path])[0].steps


def read_hta(path: Path) -> int:
    from hta.common.trace import Trace

    trace = Trace(trace_files={0: str(path)}, trace_dir=str(path.parent))
    trace.parse_traces()
    return len(trace.get_trace(0))


READERS: dict[str, Callable[[Path], int]] = {
    "floor": read_floor,
    "torchdoctor": read_torchdoctor,
    "json.loads": read_json,
    "HTA": read_hta,
}


def sample_trace() -> Path:
    """The real trace that the copies are made of."""
    folder = Path(os.environ.get("TORCHDOCTOR_TRACES", ROOT.parent / "shared" / "traces"))
    if not (folder / SAMPLE).exists():
        raise SystemExit(f"{SAMPLE} is not in {folder}; say where with TORCHDOCTOR_TRACES.")
    return folder / SAMPLE


def make_trace(target: Path, megabytes: float) -> None:
    """Copies of the sample, one after the other in time, each with its own correlation ids."""
    import gzip

    with gzip.open(sample_trace()) as file:
        trace = msgspec.json.decode(file.read())
    events = trace.pop("traceEvents")
    times = [event["ts"] for event in events if event.get("ph") == "X"]
    span = int(max(times) - min(times)) + 2_000_000
    ids = 10_000_000
    copy = 0
    with target.open("wb") as out:
        out.write(msgspec.json.encode(trace)[:-1] + b',"traceEvents":[')
        while out.tell() < megabytes * 1e6:
            if copy:
                _shift(events, span, ids)
                out.write(b",")
            out.write(msgspec.json.encode(events)[1:-1])
            copy += 1
        out.write(b"]}")


def _shift(events: list[dict], span: int, ids: int) -> None:
    for event in events:
        if "ts" in event:
            event["ts"] += span
        if "id" in event:
            event["id"] += ids
        args = event.get("args") or {}
        for key in ("correlation", "External id"):
            if key in args:
                args[key] += ids


def measure(reader: str, path: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak resident MB of one reading in a fresh process."""
    command = [sys.executable, __file__, "--only", reader, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        peak = max(peak, _resident(watched))
        time.sleep(0.02)
    answer = json.loads(process.communicate()[0])
    return answer["wall_s"], answer["cpu_s"], peak / 1e6


def _resident(process: psutil.Process) -> int:
    total = 0
    try:
        for each in [process, *process.children(recursive=True)]:
            total += each.memory_info().rss
    except psutil.Error:
        pass
    return total


def read_once(reader: str, path: Path) -> None:
    """Child side: reads and says how long it took."""
    if reader == "torchdoctor":
        import torchdoctor.recording.trace_summary  # noqa: F401  imports are not the reading
    before, cpu = time.perf_counter(), os.times()
    READERS[reader](path)
    wall, after = time.perf_counter() - before, os.times()
    print(json.dumps({"wall_s": wall, "cpu_s": sum(after[:4]) - sum(cpu[:4])}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, nargs="+", default=[60, 600])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", nargs="*", default=[], choices=list(READERS))
    parser.add_argument("--only", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        read_once(arguments.only[0], Path(arguments.only[1]))
        return
    readers = [name for name in READERS if name not in arguments.skip]
    if "HTA" in readers and find_spec("hta") is None:
        print("HTA is not installed (pip install traceinsight): left out.\n")
        readers.remove("HTA")
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in arguments.mb:
            path = Path(folder) / f"trace_{megabytes:g}.json"
            make_trace(path, megabytes)
            _table(path, readers, arguments.rounds)
            path.unlink()


def _table(path: Path, readers: list[str], rounds: int) -> None:
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in readers}
    for number in range(rounds):
        for name in readers if number % 2 == 0 else readers[::-1]:
            results[name].append(measure(name, path))
    floor = statistics.median(wall for wall, _, _ in results["floor"]) if "floor" in results else 0
    print(f"| {path.stat().st_size / 1e6:.0f} MB | wall s | CPU s | peak MB | against the floor |")
    print("|---|---|---|---|---|")
    for name, runs in results.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        against = f"{wall / floor:.2f}" if floor else "-"
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {peak:.0f} | {against} |")
    print(flush=True)


if __name__ == "__main__":
    main()
