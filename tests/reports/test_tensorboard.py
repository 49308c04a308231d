"""The event files say what the report says, also to a real TensorBoard server."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_folders import (
    BASELINE_MS,
    OBSERVED_MS,
    OBSERVED_STEPS,
    RECOMMENDED_MS,
    WALL_S,
    ranks_folder,
    report_with_run,
)
from samples import SAMPLES

from torchdoctor.reports.tensorboard.write import write_tensorboard
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report, TraceStatistics
from torchdoctor.schema.errors import UsageError

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def measured() -> Report:
    """A sample report with measured trials and a trace."""
    report = next(r for r in (make() for make in SAMPLES.values()) if sum(
        t.speedup is not None for t in r.trials) >= 2)  # fmt: skip
    trace = TraceStatistics(path="gone.json", steps=3, step_times_s=[0.1, 0.2, 0.3])
    return replace(report, trace=trace, run_folder=None)


def runs(folder: Path) -> dict[str, EventAccumulator]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        name = str(path.parent.relative_to(folder))
        found[name] = EventAccumulator(str(path.parent), size_guidance={"tensors": 0})
        found[name].Reload()
    return found


def scalar(run: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(e.step, float(e.tensor_proto.float_val[0])) for e in run.Tensors(tag)]


def text(run: EventAccumulator, tag: str) -> str:
    return run.Tensors(tag)[0].tensor_proto.string_val[0].decode()


@pytest.mark.slow
def test_scalars_text_and_trials_are_those_of_the_report(tmp_path: Path) -> None:
    report = measured()
    write_tensorboard(report, tmp_path)
    found = runs(tmp_path)
    [main] = [run for name, run in found.items() if name.endswith("/run")]
    steps, seconds = zip(*scalar(main, "step_time/profiled_s"), strict=True)
    assert steps == (0, 1, 2)
    assert seconds == pytest.approx([0.1, 0.2, 0.3])
    assert report.baseline.step_time_s is not None
    [(_, median)] = scalar(main, "step_time/median_s")
    assert median == pytest.approx(report.baseline.step_time_s.median)
    shares = {n: s for n, s in vars(report.baseline.shares).items() if s is not None}
    tags = {tag for tag in main.Tags()["tensors"] if tag.startswith("share_of_step/")}
    assert tags == {f"share_of_step/{name}" for name in shares}
    assert "waits for data" in text(main, "report/01 First screen")
    trials = [t.speedup.estimate for t in report.trials if t.speedup]
    assert report.noise_floor is not None
    wanted = [*trials, report.noise_floor.estimate]
    sessions = {n.split("/")[-1]: r for n, r in found.items() if "/trials/" in n}
    shown = [scalar(sessions[name], "speedup")[0][1] for name in sorted(sessions)]
    assert shown == pytest.approx(wanted)


def test_what_was_not_measured_is_no_point(tmp_path: Path) -> None:
    report = replace(measured(), trials=[], trace=None)
    report = replace(report, baseline=replace(report.baseline, samples_per_s=None))
    write_tensorboard(report, tmp_path)
    [main] = [run for name, run in runs(tmp_path).items() if name.endswith("/run")]
    assert "samples_per_s/deciding" not in main.Tags()["tensors"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--tensorboard"):
        write_tensorboard(measured(), tmp_path / "file")


def test_what_went_on_over_time_stands_at_its_wall_time(tmp_path: Path) -> None:
    write_tensorboard(report_with_run(tmp_path / "run"), tmp_path / "logs")
    found = {name.split("/")[1]: run for name, run in runs(tmp_path / "logs").items()}
    main = found["run"]
    steps = main.Tensors("step_time/observed_s")
    assert len(steps) == OBSERVED_STEPS
    assert steps[0].wall_time == pytest.approx(WALL_S + 10.0 + 2 * OBSERVED_MS / 1000, abs=1e-3)
    assert scalar(main, "step_time/observed_s")[3][1] == pytest.approx(OBSERVED_MS / 1000)
    assert {value for _, value in scalar(main, "utilization/gpu")} == {0.25}
    assert main.Tensors("utilization/gpu")[-1].wall_time == pytest.approx(WALL_S + 12.0)
    assert scalar(main, "memory/process_tree_GB")[0][1] == pytest.approx(2.0)
    assert [v for _, v in scalar(main, "utilization/program_cpus")] == pytest.approx([1.5] * 4)
    assert "memory/gpu_GB" not in main.Tags()["tensors"]  # it was not measured


def test_recommended_steps_are_set_against_those_of_the_untouched_program(tmp_path: Path) -> None:
    write_tensorboard(report_with_run(tmp_path / "run"), tmp_path / "logs")
    found = {name.split("/")[1]: run for name, run in runs(tmp_path / "logs").items()}
    for kind, step_ms in (("baseline", BASELINE_MS), ("recommended", RECOMMENDED_MS)):
        steps = scalar(found[kind], "step_time/measured_s")
        # Two launches: neither the patch's nor those of one fix alone are among them.
        assert [number for number, _ in steps] == list(range(len(steps)))
        assert len(steps) == 2 * 12
        assert {round(value, 6) for _, value in steps} == {step_ms / 1000}


def test_a_second_report_of_the_same_second_leaves_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        write_tensorboard(measured(), tmp_path)
    mains = [run for name, run in runs(tmp_path).items() if name.endswith("/run")]
    assert len(mains) == 2
    assert all(len(scalar(run, "step_time/profiled_s")) == 3 for run in mains)


def test_the_traces_of_all_ranks_lie_where_profile_tools_look(tmp_path: Path) -> None:
    paths = ranks_folder(tmp_path / "ranks")
    report = trace_checkup([str(tmp_path / "ranks")])
    write_tensorboard(report, tmp_path / "logs")
    copies = sorted((tmp_path / "logs" / "plugins" / "profile").rglob("*.pt.trace.json"))
    assert [p.name for p in copies] == [p.name for p in paths]
    assert [p.read_bytes() for p in copies] == [p.read_bytes() for p in paths]


def test_traces_get_names_by_which_ranks_are_told_apart(tmp_path: Path) -> None:
    for rank, path in enumerate(ranks_folder(tmp_path / "ranks")):
        path.rename(path.with_name(f"my trace.{rank}.json"))
    report = trace_checkup([str(tmp_path / "ranks")])
    write_tensorboard(report, tmp_path / "logs")
    names = [p.name for p in sorted((tmp_path / "logs" / "plugins").rglob("*.json"))]
    # <host>_<process>.<time>.pt.trace.json, as torch.profiler's handler names them.
    matches = [re.fullmatch(r"([\w-]+_\d+)\.\d+\.pt\.trace\.json", name) for name in names]
    assert all(matches)
    assert len({match[1] for match in matches if match}) == 2
