"""Tokens, MFU, energy and savings: from measured figures, and absent where one is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_tensors import tensor

from torchdoctor.machine import nvml
from torchdoctor.machine.rapl import Rapl
from torchdoctor.machine.sensor_columns import SensorColumns
from torchdoctor.reports import efficiency as shown
from torchdoctor.runs.efficiency import efficiency, of_trace
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    Baseline,
    Boundary,
    Diagnosis,
    Environment,
    Interval,
    LoaderFacts,
    MatrixWork,
    ModelFacts,
    ProcessFacts,
    Recommendation,
    RecommendedFix,
    Recording,
    Report,
    SensorStatistics,
    StepStatistics,
    StepTime,
    TensorFacts,
    TraceStatistics,
    Workload,
    WorkloadRecord,
)
from torchdoctor.schema.errors import UsageError

STEPS = StepStatistics(
    boundary=Boundary(kind="loader"),
    steps=100,
    warmup_steps=5,
    median_s=0.5,
    mean_s=0.5,
    p10_s=0.5,
    p90_s=0.5,
    forward_s=0.2,
)
TIME = StepTime(median=0.4, p10=0.4, p90=0.6, steps=100, mean=0.5)

ROWS = tensor(8, 128, dtype="int64")


def recording(**changes: Any) -> Recording:
    workload = Workload(command=["python", "train.py"], cwd="/")
    given = {"workload": workload, "environment": Environment(), "steps": STEPS}
    return Recording(**{**given, **changes})


def tokens(*calls: TensorFacts, embeddings: int = 1, batch: int = 8) -> Recording:
    model = ModelFacts(
        ident=0,
        elements=9,
        embeddings=embeddings,
        input_tensors=[[first] for first in calls],
        forwards=9,
    )
    loader = LoaderFacts(ident=0, batch_size=batch, batches=9)
    return recording(processes=[ProcessFacts(pid=1, models=[model], loaders=[loader])])


def figures(recording: Recording, chosen: Recommendation | None = None, **settings: Any) -> Any:
    baseline = Baseline(step_time_s=TIME, samples_per_s=16.0)
    return efficiency(recording, baseline, chosen or Recommendation(), RunSettings(**settings))


def test_tokens_are_counted_where_every_batch_is_rows_of_one_length() -> None:
    known = figures(tokens(ROWS))
    assert (known.samples_per_s, known.tokens_per_s) == (16, 16 * 128)


@pytest.mark.parametrize(
    "unknown",
    [
        tokens(ROWS, tensor(8, 96, dtype="int64")),  # of several lengths
        tokens(tensor(8, 128)),
        tokens(ROWS, embeddings=0),  # numbers of another kind
        tokens(tensor(4, 128, dtype="int64")),  # no batch of the loader's
        tokens(tensor(8, 1, dtype="int64")),
        tokens(tensor(8, 3, 128, dtype="int64")),
        recording(),
    ],
)
def test_tokens_are_never_guessed(unknown: Recording) -> None:
    assert figures(unknown).tokens_per_s is None


def test_mfu_is_a_share_of_the_step_without_the_profiler() -> None:
    work = MatrixWork(flops=1e12, device_s=0.3, known_share=1.0, mfu=0.2)
    trace = TraceStatistics(path="t.json", steps=5, step_s=1.0, matrix_work=work)
    assert figures(recording(trace=trace)).mfu == pytest.approx(0.4)
    assert of_trace(trace).mfu == 0.2
    unknown = replace(trace, matrix_work=replace(work, mfu=None))
    assert figures(recording(trace=unknown)).mfu is None
    assert of_trace(unknown) is None


def test_energy_is_that_of_the_counters_in_the_measured_window() -> None:
    sensors = SensorStatistics(samples=9, window_s=10.0, gpu_energy_j=3000.0)
    known = figures(recording(sensors=sensors))
    assert known.gpu_energy_j_per_step == pytest.approx(150)
    assert known.cpu_energy_j_per_step is None


def recommended(low: float, pairs: int = 3) -> Recommendation:
    fix = RecommendedFix(fix="loader-workers", settings={})
    speedup = Interval(estimate=2.0, low=low, high=4.0)
    return Recommendation(fixes=[fix], speedup=speedup, pairs=pairs)


def test_what_is_saved_of_a_stated_training_has_the_speed_up_s_interval() -> None:
    saving = figures(recording(), recommended(1.25), steps_total=72_000, cost_per_hour=3.0).saving
    assert saving.hours == pytest.approx(10)
    kept = saving.hours_saved
    assert (kept.low, kept.estimate, kept.high) == pytest.approx((2, 5, 7.5))
    assert saving.cost == pytest.approx(30)
    assert saving.cost_saved.high == pytest.approx(22.5)


@pytest.mark.parametrize("chosen", [None, recommended(0.9), recommended(1.25, pairs=1)])
def test_what_is_not_proven_saves_nothing(chosen: Recommendation | None) -> None:
    saving = figures(recording(), chosen, steps_total=72_000).saving
    assert (saving.hours_saved, saving.cost, saving.cost_saved) == (None, None, None)


def test_nothing_is_saved_of_a_training_of_no_stated_length() -> None:
    assert figures(recording(), recommended(1.25)).saving is None
    with pytest.raises(UsageError, match="--steps-total"):
        RunSettings(cost_per_hour=1.0).check()


def test_the_line_has_what_is_known_and_nothing_else() -> None:
    report = Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="none"),
    )
    assert shown.line(report) == ""
    known = replace(report, efficiency=figures(tokens(ROWS)))
    assert "tokens/s" in shown.line(known)
    assert not any(word in shown.line(known) for word in ("MFU", " J ", "saves", "samples"))
    assert "samples/s" in shown.line(known, with_samples=True)


def package(folder: Path, name: str, kind: str = "package-0") -> Path:
    counter = folder / name
    counter.mkdir(parents=True)
    (counter / "name").write_text(f"{kind}\n")
    (counter / "max_energy_range_uj").write_text("10000000\n")
    (counter / "energy_uj").write_text("9000000\n")
    return counter


def test_a_processor_s_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    counter = package(tmp_path, "intel-rapl:0")
    package(tmp_path, "intel-rapl:0:0", "core")  # part of the package
    rapl = Rapl(tmp_path)
    assert rapl.read_j() == 0
    (counter / "energy_uj").write_text("1000000\n")
    assert rapl.read_j() == pytest.approx(2)
    (counter / "energy_uj").unlink()
    assert np.isnan(rapl.read_j())


def columns(**counters: Any) -> SensorColumns:
    """Return five seconds of a machine with two GPUs, the first of which is the program's."""
    of_gpus = {
        f"gpu_{name}": np.full((5, 2), np.nan)
        for name in ("utilization", "memory_bytes", "power_w", "sm_clock_mhz", "throttle")
    }
    return SensorColumns(
        t_ns=np.arange(5) * 1_000_000_000,
        core_busy_s=np.zeros((5, 1)),
        iowait_s=np.zeros(5),
        gpu_others=np.zeros((0, 2)),
        gpu_ours=np.array([1.0, 0.0]),
        **of_gpus,
        **counters,
    )


def test_a_machine_without_counters_measures_no_energy(tmp_path: Path) -> None:
    assert np.isnan(Rapl(tmp_path).read_j())
    seen = columns(cpu_energy_j=np.full(5, np.nan)).statistics(0, 4_000_000_000)
    assert (seen.cpu_energy_j, seen.gpu_energy_j) == (None, None)


def test_the_energy_of_a_window_is_that_of_the_program_s_own_devices() -> None:
    two = columns(
        cpu_energy_j=np.arange(5) * 40.0,
        gpu_energy_j=np.stack([1e6 + np.arange(5) * 300.0, np.arange(5) * 50.0], axis=1),
    )
    seen = two.statistics(0, 2_000_000_000)
    assert seen.gpu_energy_j == pytest.approx(600)
    assert seen.cpu_energy_j == pytest.approx(80)
    nobody = replace(two, gpu_ours=np.zeros(2)).statistics(0, 2_000_000_000)
    assert nobody.gpu_energy_j is None


def test_the_driver_s_counter_is_read_in_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        nvml.pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda device: 2500, raising=False
    )
    assert nvml.READINGS["energy_j"](None) == 2.5
