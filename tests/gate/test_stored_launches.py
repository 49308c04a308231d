"""A gate against a stored report: how its launches are made and compared. No processes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from observed_program import SEEN, STEPS

from torchdoctor.gate.session import GateSession
from torchdoctor.gate.settings import GateSettings
from torchdoctor.gate.stored import launched, load_doubts, read_stored, stored_report
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.observe.observation import Observation
from torchdoctor.schema import (
    Baseline,
    Diagnosis,
    Environment,
    LaunchTiming,
    Report,
    SensorStatistics,
    StepTime,
    Workload,
    WorkloadRecord,
    fact,
)
from torchdoctor.schema.errors import Inconclusive, UsageError
from torchdoctor.schema.record_files import write_record

SETTINGS = GateSettings(tolerances={"step_time": 0.02, "peak_memory": 0.1})


def launch(step_s: list[float], samples: float | None = 4.0) -> LaunchTiming:
    size = None if samples is None else samples * len(step_s)
    return LaunchTiming(ended="measured", step_s=step_s, samples=size, window_s=sum(step_s))


# Nine steps of 100 ms and one of 400 ms: 100 ms in the median, 130 ms in the mean.
UNEVEN = [0.1] * 9 + [0.4]


def report(launches_s: list[float], **baseline: Any) -> Report:
    two_kinds = StepTime(median=0.1, p10=0.1, p90=0.4, steps=50, mean=0.13)
    return Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        baseline=Baseline(step_time_s=two_kinds, launches_s=launches_s, **baseline),
        steps=STEPS,
        diagnosis=Diagnosis(bottleneck="none"),
    )


def compared(stored: Report, timings: list[LaunchTiming], settings: GateSettings = SETTINGS) -> Any:
    return stored_report(stored, "report.json", settings, [SEEN], timings)


def test_mean_is_compared_with_mean_although_now_looks_even() -> None:
    """Stored by the mean and measured by the median, a third slower came out as as fast."""
    slower = [launch([1.33 * s for s in UNEVEN]) for _ in range(5)]
    by_mean = [0.13 / 4 * x for x in (1.0, 1.01, 0.99, 1.0)]
    found = compared(report(by_mean, launches_by="mean", launches_per="sample"), slower)
    assert found.verdict == "slower"
    assert found.metrics[0].ratio.estimate == pytest.approx(1.33, rel=0.01)


def test_median_is_compared_with_median_and_long_steps_are_a_doubt() -> None:
    by_median = [0.1 / 4 * x for x in (1.0, 1.01, 0.99, 1.0)]
    stored = report(by_median, launches_by="median", launches_per="sample")
    found = compared(stored, [launch(UNEVEN) for _ in range(5)])
    assert found.verdict == "not slower"
    assert found.metrics[0].ratio.estimate == pytest.approx(1.0, rel=0.01)
    assert [remark.fact for remark in found.remarks] == ["another-time", "long-steps-not-stored"]
    even = compared(stored, [launch([0.1] * 10) for _ in range(5)])
    assert [remark.fact for remark in even.remarks] == ["another-time"]


def test_stored_launches_that_lie_far_apart_decide_nothing() -> None:
    """ "PASS", with a gate that fails from 94102.601 on: launches of 12, 19 and 48 ms."""
    stored = report([0.012, 0.019, 0.048], launches_by="median", launches_per="sample")
    with pytest.raises(Inconclusive, match=r"lie so far apart \(12.0 ms to 48.0 ms a sample\)"):
        compared(stored, [launch([0.08] * 10) for _ in range(5)])


def test_launches_within_the_scatter_of_the_stored_ones_pass_and_say_what_that_proves() -> None:
    stored = report([0.018, 0.036, 0.024, 0.028], launches_by="median", launches_per="sample")
    found = compared(stored, [launch([0.1] * 10) for _ in range(5)])
    assert found.verdict == "not slower"
    assert found.answer[-1].fact == "stored-launches-fail-from"
    assert found.blind_spot > 0.3


def test_a_tolerance_of_ten_times_is_no_scatter() -> None:
    """Only the memory was to be judged, and launches 9 % apart were said to show nothing."""
    stored = report([0.1, 0.104, 0.109, 0.1], launches_by="median", launches_per="sample")
    tolerances = {**SETTINGS.tolerances, "step_time": 10.0}
    settings = replace(SETTINGS, tolerances=tolerances)
    found = compared(stored, [launch([0.5] * 10) for _ in range(5)], settings)
    assert found.verdict == "not slower"


def test_times_per_step_are_not_compared_with_times_per_sample() -> None:
    stored = report([0.025] * 4, launches_by="median", launches_per="sample")
    with pytest.raises(Inconclusive, match="times are per sample, those of now are not"):
        compared(stored, [launch([0.1] * 10, samples=None)] * 5)


def test_launches_that_were_stored_on_a_busy_machine_are_a_doubt() -> None:
    """A baseline made beside another training lets a slow-down pass, and nothing said so."""
    busy, quiet = (SensorStatistics(other_load_cpus=one) for one in (1.5, 0.1))
    there = Environment(usable_cpus=2.0)
    stored = replace(report([0.1] * 3), environment=there, sensors=busy)
    (said,) = load_doubts(stored, [quiet], 2.0)
    assert said == fact("busy-then", load="1.5 of 2 usable CPUs")
    (said,) = load_doubts(replace(stored, sensors=quiet), [quiet, busy], 2.0)
    assert said.fact == "busy-now"
    assert load_doubts(replace(stored, sensors=quiet), [quiet], 2.0) == []


class Clock:
    """The time of the gate, and a recorder whose launches take `launch_s`."""

    def __init__(self, launch_s: float, *endings: LaunchTiming) -> None:
        self.now, self.launch_s, self.endings = 0.0, launch_s, list(endings)
        self.timeouts: list[float] = []
        self.arms: list[LaunchSpec] = []

    def monotonic(self) -> float:
        return self.now

    def time(self, arm: LaunchSpec, timeout_s: float, **_: Any) -> LaunchTiming:
        self.now += self.launch_s
        self.timeouts.append(timeout_s)
        self.arms.append(arm)
        return self.endings.pop(0) if self.endings else launch([0.1] * 10)


def run(
    clock: Clock,
    budget_s: float,
    seen: Observation = SEEN,
    forked: bool = False,
    **settings: Any,
) -> list[LaunchTiming]:
    wanted = replace(SETTINGS, budget_s=budget_s, **settings)
    session: Any = GateSession(Workload(command=[], cwd=""), wanted, lambda event: None)
    session.recorder = clock
    return launched(session, seen, forked)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(clock: Clock) -> Clock:
        monkeypatch.setattr("torchdoctor.gate.session.time", clock)
        return clock

    return use


def test_launches_are_started_as_the_stored_ones_were(clocked: Any) -> None:
    """An unchanged program failed by its memory: 291 MB forked, 349 MB in an interpreter."""
    for forked in (True, False):
        clock = clocked(Clock(1.0))
        run(clock, 600.0, forked=forked)
        assert [arm.forked for arm in clock.arms] == [forked] * 5


def test_the_budget_ends_the_launches_once_three_are_there(clocked: Any) -> None:
    assert len(run(clocked(Clock(10.0)), 600.0)) == 5
    assert len(run(clocked(Clock(100.0)), 350.0)) == 3
    assert len(run(clocked(Clock(100.0)), 50.0)) == 3, "fewer cannot be compared"


def test_a_launch_of_a_thousand_long_steps_is_waited_for(clocked: Any) -> None:
    """At 2 s a step each launch was ended after 600 s, and the sentence gave no reason."""
    clock = clocked(Clock(10.0))
    slow = replace(SEEN, steps=replace(STEPS, mean_s=2.0, median_s=2.0))
    run(clock, math.inf, slow, steps=1000)
    assert min(clock.timeouts) > 4 * 2000.0


def test_the_reason_is_said_where_launches_fail(clocked: Any) -> None:
    failed = LaunchTiming(ended="timed-out", why=fact("window-not-finished", wall_s=9.0))
    clock = clocked(Clock(10.0, failed, launch([0.1] * 10), failed, failed))
    with pytest.raises(Inconclusive, match=r"3 of 4 launches .* did not finish its window in 9 s"):
        run(clock, 600.0)


def test_ctrl_c_in_a_launch_ends_the_gate(clocked: Any) -> None:
    """It was left out like one that failed, and the gate went on with the others."""
    with pytest.raises(KeyboardInterrupt):
        run(clocked(Clock(10.0, LaunchTiming(ended="interrupted"))), 600.0)


def test_a_baseline_with_a_time_of_nothing_is_a_usage_error(tmp_path: Path) -> None:
    """Its logarithm was a defect of ours, exit code 70."""
    for wrong in (0.0, -0.01):
        write_record(report([0.01, wrong, 0.01]), tmp_path / "report.json")
        with pytest.raises(UsageError, match="time is not above 0"):
            read_stored(tmp_path / "report.json")
