"""How fast traces are diagnosed, against the floor and others, side by side in one run.

    python benchmarks/trace_speed.py [--mb 60 600 3000] [--gz-mb 50] [--rounds 3] [--skip HTA]
    python benchmarks/trace_speed.py --ranks 64 --mb 50   # a folder of ranks, and one file of it

For every size a trace is made from shifted copies of one real trace, and read by each reader in a
process of its own, in turns and every other round backwards, so that a disturbance of the machine
hits all of them alike:

- torchdoctor: the whole of `torchdoctor diagnose`, from the file to the printed report
- floor: msgspec's typed decode of the whole file, nothing else done with it
- json.loads: what most scripts do
- HTA: load by HolisticTraceAnalysis (PyPI traceinsight), in a virtual environment of its own, which
  is made for the run unless --hta-python names one; where it cannot be installed, that is said

Wall and CPU time are of the work inside the process, imports excluded; "process" is from its start
to its end. The ratio is the median over the rounds of the wall time against the floor's of the same
round. Memory is the peak resident size of the process and its children together, by the kernel's
own high-water mark where a reader has no children. Needs Linux, and disk for the largest trace.

With --ranks a folder of so many links to the trace is diagnosed beside the trace alone. The ratio
is its time over that of its files read alone, divided by the cores; that of CPU time, which the
cores share, also holds on a machine that has other work.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "h100_owlv2_data_loader.json.gz"


@dataclass(frozen=True)
class Reading:
    """One reading in a fresh process: seconds, and peak resident megabytes."""

    wall_s: float
    cpu_s: float
    process_s: float
    peak_mb: float


def content(path: Path) -> bytes:
    """The file's bytes, decompressed."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def floor_reader() -> Callable[[Path], object]:
    import msgspec

    def struct(title: str, /, **fields: tuple[object, object]) -> type:
        described = [(field, kind, default) for field, (kind, default) in fields.items()]
        return msgspec.defstruct(title, described, gc=False)

    number = int | None
    args = struct(
        "Args",
        correlation=(number, None),
        stream=(number, None),
        device=(number, None),
        bytes=(number, None),
    )
    event = struct(
        "Event",
        ph=(str, ""),
        cat=(str, ""),
        name=(str, ""),
        pid=(int | str, 0),
        tid=(int | str, 0),
        ts=(float, 0.0),
        dur=(float, 0.0),
        args=(args | None, None),
    )
    event_list = msgspec.defstruct(
        "Trace", [("events", list[event])], rename={"events": "traceEvents"}
    )
    decoder = msgspec.json.Decoder(event_list)
    return lambda path: decoder.decode(content(path))


def json_reader() -> Callable[[Path], object]:
    return lambda path: json.loads(content(path))


def torchdoctor_reader() -> Callable[[Path], object]:
    from torchdoctor.advice import catalogue
    from torchdoctor.cli.diagnose import diagnose
    from torchdoctor.reports import terminal  # noqa: F401  imports are not the reading
    from torchdoctor.runs.traces import trace_checkup  # noqa: F401

    catalogue.checks(), catalogue.fixes()

    def read(path: Path) -> object:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            diagnose([str(path)])
        return printed.getvalue()

    return read


def hta_reader() -> Callable[[Path], object]:
    from hta.common.trace import Trace

    def read(path: Path) -> object:
        trace = Trace(trace_files={0: str(path)}, trace_dir=str(path.parent))
        trace.parse_traces()
        return trace.get_trace(0)

    return read


# A reader is made before the clock runs: what it imports is not the reading.
READERS: dict[str, Callable[[], Callable[[Path], object]]] = {
    "torchdoctor": torchdoctor_reader,
    "floor": floor_reader,
    "json.loads": json_reader,
    "HTA": hta_reader,
}


def sample_trace() -> Path:
    """The real trace that the copies are made of."""
    folder = Path(os.environ.get("TORCHDOCTOR_TRACES", ROOT.parent / "shared" / "traces"))
    if not (folder / SAMPLE).exists():
        raise SystemExit(f"{SAMPLE} is not in {folder}; say where with TORCHDOCTOR_TRACES.")
    return folder / SAMPLE


