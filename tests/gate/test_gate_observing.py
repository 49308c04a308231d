"""What the launches before the first pair decide: a crash, Ctrl-C, unlike batches. No processes."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from observed_program import SEEN, STEPS

from torchdoctor.bench.block_plan import choose_turns, why_in_turns
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.pair_times import Estimator
from torchdoctor.gate.figures import Measured, waiting
from torchdoctor.gate.gate_run import NEW, GateRun
from torchdoctor.gate.session import GateSession, Observed, observe_both
from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.queries.hardware import load_of
from torchdoctor.schema import (
    Block,
    LaunchTiming,
    ProgramFailure,
    SensorStatistics,
    Workload,
    as_remark,
    fact,
    message,
)
from torchdoctor.schema.errors import Inconclusive, ProgramFailed

CRASH = ProgramFailure(exit_code=1, steps=40, output_tail="IndexError: no more data")


class Program:
    """One version, whose observing launches showed this, the last again and again."""

    def __init__(self, *seen: Any) -> None:
        self.seen, self.launches = list(seen), 0

    def observe(self) -> Observation:
        self.launches += 1
        found = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        if isinstance(found, BaseException):
            raise found
        return found


def session_of(**tolerances: float) -> GateSession:
    settings = GateSettings(tolerances={"step_time": 0.02, **tolerances})
    workload = Workload(command=["train.py"], cwd="/w")
    return GateSession(workload, settings, lambda event: None)


def observed(new: Program, old: Program, **tolerances: float) -> Observed:
    def observe(*arguments: Any) -> Observation:
        return (old if arguments[-1].name == "observe-baseline" else new).observe()

    session, recorder = session_of(**tolerances), SimpleNamespace(observe=observe)
    session.recorder = recorder  # type: ignore[assignment]
    return observe_both(session, (UNTOUCHED, NEW), "main")


def test_a_new_version_that_crashes_after_its_first_steps_is_no_pass() -> None:
    """It crashed at step 40, was as fast until then, and passed with exit code 0."""
    with pytest.raises(ProgramFailed, match=r"at least 40 steps \(exit code 1") as failed:
        observed(Program(replace(SEEN, failure=CRASH)), Program(SEEN))
    assert failed.value.exit_code == 3
    assert CRASH.output_tail.splitlines()[-1] in str(failed.value)


def test_a_reference_that_crashes_later_is_a_doubt() -> None:
    found = observed(Program(SEEN), Program(replace(SEEN, failure=CRASH)))
    [remark] = found.remarks
    assert (remark.of, remark.fact, remark.values["steps"]) == ("main", "version-failed", 40)


def test_a_reference_that_cannot_be_measured_is_not_decided() -> None:
    with pytest.raises(Inconclusive, match="program of main cannot be measured: It failed"):
        observed(Program(SEEN), Program(ProgramFailed("It failed.\nTraceback")))


@pytest.mark.parametrize("which", ["new", "old"])
def test_ctrl_c_while_a_version_is_observed_ends_the_gate(which: str) -> None:
    """What was seen until then was compared, and the gate went on for its whole budget."""
    stopped, whole = Program(replace(SEEN, interrupted=True)), Program(SEEN)
    new, old = (stopped, whole) if which == "new" else (whole, stopped)
    with pytest.raises(KeyboardInterrupt):
        observed(new, old)


@pytest.mark.parametrize("unknown", ["new", "old"])
def test_a_batch_of_unknown_size_is_not_compared_with_one_of_known(unknown: str) -> None:
    """Time per step was compared, although the new version's batch may have doubled."""
    sizeless = replace(SEEN, steps=replace(STEPS, samples_per_step=None))
    new, old = (sizeless, SEEN) if unknown == "new" else (SEEN, sizeless)
    with pytest.raises(Inconclusive, match="size of a batch is known in"):
        observed(Program(new), Program(old))
    both = observed(Program(sizeless), Program(sizeless))
    assert both.remarks == []


def waits(share: float) -> Observation:
    return replace(SEEN, steps=replace(STEPS, data_wait_s=0.1 * share))


def test_the_wait_for_data_is_worse_only_where_each_went_first_once() -> None:
    """The new version was always the first to read, from a disk that nobody had read yet."""
    cold, warm = waits(0.50), waits(0.05)
    new, old = Program(cold, warm), Program(warm)
    found = observed(new, old, data_loader_share=0.1)
    assert (new.launches, old.launches) == (2, 2)
    assert waiting(found.waits, {"data_loader_share": 0.1}).verdict == "ok"
    found = observed(Program(waits(0.5)), Program(warm), data_loader_share=0.1)
    row = waiting(found.waits, {"data_loader_share": 0.1})
    assert row.verdict == "worse"
    assert (row.reference, row.new) == pytest.approx((0.05, 0.5))


