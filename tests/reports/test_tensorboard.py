"""The event files say what the report says, also to a real TensorBoard server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from samples import SAMPLES
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchdoctor.errors import UsageError
from torchdoctor.records import Report, TraceStatistics
from torchdoctor.tensorboard_log.write import write_tensorboard


def measured() -> Report:
    """A sample report with measured trials and a trace."""
    report = next(r for r in (make() for make in SAMPLES.values()) if sum(
        t.speedup is not None for t in r.trials) >= 2)  # fmt: skip
    trace = TraceStatistics(path="gone.json", steps=3, step_times_s=[0.1, 0.2, 0.3])
    return replace(report, trace=trace, run_folder=None)


def runs(folder: Path) -> dict[str, EventAccumulator]:
    found = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        name = str(path.parent.relative_to(folder))
        found[name] = EventAccumulator(str(path.parent), size_guidance={"tensors": 0})
        found[name].Reload()
    return found


def scalar(run: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(e.step, float(e.tensor_proto.float_val[0])) for e in run.Tensors(tag)]


def test_scalars_text_and_trials_are_those_of_the_report(tmp_path: Path) -> None:
    report = measured()
    write_tensorboard(report, tmp_path)
    found = runs(tmp_path)
    [main] = [run for name, run in found.items() if name.endswith("run")]
    steps, seconds = zip(*scalar(main, "step_time/profiled_s"), strict=True)
    assert steps == (0, 1, 2)
    assert seconds == pytest.approx([0.1, 0.2, 0.3])
    assert report.baseline.step_time_s is not None
    [(_, median)] = scalar(main, "step_time/median_s")
    assert median == pytest.approx(report.baseline.step_time_s.median)
    shares = {n: s for n, s in vars(report.baseline.shares).items() if s is not None}
    tags = {tag for tag in main.Tags()["tensors"] if tag.startswith("share_of_step/")}
    assert tags == {f"share_of_step/{name}" for name in shares}
    text = main.Tensors("report")[0].tensor_proto.string_val[0].decode()
    assert "## torchdoctor" in text
    trials = [t for t in report.trials if t.speedup is not None]
    sessions = [run for name, run in found.items() if "/trials/" in name]
    assert len(sessions) == len(trials)
    shown = sorted(scalar(run, "speedup")[0][1] for run in sessions)
    wanted = sorted(t.speedup.estimate for t in trials if t.speedup)
    assert shown == pytest.approx(wanted)


def test_what_was_not_measured_is_no_point(tmp_path: Path) -> None:
    report = replace(measured(), trials=[], trace=None)
    report = replace(report, baseline=replace(report.baseline, samples_per_s=None))
    write_tensorboard(report, tmp_path)
    [main] = runs(tmp_path).values()
    assert "samples_per_s" not in main.Tags()["tensors"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--tensorboard"):
        write_tensorboard(measured(), tmp_path / "file")


@pytest.fixture
def server(tmp_path: Path):
    write_tensorboard(measured(), tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--host", "127.0.0.1", "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


def get(address: str, **data) -> dict:
    body = json.dumps(data).encode() if data else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
def test_a_real_server_shows_scalars_hparams_and_text(server: str) -> None:
    deadline = time.monotonic() + 60
    tags: dict = {}
    while time.monotonic() < deadline and not any("run" in name for name in tags):
        try:
            tags = get(f"{server}/data/plugin/scalars/tags")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    [run] = [name for name in tags if name.endswith("run")]
    assert "step_time/median_s" in tags[run]
    points = get(f"{server}/data/plugin/scalars/scalars?run={run}&tag=step_time/profiled_s")
    assert [step for _, step, _ in points] == [0, 1, 2]
    text = get(f"{server}/data/plugin/text/text?run={run}&tag=report")
    assert "torchdoctor" in text[0]["text"]
    experiment = get(f"{server}/data/plugin/hparams/experiment", experimentName="")
    names = {info["name"]["tag"] for info in experiment["metricInfos"]}
    assert {"speedup", "speedup_low", "speedup_high"} <= names
