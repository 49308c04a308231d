"""`torchdoctor diagnose`: the right answer from traces, one sentence for what is none."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
from pathlib import Path

import commands
import jsonschema
import pytest
from compared_pairs import synthetic
from recorded_traces import report as recorded
from told_facts import answers, beware, facts_of, remarked

from torchdoctor.advice import catalogue
from torchdoctor.reports import wording
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import read_report
from torchdoctor.trace.ranks import read_ranks

ROOT = Path(__file__).parent.parent


def diagnose(*arguments: str, **more) -> subprocess.CompletedProcess:
    return commands.torchdoctor("diagnose", *arguments, text=False, **more)


# Truths that whoever recorded the trace, or its own figures, leave no doubt about.
TRUTHS = {
    "v100_resnet50_workers0": ("data_loader", "data-wait"),
    # Kernels fill 70 % of the step, and by replay it would be 1 % shorter without them.
    "v100_resnet50_workers4": ("cpu", None),
    "v100_resnet50_list_root": ("data_loader", None),
    "v100_memcpy_second": ("gpu", None),
    "a100_blocking_memcpy": ("memcpy", "memcpy-share"),
    "a100_cpu_bound_ddp": ("cpu", None),
    "h100_owlv2_data_loader": ("data_loader", "data-wait"),
    "h100_bert_launch_bound": ("cpu", "many-small-kernels"),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_recorded_traces_get_their_diagnosis(name: str) -> None:
    report = recorded(name)
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
    result = diagnose(argument, input=path.read_bytes())
    written = diagnose("--output", str(out), argument, input=path.read_bytes())
    assert result.returncode == written.returncode == 0, result.stderr
    assert written.stdout == b""
    report = json.loads(out.read_text())
    jsonschema.validate(report, json.loads((ROOT / "docs" / "report.schema.json").read_text()))
    assert report["baseline"]["shares"] == pytest.approx(synthetic.EVERY_BRANCH)
    assert report["baseline"]["step_time_s"]["median"] == pytest.approx(1e-3)
    assert report["trace"]["step_times_s"] == pytest.approx([1e-3] * 3)
    text = result.stdout.decode()
    assert wording.untried(read_report(out)) in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_machine_is_the_traces_own_and_of_many_gpus_the_one_that_worked(tmp_path) -> None:
    cards = [
        {"id": i, "name": "NVIDIA B200", "totalGlobalMem": 192 << 30, "computeMajor": 10}
        for i in range(8)
    ]
    trace = synthetic.every_branch(device=5)
    report = trace_checkup([str(write(tmp_path, trace=trace, deviceProperties=cards))])
    assert [(gpu.index, gpu.name) for gpu in report.environment.gpus] == [(5, "NVIDIA B200")]
    seen = report.environment
    unknown = (seen.python, seen.platform, seen.cpu, seen.cpu_cores, seen.usable_cpus)
    assert unknown == (None,) * 5
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
    assert facts_of(report, "rank-imbalance")["works"]["rank"] == 1
    assert remarked(report)["ranks-missing"] == {"traces": 3, "ranks": 4}
    assert "rank 1" in diagnose(str(tmp_path)).stdout.decode().lower()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("v100_resnet50_workers4", "torch-compile"),
        ("v100_memcpy_second", "mixed-precision"),
        # Many findings of one branch save no more than the branch.
        ("h100_owlv2_data_loader", "loader-workers"),
        ("h100_bert_launch_bound", "torch-compile"),
    ],
)
def test_what_could_save_most_by_replay_is_offered_first(name: str, first: str) -> None:
    report = recorded(name)
    assert report.trace is not None and report.trace.what_if is not None
    assert report.recommendation.also_offered[0].fix == first


def test_a_share_that_hides_the_pacemaker_is_said_in_the_verdict() -> None:
    """Kernels fill 70 % of this step, and the host that launches them would take as long alone."""
    replay = recorded("v100_resnet50_workers4").diagnosis.verdict.replay
    assert replay is not None and replay.is_limit
    assert (replay.branch, replay.best) == ("gpu", "cpu")
    assert recorded("v100_resnet50_workers0").diagnosis.verdict.replay is None


def test_without_steps_it_says_so_and_speaks_of_no_step(tmp_path: Path) -> None:
    trace = synthetic.every_branch()
    trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    report = trace_checkup([str(write(tmp_path, trace=trace))])
    assert report.baseline.step_time_s is None
    assert "steps-unknown" in remarked(report)
    said = [
        report.diagnosis.sentence,
        *(x.sentence for f in report.diagnosis.findings for x in f.evidence),
    ]
    assert not [text for text in said if re.search(r"\b([Ee]ach|a|a [\d.]+ ms) step\b", text)]


def test_a_trace_without_a_gpu_is_about_the_cpu(tmp_path: Path) -> None:
    trace = synthetic.TraceBuilder()
    for number in range(4):
        trace.step(number, 1000.0 * number, 1000.0 * number + 1000)
        trace.operator("aten::mm", 1000.0 * number, 1000.0 * number + 950)
    report = trace_checkup([str(write(tmp_path, trace=trace))])
    assert report.diagnosis.bottleneck == "cpu"
    assert "no-gpu-events" in remarked(report)
    assert answers(report.diagnosis)["gpu-utilization"] == "no GPU"


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


def a_rank(folder: Path, rank: int, suffix: str = "json") -> Path:
    information = {"backend": "nccl", "rank": rank, "world_size": 3}
    return write(folder, f"rank{rank}.{suffix}", distributedInfo=information)


def test_what_lies_beside_the_traces_of_a_folder_is_passed_over_and_named(tmp_path: Path) -> None:
    """Results are written where the traces are; they made the next diagnosis end in an error."""
    a_rank(tmp_path, 0)
    a_rank(tmp_path, 1)
    results = ["--output", str(tmp_path / "report.json")]
    results += ["--annotate", str(tmp_path / "annotated.json")]
    assert diagnose(*results, str(tmp_path)).returncode == 0
    (tmp_path / "config.json").write_text('{"batch_size": 8}')
    report = trace_checkup([str(tmp_path)])
    assert [row.rank for row in report.ranks] == [0, 1]
    told = remarked(report)
    assert told["file-annotated"] == {"path": str(tmp_path / "annotated.json")}
    assert str(tmp_path / "config.json") in told["file-left-out"]["reason"]
    assert not any("report.json" in doubt for doubt in report.doubts), "it is none of its traces"
    alone = trace_checkup([str(tmp_path / "annotated.json")])
    assert alone.trace is not None and alone.trace.steps == 3


BROKEN = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "damaged": lambda path: path.write_bytes(b"\x1f\x8b" + bytes(100)),
    "dangling": lambda path: (path.unlink(), path.symlink_to("nowhere.json")),
}


@pytest.mark.parametrize("how", BROKEN)
def test_one_broken_rank_leaves_the_others_their_diagnosis(how: str, tmp_path: Path) -> None:
    for rank in range(3):
        a_rank(tmp_path, rank)
    BROKEN[how](tmp_path / "rank1.json")
    report = trace_checkup([str(tmp_path)])
    assert [row.rank for row in report.ranks] == [0, 2]
    assert "rank1.json" in remarked(report)["file-left-out"]["reason"]
    assert remarked(report)["ranks-missing"] == {"traces": 2, "ranks": 3}


def test_a_broken_rank_among_large_ones_is_told_by_the_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchdoctor.trace.ranks._IN_PARALLEL_BYTES", 1)
    a_rank(tmp_path, 0)
    (tmp_path / "rank1.json").write_bytes(b"")
    traces, doubts = read_ranks([str(tmp_path)])
    assert [one.rank for one in traces] == [0]
    assert "rank1.json is empty" in doubts[str(tmp_path / "rank1.json")].values["reason"]


def left_out(folder: Path) -> list[str]:
    report = trace_checkup([str(folder)])
    [files] = [x.values["files"] for x in report.remarks if x.fact == "files-left-out"]
    return list(files)


def test_a_cut_trace_is_no_rank_that_others_wait_for(tmp_path: Path) -> None:
    """Of 8 equal ranks the one whose file was cut "works 28.1 ms of each step, the mean 7.9"."""
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        launch = trace.call("cudaLaunchKernel", at, at + 10)
        trace.kernel("ampere_sgemm_128x64_nn", at + 10, at + 300, launch)
        reduce = trace.call("cudaLaunchKernel", at + 12, at + 20)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 300, at + 990, reduce)
    # The profiler writes the device's events last: the cut one has lost its collectives.
    trace.events.sort(key=lambda event: "nccl" in event["name"])
    for rank in range(4):
        information = {"backend": "nccl", "rank": rank, "world_size": 4}
        path = write(tmp_path, f"rank{rank}.json", trace, distributedInfo=information)
        if rank != 2:
            continue
        document = json.loads(path.read_text())
        text = json.dumps({**information, "distributedInfo": information, **document})
        path.write_text(text[: text.index("ncclDevKernel")])
    report = trace_checkup([str(tmp_path)])
    assert [row.rank for row in report.ranks] == [0, 1, 3]
    assert report.trace is not None and not report.trace.path.endswith("rank2.json")
    assert "rank-imbalance" not in [finding.check for finding in report.diagnosis.findings]
    assert "file-cut-off" in [remark.fact for remark in report.remarks]
    (tmp_path / "rank1.json").write_text("")
    assert sorted(left_out(tmp_path)) == ["rank1.json", "rank2.json"]
    assert "rank1.json, rank2.json" in diagnose(str(tmp_path)).stdout.decode()
    for rank in (0, 3):  # no whole one is there: the shares are of what was read furthest
        (tmp_path / f"rank{rank}.json").write_bytes((tmp_path / "rank2.json").read_bytes()[:-900])
    report = trace_checkup([str(tmp_path)])
    assert report.ranks == []
    assert report.trace is not None and report.trace.path.endswith("rank2.json")


def test_a_trace_without_a_rank_gets_none_that_another_has(tmp_path: Path) -> None:
    for name, information in (("a", {"rank": 1}), ("b", {"rank": 2}), ("c", {})):
        write(tmp_path, f"{name}.json", distributedInfo=information)
    assert [row.rank for row in trace_checkup([str(tmp_path)]).ranks] == [1, 2]
    assert left_out(tmp_path) == ["c.json"]


def test_a_folder_without_a_single_trace_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"schema_version": "1.0"}')
    (tmp_path / "rank0.json").write_text("")
    result = diagnose(str(tmp_path))
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr.decode()
    assert len(result.stderr.decode().strip().splitlines()) == 1


def test_windows_of_one_program_are_not_compared_as_ranks(tmp_path: Path) -> None:
    """tensorboard_trace_handler writes a file for each cycle of its schedule."""
    for number, step in enumerate((1000.0, 2000.0)):
        trace = synthetic.every_branch(step=step)
        trace.events = [e for e in trace.events if "nccl" not in e["name"]]
        write(tmp_path, f"host_17.{number}.pt.trace.json", trace)
    report = trace_checkup([str(tmp_path)])
    assert report.ranks == []
    assert not [f for f in report.diagnosis.findings if f.check == "rank-imbalance"]
    assert remarked(report)["separate-recordings"] == {
        "traces": 2,
        "file": "host_17.1.pt.trace.json",
    }


def test_the_slow_rank_is_told_by_what_it_takes_longer_for(tmp_path: Path) -> None:
    """All ranks waited for data nearly alike, and that was named as what slowed the one."""
    for rank, (data, host) in enumerate(((500, 10), (509, 300), (500, 10))):
        trace = synthetic.TraceBuilder()
        for number in range(4):
            at = 1000.0 * number
            trace.step(number, at, at + 1000)
            trace.slice("user_annotation", synthetic.LOADER, at, at + data)
            trace.operator("aten::index", at + data, at + data + host)
            begin = at + data + host
            launch = trace.call("cudaLaunchKernel", begin, begin + 2)
            trace.kernel("ampere_sgemm_128x64_nn", begin + 2, begin + 50, launch)
            reduce = trace.call("cudaLaunchKernel", begin + 3, begin + 5)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            trace.kernel(name, begin + 50, at + 990, reduce, stream=20)
        information = {"backend": "nccl", "rank": rank, "world_size": 3}
        write(tmp_path, f"{rank}.json", trace, distributedInfo=information)
    told = facts_of(trace_checkup([str(tmp_path)]), "rank-imbalance")
    assert told["works"]["rank"] == 1
    assert [part["seconds"] for part in told["longer"]["parts"]] == pytest.approx([290e-6, 9e-6])
    assert set(told) == {"works", "longer", "last"}


def test_that_a_trace_from_the_standard_input_is_not_copied_is_said(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    path, logs = write(tmp_path), tmp_path / "logs"
    piped = diagnose("-", "--tensorboard", str(logs), input=path.read_bytes())
    assert piped.returncode == 0, piped.stderr
    assert "standard input" in piped.stderr.decode()
    assert not list(logs.rglob("*.pt.trace.json"))
    named = diagnose(str(path), "--tensorboard", str(logs))
    assert "standard input" not in named.stderr.decode()
    assert list(logs.rglob("*.pt.trace.json"))


@pytest.mark.parametrize("how", ["json", "json.gz", "stdin", "folder"])
def test_a_byte_order_mark_is_transparent(how: str, tmp_path: Path) -> None:
    cards = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}]
    data = b"\xef\xbb\xbf" + synthetic.every_branch().text(deviceProperties=cards)
    path = tmp_path / ("trace.json.gz" if how == "json.gz" else "trace.json")
    path.write_bytes(gzip.compress(data) if how == "json.gz" else data)
    argument = {"stdin": "-", "folder": str(tmp_path)}.get(how, str(path))
    result = diagnose(argument, input=path.read_bytes())
    assert result.returncode == 0, result.stderr
    assert "A100-SXM4-80GB" in result.stdout.decode()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(share, suffix, tmp_path) -> None:
    path = write(tmp_path, f"trace.{suffix}", synthetic.every_branch(steps=200))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    report = trace_checkup([str(path)])
    cut = {"file-ends-early", "file-ends-within-event", "file-ends-in-compression"}
    assert cut & beware(report), "the first screen says so"
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
    v100, bert = (
        [fix.fix for fix in recorded(name).recommendation.also_offered]
        for name in ("v100_resnet50_workers0", "h100_bert_launch_bound")
    )
    assert {"channels-last", "mixed-precision"} < set(v100) and "tf32" not in v100
    assert bert[0] == "torch-compile" and "fused-optimizer" not in bert


CARDS = {
    "Tesla P100": (6, 0, None),
    "Tesla V100-SXM2-16GB": (7, 0, "float16"),
    "Tesla T4": (7, 5, "float16"),
    "NVIDIA A100-SXM4-80GB": (8, 0, "bfloat16"),
}


@pytest.mark.parametrize("name", CARDS)
def test_low_precision_is_offered_in_what_the_tensor_cores_multiply(name, tmp_path: Path) -> None:
    """float16 needs a gradient scaler; a V100 has no bfloat16, a P100 no tensor cores."""
    major, minor, dtype = CARDS[name]
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        trace.operator("MmBackward0", at, at + 20)
        launch = trace.call("cudaLaunchKernel", at + 5, at + 15)
        trace.kernel("volta_sgemm_128x64_nn", at + 15, at + 900, launch)
        trace.call("cudaDeviceSynchronize", at + 20, at + 900)
    cards = [{"id": 0, "name": name, "computeMajor": major, "computeMinor": minor}]
    report = trace_checkup([str(write(tmp_path, trace=trace, deviceProperties=cards))])
    code = {fix.fix: fix.instruction for fix in report.recommendation.also_offered}
    idle = [f for f in report.diagnosis.findings if f.check == "tensor-cores-unused"]
    assert ("mixed-precision" in code) == bool(idle) == (dtype is not None)
    if dtype is None:
        return
    assert report.diagnosis.detail == "tensor-cores-unused"
    assert idle[0].share_of_step == pytest.approx(0.885)
    assert f"dtype=torch.{dtype}" in code["mixed-precision"]
    assert ("GradScaler" in code["mixed-precision"]) == (dtype == "float16")
    assert ("tf32" in code) == (major >= 8)


def test_what_waits_for_the_gpu_is_not_among_the_most_expensive_on_it(tmp_path: Path) -> None:
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        trace.operator("aten::mm", at, at + 20)
        launch = trace.call("cudaLaunchKernel", at + 5, at + 15)
        trace.kernel("ampere_sgemm_128x64_nn", at + 15, at + 900, launch)
        trace.operator("aten::_local_scalar_dense", at + 20, at + 910)
        trace.call("cudaStreamSynchronize", at + 22, at + 905)
    report = trace_checkup([str(write(tmp_path, trace=trace))])
    [found] = [f for f in report.diagnosis.findings if f.check == "compute"]
    assert "ampere_sgemm_128x64_nn (88%)" in found.evidence[0].sentence
    assert "_local_scalar" not in " ".join(fact.sentence for fact in found.evidence)


def test_double_precision_gets_no_advice_of_16_bits(tmp_path: Path) -> None:
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        launch = trace.call("cudaLaunchKernel", at + 5, at + 15)
        trace.kernel("volta_dgemm_128x64_nn", at + 15, at + 900, launch)
    cards = [{"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0}]
    report = trace_checkup([str(write(tmp_path, trace=trace, deviceProperties=cards))])
    assert "tensor-cores-unused" not in [f.check for f in report.diagnosis.findings]


def test_the_report_says_the_mfu_or_why_there_is_none(tmp_path: Path) -> None:
    def details(name: str, *trace: synthetic.TraceBuilder, **metadata: object) -> str:
        path = str(write(tmp_path, name, *trace, **metadata))
        return " ".join(diagnose("--details", path).stdout.decode().split())

    cards = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}]
    known = details("known.json", deviceProperties=cards)
    assert "A100 80GB SXM" in known
    cards[0]["name"] = "NVIDIA Unheard-of"
    other = details("other.json", deviceProperties=cards)
    assert "NVIDIA Unheard-of" in other.partition("MFU: ")[2]
    trace = synthetic.every_branch()
    for event in trace.events:
        event.get("args", {}).pop("Input Dims", None)
    bare = details("bare.json", trace)
    assert "MFU: not measured" in bare
    assert "record_shapes=True" in bare


def test_code_that_is_offered_keeps_its_indentation() -> None:
    code = catalogue.fixes()["decoded-cache"].permanent_form
    body = code[code.index("def __getitem__") :].splitlines()[1:]
    assert body[0].startswith("    ") and any(line.startswith(" " * 8) for line in body)


def test_an_idle_gpu_is_offered_only_what_ends_the_wait_that_explains_it() -> None:
    """Driver calls for memory were 89 % of a trace, and a compiled model "3.01x at most"."""
    offered = [fix.fix for fix in recorded("mi300_no_pool").recommendation.also_offered]
    assert offered and "torch-compile" not in offered
