"""Valid files that the fuzzer damages: traces, reports, recordings, folders of runs and watches."""

from __future__ import annotations

import functools
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "tests"))
sys.path.append(str(Path(__file__).parent.parent / "tests" / "reports"))
sys.path.append(str(Path(__file__).parent.parent / "tests" / "recording"))
import distributed_traces
import partial_recordings
import run_folders
import synthetic_traces
import watched_folders
from samples import SAMPLES

from torchdoctor.schema import fact
from torchdoctor.schema.record_files import encode, write_record, write_recording
from torchdoctor.schema.watched import Alert
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Event, Process, Rows, Start

_LARGEST_RECORDED = 40_000  # bytes, compressed
_OF_EACH_CATEGORY = 40  # events of a recorded trace that are kept
START_UNIX_NS = 1_790_000_000_000_000_000
START_NS = 10**15
WATCHED_S = 120  # of the made-up watch
_STEP_NS = 400_000_000
GPU = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "totalGlobalMem": 8 << 33}


def recorded_folder() -> Path:
    """Return the folder of recorded traces, which need not be there."""
    from recorded_traces import FOLDER

    return FOLDER


@functools.cache
def traces() -> dict[str, Callable[[], Any]]:
    """Return by name what makes a small trace anew, as the object or list of its JSON."""
    job = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}
    known = {"deviceProperties": [GPU], "cuda_version": "12.4", "torch_version": "2.6.0"}
    made: dict[str, Callable[[], Any]] = {
        "every branch": lambda: synthetic_traces.every_branch(steps=3).document(**known),
        "of 2020": lambda: synthetic_traces.every_branch(steps=2, legacy=True).document(),
        "a list": lambda: synthetic_traces.every_branch(steps=2).events,
        "one of two ranks": lambda: distributed_traces.rank_trace().document(**known, **job),
        "sizes and stacks": lambda: _with_sizes().document(**known, **job),
        "host alone": lambda: _on_host().document(**job),
    }
    folder = recorded_folder()
    for path in sorted(folder.glob("*.json.gz")) if folder.is_dir() else []:
        if path.stat().st_size <= _LARGEST_RECORDED:
            made[path.name] = functools.partial(_recorded, path)
    return made


def _recorded(path: Path) -> Any:
    return json.loads(_excerpt(path))


@functools.cache
def _excerpt(path: Path) -> bytes:
    """Return a recorded trace with the first events of each category alone."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document if isinstance(document, list) else document["traceEvents"]
    kept: dict[str, list[Any]] = {}
    for event in events:
        kept.setdefault(str(event.get("cat")), []).append(event)
    short = [event for like in kept.values() for event in like[:_OF_EACH_CATEGORY]]
    return json.dumps(
        short if isinstance(document, list) else {**document, "traceEvents": short}
    ).encode()


def _with_sizes() -> synthetic_traces.TraceBuilder:
    """A step of products, convolutions and attention with their sizes, and frames of Python."""
    trace = synthetic_traces.TraceBuilder()
    calls = {
        "aten::mm": [[64, 32], [32, 16]],
        "aten::addmm": [[16], [64, 32], [32, 16]],
        "aten::linear": [[8, 64, 32], [16, 32], [16]],
        "aten::convolution": [[2, 3, 32, 32], [8, 3, 3, 3], [8]],
        "aten::convolution_backward": [[2, 8, 32, 32], [2, 3, 32, 32], [8, 3, 3, 3]],
        "aten::scaled_dot_product_attention": [[1, 2, 8, 16]] * 3,
        "torch::autograd::AccumulateGrad": [[64, 32]],
        "aten::add": [[64, 32], [64, 32], []],
        "aten::relu": [[64, 32]],
    }
    for number in range(3):
        at = number * 2000.0
        trace.step(number, at, at + 2000)
        trace.slice("user_annotation", synthetic_traces.LOADER, at, at + 100)
        trace.slice("python_function", "train.py(12): main", at, at + 1900)
        trace.slice("python_function", "torch/nn/modules/module.py(9): _call", at + 90, at + 1500)
        for place, (name, dims) in enumerate(calls.items()):
            begin = at + 110 + 150 * place
            operator = trace.operator(name, begin, begin + 140, dims=dims)
            operator["args"] |= {
                "Input type": ["float"] * len(dims),
                "Input Strides": [[1] * len(sizes) for sizes in dims],
                "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]"],
                "Call stack": "train.py(12): main;torch/nn/functional.py(3): f",
            }
            launch = trace.call("cudaLaunchKernel", begin + 10, begin + 20)
            kernel = "vectorized_elementwise_kernel" if place > 6 else "ampere_sgemm_128x64_nn"
            trace.kernel(kernel, begin + 30, begin + 120, launch)
        sizes = {"In msg nelems": 9000, "Out msg nelems": 9000, "dtype": "Float"}
        sizes["Process Group Ranks"] = "[0, 1]"
        launch = trace.call("cudaLaunchKernel", at + 1500, at + 1510)
        trace.kernel("ncclDevKernel_AllReduce_Sum", at + 1520, at + 1700, launch, **sizes)
        trace.call("cudaMalloc", at + 1710, at + 1740)
        trace.call("cudaStreamSynchronize", at + 1750, at + 1900)
        trace.operator("Optimizer.step#SGD.step", at + 1910, at + 1990)
    return trace


def _on_host() -> synthetic_traces.TraceBuilder:
    trace = synthetic_traces.TraceBuilder()
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for number in range(6):
        at = number * 1000.0
        trace.step(number, at, at + 1000)
        trace.slice("user_annotation", loader, at, at + (300 if number % 2 else 5))
        trace.operator("aten::mm", at + 310, at + 700, dims=[[64, 64], [64, 64]])
        trace.slice("user_annotation", "gloo:all_reduce", at + 700, at + 900, tid=7)
        trace.operator("Optimizer.step#SGD.step", at + 910, at + 990)
    return trace


def report(name: str) -> Any:
    """Return the JSON of a sample report."""
    return json.loads(encode(SAMPLES[name]()))


REPORTS = tuple(SAMPLES)


def write_run(folder: Path) -> None:
    """Write a run's folder with its report, recording, logs and traces."""
    folder.mkdir(parents=True)
    write_record(run_folders.report_with_run(folder), folder / "report.json")
    workload = {"command": SAMPLES["loader_bound"]().workload.command}
    recording = partial_recordings.recording({"workload": workload})
    write_recording(recording, folder / "recording.json")