def make_trace(target: Path, megabytes: float) -> None:
    """Copies of the sample, one after the other in time, each with its own correlation ids.

    `megabytes` is the size of the file, compressed where its name ends in .gz.
    """
    import msgspec

    trace = msgspec.json.decode(content(sample_trace()))
    events = trace.pop("traceEvents")
    times = [event["ts"] for event in events if event.get("ph") == "X"]
    span, ids, copy = int(max(times) - min(times)) + 2_000_000, 10_000_000, 0
    with target.open("wb") as raw:
        packed = target.suffix == ".gz"
        out = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6) if packed else raw
        out.write(msgspec.json.encode(trace)[:-1] + b',"traceEvents":[')
        while raw.tell() < megabytes * 1e6:
            if copy:
                shift(events, span, ids)
                out.write(b",")
            out.write(msgspec.json.encode(events)[1:-1])
            copy += 1
        out.write(b"]}")
        if packed:
            out.close()


def shift(events: list[dict], span: int, ids: int) -> None:
    """Moves a copy behind the one before it; its steps get the next numbers."""
    steps = sum(str(event.get("name")).startswith("ProfilerStep#") for event in events)
    for event in events:
        if "ts" in event:
            event["ts"] += span
        if "id" in event:
            event["id"] += ids
        if str(event.get("name")).startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'].rpartition('#')[2]) + steps}"
        args = event.get("args") or {}
        for key in ("correlation", "External id"):
            if key in args:
                args[key] += ids


def read_once(reader: str, path: Path) -> None:
    """Child side: reads, and says how long it took and how much memory it had."""
    read = READERS[reader]()
    before, cpu = time.perf_counter(), os.times()
    kept = read(path)
    wall, after = time.perf_counter() - before, os.times()
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    high = next(line for line in status if line.startswith("VmHWM"))
    del kept
    answer = {
        "wall_s": wall,
        "cpu_s": sum(after[:4]) - sum(cpu[:4]),
        "peak_mb": int(high.split()[1]) * 1024 / 1e6,
    }
    print(json.dumps(answer))


def measure(python: str, reader: str, path: Path, timeout_s: float) -> Reading | str:
    """One reading in a fresh process, or in one sentence why there is none."""
    import psutil

    command = [python, str(Path(__file__)), "--only", reader, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began, peak = time.perf_counter(), 0.0
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=said, stderr=errors, env=environment)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, resident_mb(watched))
            if time.perf_counter() - began > timeout_s:
                process.kill()
                process.wait()
                return f"not done within {timeout_s:.0f} s"
            time.sleep(0.02)
        whole = time.perf_counter() - began
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
            return f"exit code {process.returncode}: {last[:100]}"
        answer = json.loads(said.read().strip().splitlines()[-1])
    peak = max(peak, answer["peak_mb"])
    return Reading(answer["wall_s"], answer["cpu_s"], whole, peak)


def resident_mb(process: object) -> float:
    """Of a process and all below it, as far as they still exist."""
    import psutil

    assert isinstance(process, psutil.Process)
    total = 0
    with contextlib.suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            total += each.memory_info().rss
    return total / 1e6


def hta_python(folder: Path) -> str | None:
    """An interpreter that has HTA and nothing of ours; None (said) where it cannot be had."""
    print("Installing traceinsight (HTA) into a virtual environment of its own ...", flush=True)
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "-q", "traceinsight"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"HTA cannot be installed and is left out: {last}\n")
        return None
    return python


def main() -> None:
    arguments = parse_arguments()
    if arguments.only:
        read_once(arguments.only[0], Path(arguments.only[1]))
    elif arguments.make:
        make_trace(Path(arguments.make[0]), float(arguments.make[1]))
    elif arguments.ranks:
        sample_trace()
        compare_ranks(arguments.ranks, arguments.mb[0], arguments.rounds, arguments.folder)
    else:
        compare_all(arguments)