def test_the_wait_for_data_is_observed_once_where_nobody_judges_it() -> None:
    new, old = Program(waits(0.5)), Program(waits(0.1))
    found = observed(new, old)
    assert (new.launches, old.launches) == (1, 1)
    assert waiting(found.waits, {}).verdict == "ok"
    # One order alone, because the second could not be observed, judges nothing.
    broken = Program(waits(0.5), ProgramFailed("It failed."))
    found = observed(broken, old, data_loader_share=0.1)
    assert waiting(found.waits, {"data_loader_share": 0.1}).verdict == "not measured"
    assert found.remarks[-1].fact == "waits-in-one-order"


def test_what_was_seen_to_be_doubtful_is_said_once() -> None:
    both, old_alone = (fact("probe-file-unreadable", file=name, error="") for name in "ab")
    new, old = replace(SEEN, doubts=[both]), replace(SEEN, doubts=[both, old_alone])
    remarks = observed(Program(new), Program(old)).remarks
    assert remarks == [as_remark(both), as_remark(old_alone, of="main")]


def test_writes_that_escaped_and_a_weak_sandbox_are_doubts() -> None:
    session: Any = session_of()
    left = fact("process-left-running")
    session.recorder = SimpleNamespace(escaped=["/a", "/b"], doubts=[left])
    session.sandbox = SimpleNamespace(mode="landlock", doubts=[fact("no-overlay", why=None)])
    changed = {"files": 2, "named": ["/a", "/b"], "more": None, "sandbox": "landlock"}
    assert session.launch_doubts() == [
        left,
        fact("files-changed-in-sandbox", **changed),
        fact("no-overlay", why=None),
    ]


def test_where_no_blocks_can_be_the_reason_is_said() -> None:
    window = Window(warmup_steps=10, measure_steps=30, max_window_s=5.0)
    for change, told in (
        ({"trainers": 2}, "several-processes-train"),
        ({"program_ended": True, "total_steps_seen": 12}, "ends-too-soon-for-blocks"),
        ({"two_modes": True, "cycle_steps": 1000}, "cycle-too-long-for-block"),
    ):
        slower = replace(STEPS, **change)
        assert choose_turns(slower, window, 2.0, 60.0) is None
        assert why_in_turns(slower) == fact(told)


@pytest.mark.parametrize(
    ("new", "old", "error"),
    [
        ("failed", "measured", ProgramFailed),
        ("out-of-memory", "measured", ProgramFailed),
        ("timed-out", "measured", Inconclusive),
        ("measured", "failed", Inconclusive),
    ],
)
def test_a_version_that_fails_three_times(
    monkeypatch: pytest.MonkeyPatch, new: str, old: str, error: type[Exception]
) -> None:
    """The working tree's crash behind the observed steps was "not decided", which may pass."""
    ended = {"new": new, "baseline": old}

    def alone(arm: LaunchSpec, most_s: float) -> LaunchTiming:
        why = message("It crashed.")
        return LaunchTiming(ended=ended[arm.name], why=why, step_s=[0.1], samples=4.0)

    with pytest.raises(error, match="could not be measured 3 times: It crashed"):
        measure(alone=alone)


@pytest.mark.parametrize("how", ["crashed", "stood still"])
def test_a_new_version_that_breaks_down_after_its_first_blocks_is_no_pass(how: str) -> None:
    """Side by side, what it had measured until then counted, and the gate passed."""
    blocks = [Block(step_s=[0.1] * 5, samples=20.0, round=n) for n in (1, 2)]
    whole = LaunchTiming(ended="measured", step_s=[0.1], blocks=blocks, iterations=90, stopped=True)
    broken = replace(whole, iterations=60, why=message("IndexError: 7"), stopped=how != "crashed")
    broken = replace(broken, **({"ended": "failed"} if how == "crashed" else {"late": True}))
    with pytest.raises(ProgramFailed, match="new version could not be measured 3 times"):
        measure(together=lambda *_: (whole, broken))


def measure(**starts: Any) -> None:
    """Decide a gate on launches that are not made."""
    launches: Any = SimpleNamespace(
        side_by_side="together" in starts,
        expected_s=1.0,
        shortest_pair_s=1.0,
        shortened_s=lambda half_s: half_s,
        **starts,
    )
    settings = GateSettings(tolerances={"step_time": 0.02})
    run = GateRun(Workload(command=["train.py"], cwd="/w"), "main", settings, lambda event: None)
    observed = Observed(arms=(UNTOUCHED, NEW), versions=(SEEN, SEEN), waits=[])
    arguments = (
        Engine(launches, random.Random(0), patience=2),
        launches,
        observed,
        Measured(how=Estimator()),
    )
    run._decide(*arguments)


def test_a_busy_machine_is_said_and_a_quiet_one_is_not() -> None:
    def load(*busy: float | None) -> str | None:
        return load_of([SensorStatistics(other_load_cpus=one) for one in busy], 2.0)

    assert load(0.1, 1.2) == "1.2 of 2 usable CPUs"
    assert load(0.1, 0.2) is None
    assert load(None, None) is None
