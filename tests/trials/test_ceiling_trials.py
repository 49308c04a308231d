"""Ceilings in a search: when one is tried, blamed, and believed."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_program import NO_LOADER, QUIET, Simulated, SimulatedSwitching, observed, try_all
from told_facts import why

from torchdoctor.bench.block_plan import SwitchBlocks
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.schema import (
    Block,
    Environment,
    FixSet,
    LoaderFacts,
    ProcessFacts,
    Recording,
    SwitchedLaunch,
    Workload,
    message,
)
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import Arm, FixFacts
from torchdoctor.trials.ceilings import abandon


def tried(program: Simulated, names: list[str], **more: Any) -> Any:
    switching = SimulatedSwitching(program)
    return try_all(program, names, switching=switching, ceilings=[NO_LOADER], **more)


def test_without_any_candidate_what_a_cost_is_worth_is_still_tried() -> None:
    program = Simulated(gains={"no-loader": 2.0}, noise=QUIET)
    results = tried(program, [])
    assert [name for name, _ in program.launched] == ["switching: no-loader"]
    (one,) = results.ceilings
    assert one.verdict == "gain" and one.speedup.estimate == pytest.approx(2.0, rel=0.05)
    assert results.trials == [] and results.recommendation.fixes == []


def test_without_candidates_and_ceilings_nothing_is_launched() -> None:
    program = Simulated()
    try_all(program, [], switching=SimulatedSwitching(program))
    assert program.launched == []


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_blocks_under_other_conditions_than_the_observed_step_decide_nothing(gain: float) -> None:
    """Observed beside others: the wait for data that was seen is not in these blocks."""
    program = Simulated(gains={"no-loader": gain}, noise=QUIET)
    (one,) = tried(program, ["amp"], steps=observed(median_s=0.3, mean_s=0.3)).ceilings
    assert one.verdict == "unclear" and not one.decided
    assert why(one) == ["other-conditions"]


def test_an_experiment_that_shows_a_hidden_loader_lowers_every_loader_fix() -> None:
    """Waits of 60 % of the step promise 2.5x; without the loader the step gains next to nothing."""
    loader = {"branches": frozenset({"data_loader"}), "p_helps": 0.7}
    facts = {"workers": FixFacts(**loader), "cache": FixFacts(**loader), "amp": FixFacts()}
    most = {"workers": 2.5, "cache": 2.5, "amp": 2.0}

    def first_tried(gain: float) -> tuple[str, Any]:
        program = Simulated(gains={"no-loader": gain}, noise=QUIET)
        results = tried(
            program, ["workers n=2", "cache", "amp"], budget_s=100.0, facts=facts, could_gain=most
        )
        return next(name for name, _ in program.launched[1:] if name), results

    fix, results = first_tried(1.0)
    assert fix == "amp"
    for trial in (trial for trial in results.trials if "amp" not in trial.fixes):
        assert trial.pairs == 0 and trial.p_helps < 0.05 and trial.not_worth_its_time
    assert first_tried(1.05)[0] == "amp"
    assert first_tried(2.5)[0] in ("workers n=2", "cache")


def test_what_takes_longer_without_its_cost_is_not_called_hidden() -> None:
    program = Simulated(gains={"no-loader": 0.9}, noise=QUIET)
    (one,) = tried(program, ["amp"]).ceilings
    assert (one.verdict, one.decided) == ("slower", False)


def block(arm: int) -> Block:
    return Block(arm=arm, step_s=[0.1] * 5, window_s=0.5, ended_s=0.5)


@pytest.mark.parametrize(
    ("ended", "blocks", "blamed"),
    [("timed-out", [0, 1, 0], False), ("timed-out", [0], True), ("failed", [0, 1, 0], True)],
)
def test_a_launch_that_ran_out_of_time_is_no_ceilings_fault(
    ended: str, blocks: list[int], blamed: bool
) -> None:
    arm = Arm(key="ceiling", spec=LaunchSpec(name="ceiling"))
    found = SwitchedLaunch(
        ended=ended, why=message("why"), blocks=[block(n) for n in blocks], failed_in=1
    )
    assert abandon(found, [arm], [arm], enough=3) is blamed
    assert bool(arm.refused) is blamed


def test_without_the_model_blocks_hold_whole_bursts_of_the_programs_own_workers() -> None:
    """Of a part of a burst the mean is a matter of where the block lies."""

    def arms(workers: int) -> list[LaunchSpec]:
        loader = LoaderFacts(ident=0, batches=9, num_workers=workers)
        recording = Recording(
            workload=Workload(command=[], cwd=""),
            environment=Environment(),
            steps=observed(),
            processes=[ProcessFacts(pid=1, loaders=[loader])],
        )
        ceilings = ("ceiling-model-skipped", "ceiling-loader-batches")
        return [ArmSpecs({}, recording).of(FixSet.of(name)) for name in ceilings]

    blocks = SwitchBlocks(warmup_steps=3, block_steps=5, discard_steps=8, step_s=0.1, setup_s=1.0)
    assert blocks.arm_steps(arms(4)) == [8, 5]
    assert blocks.arm_steps(arms(0)) == [5, 5]
    three_more = blocks.round_s(arms(4)) - blocks.round_s(arms(0))
    assert three_more == pytest.approx(0.3), "what lies ready is discarded already"
