"""`torchdoctor diagnose`: the right answer from traces, one sentence for what is none."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from compared_pairs import synthetic

from torchdoctor import catalogue
from torchdoctor.errors import UsageError
from torchdoctor.recording.trace_ranks import read_ranks
from torchdoctor.trace_checkup import _permanent, trace_checkup

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TORCHDOCTOR_TRACES", ROOT.parent / "shared" / "traces"))


def diagnose(*arguments: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli", "diagnose", *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        check=False,
        timeout=60,
        **more,
    )


# Truths that whoever recorded the trace, or its own figures, leave no doubt about.
TRUTHS = {
    "v100_resnet50_workers0": ("data_loader", "data-wait"),
    "v100_resnet50_workers4": ("gpu", None),
    "v100_resnet50_list_root": ("data_loader", None),
    "v100_memcpy_second": ("gpu", None),
    "a100_blocking_memcpy": ("memcpy", "pageable-copies"),
    "a100_cpu_bound_ddp": ("cpu", None),
    "h100_owlv2_data_loader": ("data_loader", "data-wait"),
    "h100_bert_launch_bound": ("cpu", "many-small-kernels"),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_recorded_traces_get_their_diagnosis(name: str) -> None:
    file = SHARED / f"{name}.json.gz"
    if not file.exists():
        pytest.skip(f"no recorded trace {file} (set TORCHDOCTOR_TRACES to their folder)")
    report = trace_checkup([str(file)])
    bottleneck, detail = TRUTHS[name]
    assert report.diagnosis.bottleneck == bottleneck
    assert detail in (None, report.diagnosis.detail)
    assert report.trials == []
    offered = [fix.fix for fix in report.recommendation.also_offered]
    assert "cpu-threads" not in offered
    assert all(fix.instruction for fix in report.recommendation.also_offered)
    if bottleneck == "data_loader":
        assert offered[0] == "loader-workers"


def write(folder: Path, name: str = "trace.json", trace=None, **metadata) -> Path:
    text = (trace or synthetic.every_branch()).text(**metadata)
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


@pytest.mark.parametrize("how", ["json", "json.gz", "stdin", "folder"])
def test_every_way_to_hand_over_a_trace_says_the_same(how: str, tmp_path: Path) -> None:
    suffix = "json.gz" if how == "json.gz" else "json"
    path = write(tmp_path, f"trace.{suffix}")
    argument = {"stdin": "-", "folder": str(tmp_path)}.get(how, str(path))
    out = tmp_path.parent / f"{tmp_path.name}-report.json"
    result = diagnose("--json", str(out), argument, input=path.read_bytes())
    assert result.returncode == 0, result.stderr
    report = json.loads(out.read_text())
    jsonschema.validate(report, json.loads((ROOT / "docs" / "report.schema.json").read_text()))
    assert report["baseline"]["shares"] == pytest.approx(synthetic.EVERY_BRANCH)
    assert report["baseline"]["step_time_s"]["median"] == pytest.approx(1e-3)
    assert report["trace"]["step_times_s"] == pytest.approx([1e-3] * 3)
    text = result.stdout.decode()
    assert "Nothing was tried" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_machine_is_the_traces_own_and_of_many_gpus_the_one_that_worked(tmp_path) -> None:
    cards = [
        {"id": i, "name": "NVIDIA B200", "totalGlobalMem": 192 << 30, "computeMajor": 10}
        for i in range(8)
    ]
    trace = synthetic.every_branch(device=5)
    report = trace_checkup([str(write(tmp_path, trace=trace, deviceProperties=cards))])
    assert [(gpu.index, gpu.name) for gpu in report.environment.gpus] == [(5, "NVIDIA B200")]
    assert report.environment.cpu == ""
    text = diagnose(str(tmp_path / "trace.json")).stdout.decode()
    assert "NVIDIA B200" in text
    assert "usable CPU" not in text


def test_ranks_are_told_apart_and_the_one_that_others_wait_for_is_shown(tmp_path: Path) -> None:
    for rank, busy in enumerate((300, 900, 310)):
        trace = synthetic.TraceBuilder()
        for number in range(4):
            at = 1000.0 * number
            trace.step(number, at, at + 1000)
            launch = trace.call("cudaLaunchKernel", at, at + 10)
            trace.kernel("ampere_sgemm_128x64_nn", at, at + busy, launch)
            reduce = trace.call("cudaLaunchKernel", at + 12, at + 20)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            trace.kernel(name, at + busy, at + 990, reduce, stream=20)
        information = {"backend": "nccl", "rank": rank, "world_size": 4}
        write(tmp_path, f"{2 - rank}.json", trace, distributedInfo=information)
    report = trace_checkup([str(tmp_path)])
    assert [row.rank for row in report.ranks] == [0, 1, 2]
    assert report.trace is not None
    assert Path(report.trace.path).name == "1.json"
    assert report.ranks[1].kernel_s == pytest.approx(900e-6)
    [straggler] = [f for f in report.diagnosis.findings if f.check == "rank-imbalance"]
    assert "rank 1" in straggler.evidence[0].lower()
    assert any("3 of 4 ranks" in doubt for doubt in report.doubts)
    assert "rank 1" in diagnose(str(tmp_path)).stdout.decode().lower()


def test_a_share_that_hides_the_pacemaker_is_a_doubt() -> None:
    """Kernels fill 70 % of this step, and the host that launches them would take as long alone."""
    file = SHARED / "v100_resnet50_workers4.json.gz"
    if not file.exists():
        pytest.skip(f"no recorded trace {file} (set TORCHDOCTOR_TRACES to their folder)")
    report = trace_checkup([str(file)])
    assert any("by replay" in doubt and "without cpu" in doubt for doubt in report.doubts)
    plain = trace_checkup([str(SHARED / "v100_resnet50_workers0.json.gz")])
    assert not any("by replay" in doubt for doubt in plain.doubts)


def test_without_steps_it_says_so_and_speaks_of_no_step(tmp_path: Path) -> None:
    trace = synthetic.every_branch()
    trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    report = trace_checkup([str(write(tmp_path, trace=trace))])
    assert report.baseline.step_time_s is None
    assert any("steps are unknown" in doubt for doubt in report.doubts)
    said = [report.diagnosis.sentence, *(x for f in report.diagnosis.findings for x in f.evidence)]
    assert not [text for text in said if "each step" in text or "a step" in text]


def test_a_trace_without_a_gpu_is_about_the_cpu(tmp_path: Path) -> None:
    trace = synthetic.TraceBuilder()
    for number in range(4):
        trace.step(number, 1000.0 * number, 1000.0 * number + 1000)
        trace.operator("aten::mm", 1000.0 * number, 1000.0 * number + 950)
    report = trace_checkup([str(write(tmp_path, trace=trace))])
    assert report.diagnosis.bottleneck == "cpu"
    assert any("no GPU events" in doubt for doubt in report.doubts)
    assert [q.answer for q in report.diagnosis.path if "GPU" in q.question] == ["no GPU"]


NO_TRACE = {
    "missing": None,
    "empty": b"",
    "blank": b" \n",
    "text": b"hello, this is a log file\n",
    "binary": bytes(range(256)) * 50,
    "other JSON": b'{"a": [1, 2, 3]}',
    "no events": b'{"schemaVersion": 1, "traceEvents": []}',
    "empty list": b"[]",
    "number": b"42",
    "damaged gzip": gzip.compress(b'{"traceEvents": [')[:12],
    "gzip of text": gzip.compress(b"not a trace"),
}


@pytest.mark.parametrize("kind", NO_TRACE)
def test_what_is_no_trace_is_one_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if NO_TRACE[kind] is not None:
        path.write_bytes(NO_TRACE[kind])
    result = diagnose(str(path))
    assert result.returncode == 2, result.stderr
    error = result.stderr.decode()
    assert error.startswith("torchdoctor: ")
    assert "file.json" in error
    assert len(error.strip().splitlines()) == 1


def test_folders_and_arguments_that_make_no_sense(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.json"):
        read_ranks([str(tmp_path / "empty")])
    path = str(write(tmp_path))
    with pytest.raises(UsageError, match="twice"):
        read_ranks([path, str(tmp_path)])
    with pytest.raises(UsageError, match="once"):
        read_ranks(["-", "-"])
    with pytest.raises(UsageError, match="at least one"):
        read_ranks([])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(share, suffix, tmp_path) -> None:
    path = write(tmp_path, f"trace.{suffix}", synthetic.every_branch(steps=200))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    report = trace_checkup([str(path)])
    assert any("cut off" in doubt for doubt in report.doubts)
    assert report.trace is not None
    assert 0 < report.trace.steps <= 200
    if report.trace.steps > 3:
        assert report.baseline.shares.gpu == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("seed", range(30))
def test_damage_never_ends_in_a_traceback(seed: int, tmp_path: Path) -> None:
    """Bytes overwritten, cut out and repeated: an answer, or one sentence."""
    rng = random.Random(seed)
    data = bytearray(synthetic.every_branch(steps=5).text(deviceProperties=[{"id": 0}]))
    for _ in range(rng.randint(1, 12)):
        at, length = rng.randrange(len(data)), rng.randint(1, 60)
        how = rng.randrange(3)
        if how == 0:
            data[at : at + length] = rng.randbytes(length)
        elif how == 1:
            del data[at : at + length]
        else:
            data[at:at] = data[at : at + length]
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    try:
        trace_checkup([str(path)])
    except UsageError as error:
        assert str(path) in str(error)


ODD = {
    "strings for numbers": {"dur": "12", "ts": "1700000000000000"},
    "null times": {"ts": None, "dur": None},
    "no name": {"name": None},
    "args are a list": {"args": [1, 2]},
    "negative duration": {"dur": -5},
    "huge": {"dur": 1e300},
    "thread is an object": {"tid": {"a": 1}},
}


@pytest.mark.parametrize("kind", ODD)
def test_events_of_odd_types_are_left_out(kind: str, tmp_path: Path) -> None:
    trace = synthetic.every_branch(steps=3)
    odd = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.7e15, "dur": 1}
    trace.events.insert(5, {**odd, **ODD[kind]})
    report = trace_checkup([str(write(tmp_path, trace=trace))])
    assert report.trace is not None
    assert report.trace.steps == 3


@pytest.mark.parametrize(
    "metadata",
    [
        {"deviceProperties": None},
        {"deviceProperties": {"id": 0}},
        {"deviceProperties": [None, 3, {"name": 5}]},
        {"distributedInfo": [1]},
        {"distributedInfo": {"rank": "zero", "world_size": None}},
    ],
)
def test_metadata_of_odd_types_is_ignored(metadata: dict, tmp_path: Path) -> None:
    report = trace_checkup([str(write(tmp_path, **metadata))])
    assert report.environment.gpus == []


def test_what_is_offered_suits_the_gpu_and_the_program() -> None:
    """No TF32 before its time, and no optimizer where only inference was recorded."""
    files = [
        SHARED / f"{name}.json.gz" for name in ("v100_resnet50_workers0", "h100_bert_launch_bound")
    ]
    if not all(file.exists() for file in files):
        pytest.skip("no recorded traces (set TORCHDOCTOR_TRACES to their folder)")
    v100, bert = (
        [f.fix for f in trace_checkup([str(file)]).recommendation.also_offered] for file in files
    )
    assert "channels-last" in v100 and "tf32" not in v100
    assert bert[0] == "torch-compile" and "fused-optimizer" not in bert


def test_the_report_says_the_mfu_or_why_there_is_none(tmp_path: Path) -> None:
    cards = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}]
    known = diagnose(str(write(tmp_path, "known.json", deviceProperties=cards))).stdout.decode()
    assert "of the dense peak of the A100 80GB SXM" in known
    cards[0]["name"] = "NVIDIA Unheard-of"
    other = diagnose(str(write(tmp_path, "other.json", deviceProperties=cards))).stdout.decode()
    assert "no data sheet figures for NVIDIA Unheard-of" in " ".join(other.split())
    trace = synthetic.every_branch()
    for event in trace.events:
        event.get("args", {}).pop("Input Dims", None)
    bare = diagnose(str(write(tmp_path, "bare.json", trace))).stdout.decode()
    assert "MFU: not measured" in " ".join(bare.split())
    assert "record_shapes=True" in bare


def test_code_that_is_offered_keeps_its_indentation() -> None:
    code = _permanent(catalogue.fixes()["decoded-cache"])
    assert "def __getitem__(self, index):\n    if " in code
