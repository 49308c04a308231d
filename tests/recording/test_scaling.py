"""What more GPUs would give: the model's figures, what they rest on, and what is not said."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from distributed_traces import rank_trace, text
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.queries.scaling import TITLE, Step, scaling, scaling_lines
from torchdoctor.reports.formats import rendered
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import PredictedSpeedup, Report, Scaling, ScalingRow

STEP = Step(gradient_bytes=1e9, last_bytes=1e8, alone_s=0.3, backward_s=0.1)


def test_a_ring_moves_more_the_more_gpus_there_are() -> None:
    assert STEP.all_reduce_s(2, 1e10) == pytest.approx(0.1)
    assert STEP.all_reduce_s(8, 1e10) == pytest.approx(0.175)


def test_the_backward_pass_hides_all_but_the_last_bucket() -> None:
    # 100 ms of exchange, of which 10 ms begin when the backward pass of 100 ms is over.
    assert STEP.exposed_ddp_s(2, 1e10) == pytest.approx(0.01)
    # 400 ms: 360 ms while backward computes for 100 ms, then the last 40 ms.
    assert STEP.exposed_ddp_s(2, 2.5e9) == pytest.approx(0.26 + 0.04)


def test_sharded_weights_are_sent_half_as_much_again() -> None:
    # 3 x 200 ms, in each 20 ms for one bucket: forward hides 50, backward 100.
    assert STEP.exposed_fsdp_s(2, 2.5e9) == pytest.approx(0.02 + 0.02 + 0.13 + 0.28)
    assert STEP.exposed_fsdp_s(2, 1e12) == pytest.approx(STEP.exposed_ddp_s(2, 1e12))


def test_the_speed_up_is_between_the_slow_link_and_the_fast_one() -> None:
    found = STEP.row(2, 2.5e9, 1e10).ddp
    assert found.low == pytest.approx(2 * 0.3 / 0.6)
    assert found.high == pytest.approx(2 * 0.3 / 0.31)


def diagnosed(
    tmp_path: Path, ranks: int = 1, gpu: str = "NVIDIA A100-SXM4-80GB", **how: Any
) -> Report:
    path = tmp_path / "trace.json"
    collective = "AllReduce" if ranks > 1 else ""
    path.write_bytes(text(rank_trace(ranks=ranks, **{"collective": collective, **how}), ranks, gpu))
    return trace_checkup([str(path)])


def predicted(report: Report) -> Scaling:
    assert report.scaling is not None
    return report.scaling


def test_a_trace_of_one_gpu_is_predicted_from_its_data_sheet(tmp_path: Path) -> None:
    found = predicted(diagnosed(tmp_path))
    assert found.gradients_from == "backward"
    assert found.gradient_bytes == 16_000_000
    assert (found.links_from, found.links_of) == ("data sheet", "A100 80GB SXM")
    assert found.high_bytes_per_s == 300e9  # NVLink of 600 GB/s both ways
    assert found.low_bytes_per_s == pytest.approx(0.4 * 32e9)  # PCIe of 64 GB/s both ways
    assert [row.gpus for row in found.rows] == [2, 4, 8]
    # All 16 MB are one bucket, which nothing hides: 1.25 ms in a step of 10 ms.
    assert found.rows[0].ddp.low == pytest.approx(2 * 10 / 11.25, rel=1e-3)
    assert all(row.ddp.low <= row.ddp.high <= row.gpus for row in found.rows)


def test_measured_links_come_before_the_data_sheet(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, ranks=2)
    found = predicted(report)
    assert (found.links_from, found.ranks) == ("collectives", 2)
    assert found.high_bytes_per_s == pytest.approx(6e9)
    # The exchange that was recorded is no part of a step alone: the replay takes it away.
    assert report.trace is not None
    assert report.trace.what_if is not None
    gain = report.trace.what_if.speedup("communication")
    assert gain is not None
    assert gain > 1.1
    assert found.alone_s == pytest.approx(0.010 / gain)
    low_bytes_per_s = found.low_bytes_per_s
    assert low_bytes_per_s is not None and low_bytes_per_s < 6e9
    [links] = [line for line in scaling_lines(found) if "GB/s" in line]
    assert re.findall(r"[\d.]+ GB/s", links) == [f"{low_bytes_per_s / 1e9:.3g} GB/s", "6 GB/s"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (7.91, 7.95, "8 GPUs of one machine: at best 7.9x as many"),
        (7.98, 7.999, "8 GPUs of one machine: at best 7.9x as many"),  # never a perfect 8
        (1.78, 1.99, "8 GPUs of one machine: 1.7x to at best 1.9x as many"),
        (15.8, 16.0, "8 GPUs of one machine: 15x to at best 16x as many"),
        (0.457, 2.0, "8 GPUs of one machine: 0.45x to at best 2x as many"),
    ],
)
def test_a_prediction_has_two_figures(low: float, high: float, said: str) -> None:
    times = PredictedSpeedup(low=low, high=high)
    lines = scaling_lines(Scaling(rows=[ScalingRow(gpus=8, ddp=times, fsdp=times)]))
    assert lines[0].startswith(said)


@pytest.mark.parametrize(
    ("how", "missing"),
    [
        ({"gradients": False}, "record_shapes=True"),
        ({"ranks": 2, "other_us": 900.0}, "23%"),  # of the exchange is none of gradients
    ],
)
def test_what_is_not_known_is_named_in_place_of_a_figure(
    how: dict[str, Any], missing: str, tmp_path: Path
) -> None:
    found = predicted(diagnosed(tmp_path, **how))
    assert found.rows == []
    assert len(found.missing) == 1
    assert missing in found.missing[0]
    assert found.missing[0] in scaling_lines(found)[0]
    assert not any(re.search(r"\dx\b", line) for line in scaling_lines(found))


def test_a_gpu_without_known_links_is_not_predicted(tmp_path: Path) -> None:
    found = predicted(diagnosed(tmp_path, gpu="Odd Card"))
    assert (found.rows, found.links_from, len(found.missing)) == ([], None, 1)


def test_every_format_calls_it_a_prediction_and_says_what_it_assumes(tmp_path: Path) -> None:
    report = diagnosed(tmp_path)
    lines = scaling_lines(report.scaling)
    assert len(lines) == len(predicted(report).rows) + 4, "what they rest on and assume"
    for shown in (
        rendered(report, "terminal"),
        rendered(report, "markdown"),
        rendered(report, "html"),
    ):
        whole = " ".join(unescape(shown).split()).replace(" %", "%")
        assert "predicted, not measured" in whole
        assert [line for line in lines if line not in whole] == []
    assert re.findall(r"[\d.]+x", lines[0])[:2] == ["1.7x", "1.9x"]
    assert any("40%" in line and "A100 80GB SXM" in line for line in lines)
    assert json.loads(rendered(report, "json"))["scaling"]["rows"][0]["gpus"] == 2


def test_inference_and_cpu_traces_have_no_such_section(tmp_path: Path) -> None:
    assert scaling(recording()) is None
    assert scaling(recording({"trace": {"path": "t", "steps": 3, "has_device": True}})) is None


_TRAINING = {
    "environment": {"gpus": [{"index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 100}]},
    "sensors": {"gpu_memory_peak_bytes": 95},
    "trace": {
        "path": "t",
        "steps": 3,
        "step_s": 0.02,
        "has_device": True,
        "operators": [{"name": "MmBackward0", "calls_per_step": 1, "self_s": 0.001}],
        "exchange": {"backward_s": 0.008, "known_from": "backward", "gradient_bytes": 7.0},
    },
}
_OPTIMIZER = {"ident": 0, "elements": 25_000_000, "dtype": "bfloat16", "steps": 9}
_MODEL = {"ident": 0, "device": "cuda:0", "forwards": 9, "elements": 25_000_000}


def told(fix: str, data_parallel: str | None) -> str:
    model = {**_MODEL, "data_parallel": data_parallel}
    own = {"pid": 1, "models": [model], "optimizers": [_OPTIMIZER], "devices": ["A"] * 4}
    seen = recording({**_TRAINING, "processes": [{**own, "world_size": 4}]})
    return str(catalogue.fixes()[fix].instruction({}, seen))


@pytest.mark.parametrize(
    ("fix", "row"),
    [
        ("ddp", "#   4 GPUs: "),
        ("fsdp", "#   4 GPUs: "),
    ],
)
def test_what_a_run_offers_says_what_it_could_give(fix: str, row: str) -> None:
    said = told(fix, None if fix == "ddp" else "DistributedDataParallel")
    assert row in said and "not measured" in said
    # The program's own parameters are known better than what its trace accumulates.
    assert re.findall(r"# .*?([\d.]+ MB)", said)[:1] == ["50 MB"]
    # Without the profiler the step takes 10 ms, not 20, and backward as much less.
    assert re.findall(r"[\d.]+ ms", said) == ["10.0 ms", "4.00 ms"]


def test_sharded_training_is_predicted_to_gain_less_where_links_are_slow() -> None:
    predicted = STEP.row(8, 1e9, 1e9)
    assert predicted.fsdp.low < predicted.ddp.low


def test_the_title_promises_no_measurement() -> None:
    assert "predicted, not measured" in TITLE