def write_watch(folder: Path) -> None:
    """Write a watched run of two ranks, with machine, events and alerts."""
    inside = folder / "watch"
    for rank in range(2):
        process = Process(
            host="node",
            pid=100 + rank,
            start_ns=START_NS,
            start_unix_ns=START_UNIX_NS,
            rank=rank,
            world_size=2,
            backend="gloo",
            argv=["train.py"],
            torch="2.6.0",
            step_kind="loader",
            batch_size=8,
            num_workers=2,
        )
        events = [
            Event(t_ns=START_NS + 10**10, step=25, kind="evaluation", seconds=0.4),
            Event(t_ns=START_NS + 10**11, step=250, kind="checkpoint", text="m.pt", seconds=0.4),
        ]
        watched_folders.write_process(inside, process, _step_rows(), _process_rows(), events)
    command = ["python", "train.py"]
    start = Start(
        host="node",
        pid=1,
        command=command,
        cwd="/",
        start_ns=START_NS,
        start_unix_ns=START_UNIX_NS,
    )
    watched_folders.write_start(inside, start, _machine_rows())
    since_s = START_UNIX_NS / 1e9 + 90
    slower = fact("training-slower", slower=1.5, step=225, since_s=since_s, rank=0)
    grown = fact("nothing-else", phase="forward", before_s=0.1, after_s=0.2)
    alert = Alert(t_unix_s=since_s, step=225, kind="slower", fact=slower, why=grown, rank=0)
    (inside / "alerts-node.jsonl").write_bytes(msgspec.json.encode(alert) + b"\n")


def _step_rows() -> Rows:
    count = int(WATCHED_S * 1e9 / _STEP_NS)
    rows = watched_folders.empty_rows(count, layout.STEP_COLUMNS)
    rows["step"], rows["steps"] = np.arange(1, count + 1), 1
    rows["start_ns"] = START_NS + np.arange(count) * _STEP_NS
    for phase, share in (("wait", 0.3), ("forward", 0.2), ("backward", 0.4), ("optimizer", 0.1)):
        rows[phase] = share * _STEP_NS / 1e9
    rows["wait"][count * 3 // 4 :] *= 2
    rows["samples"], rows["elements"] = 8, 100
    rows["entry"], rows["exchanged"] = layout.coded(0.3), layout.coded(0.35)
    rows["flags"][:: count // 4] = layout.PASS_BEGAN
    return rows


def _process_rows() -> Rows:
    rows = watched_folders.empty_rows(WATCHED_S // 2, layout.PROCESS_COLUMNS)
    _clock(rows, 2)
    rows["step"] = np.arange(len(rows)) * 5
    for name in ("cpu_s", "queued_s", "rss_bytes", "read_bytes", "loss", "device_bytes"):
        rows[name] = 1.0 + np.arange(len(rows))
    return rows


def _machine_rows() -> Rows:
    rows = watched_folders.empty_rows(WATCHED_S // 5, layout.MACHINE_COLUMNS)
    _clock(rows, 5)
    for name, kind in layout.MACHINE_COLUMNS:
        if kind.startswith("<f"):
            rows[name] = 1.0 + np.arange(len(rows))
    rows["cpus"], rows["gpu_utilization"] = 8, 0.5
    return rows


def _clock(rows: Rows, every_s: int) -> None:
    passed_ns = np.arange(len(rows), dtype=np.int64) * every_s * 10**9
    rows["t_ns"], rows["unix_ns"] = START_NS + passed_ns, START_UNIX_NS + passed_ns


@functools.cache
def kept(kind: str, scratch: Path) -> Path:
    """Return a folder with a run or a watch in it, written once: to be copied."""
    folder = scratch / kind
    {"run": write_run, "watch": write_watch}[kind](folder)
    return folder