def compare_ranks(count: int, megabytes: float, rounds: int, within: Path | None) -> None:
    """Diagnoses a folder of ranks and one of its files in turns, and prints the ratios."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=within) as folder:
        first = Path(folder) / "rank-0.json"
        make = [sys.executable, __file__, "--make", str(first), str(megabytes)]
        subprocess.run(make, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        for number in range(1, count):
            (Path(folder) / f"rank-{number}.json").hardlink_to(first)
        print(f"{count} ranks of {first.stat().st_size / 1e6:.0f} MB on {cores} cores")
        print("| alone wall s | CPU s | folder wall s | CPU s | peak MB | to alone, wall | CPU |")
        print("|---|---|---|---|---|---|---|")
        for _ in range(rounds):
            one, all_ = (
                measure(sys.executable, "torchdoctor", path, 3600) for path in (first, Path(folder))
            )
            if isinstance(one, str) or isinstance(all_, str):
                raise SystemExit(f"Not read: {one if isinstance(one, str) else all_}")
            wall = all_.wall_s / (count * one.wall_s / cores)
            cpu = all_.cpu_s / (count * one.cpu_s)
            print(
                f"| {one.wall_s:.2f} | {one.cpu_s:.2f} | {all_.wall_s:.1f} | {all_.cpu_s:.1f} | "
                f"{all_.peak_mb:.0f} | {wall:.2f} | {cpu:.2f} |",
                flush=True,
            )


def compare_all(arguments: argparse.Namespace) -> None:
    """Makes each trace in turn and reads it with all readers."""
    sample_trace()
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        pythons = {name: sys.executable for name in READERS if name not in arguments.skip}
        if "HTA" in pythons:
            python = arguments.hta_python or hta_python(Path(folder) / "hta")
            pythons = {**pythons, "HTA": python} if python else pythons
            if not python:
                del pythons["HTA"]
        files = [(f"trace_{size:g}.json", size) for size in arguments.mb]
        files += [(f"trace_{size:g}.json.gz", size) for size in arguments.gz_mb]
        for name, size in files:
            path = Path(folder) / name
            # In a process of its own: the copies' objects would stay in this one's memory.
            make = [sys.executable, __file__, "--make", str(path), str(size)]
            subprocess.run(make, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
            results.append(compare(path, pythons, arguments.rounds, arguments.timeout))
            path.unlink()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, nargs="*", default=[60, 600, 3000])
    parser.add_argument("--gz-mb", type=float, nargs="*", default=[50], help="compressed size")
    parser.add_argument("--ranks", type=int, help="read a folder of so many traces of --mb")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", nargs="*", default=[], choices=list(READERS))
    parser.add_argument("--hta-python", help="an interpreter that has traceinsight")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one reading")
    parser.add_argument("--folder", type=Path, help="where the traces are made")
    parser.add_argument("--json", type=Path, help="also write every reading here")
    parser.add_argument("--only", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, metavar=("FILE", "MB"), help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(path: Path, pythons: dict[str, str], rounds: int, timeout_s: float) -> dict:
    """Reads one trace with all readers in turns, and prints a table."""
    found: dict[str, list[Reading]] = {name: [] for name in pythons}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name in list(pythons) if number % 2 == 0 else list(pythons)[::-1]:
            if name in failed:
                continue
            reading = measure(pythons[name], name, path, timeout_s)
            if isinstance(reading, str):
                failed[name] = reading
            else:
                found[name].append(reading)
    megabytes = path.stat().st_size / 1e6
    print(f"| {megabytes:.0f} MB{path.suffix} | wall s | CPU s | process s | peak MB | to floor |")
    print("|---|---|---|---|---|---|")
    for name, readings in found.items():
        if name in failed or not readings:
            print(f"| {name} | {failed.get(name, 'not run')} | | | | |")
            continue
        columns = zip(*(asdict(one).values() for one in readings), strict=True)
        wall, cpu, whole, peak = (statistics.median(column) for column in columns)
        ratio = to_floor(readings, found.get("floor", []))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {whole:.2f} | {peak:.0f} | {ratio} |")
    print(flush=True)
    every = {name: [asdict(one) for one in readings] for name, readings in found.items()}
    return {"megabytes": megabytes, "file": path.name, "readings": every, "failed": failed}


def to_floor(readings: list[Reading], floor: list[Reading]) -> str:
    """Median, lowest and highest over the rounds; each against the floor of the same round."""
    if len(floor) != len(readings):
        return "-"
    ratios = [one.wall_s / low.wall_s for one, low in zip(readings, floor, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
