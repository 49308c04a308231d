"""Ceilings in a search: when one is tried, blamed, and believed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_specs import made_fix
from simulated_program import NO_LOADER, QUIET, Simulated, SimulatedSwitching, observed, try_all

from torchdoctor.pairs.switch_blocks import Blocks
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.ceilings import abandon
from torchdoctor.trials.switched_trials import SwitchedTrials
from torchdoctor.words import Block, LaunchTiming, LoaderFacts, SwitchedLaunch


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
    assert "times as long as when observed" in one.reason


def test_what_takes_longer_without_its_cost_is_not_called_hidden() -> None:
    program = Simulated(gains={"no-loader": 0.9}, noise=QUIET)
    (one,) = tried(program, ["amp"]).ceilings
    assert (one.verdict, one.decided) == ("slower", False)


def block(arm: int) -> Block:
    timing = LaunchTiming(ended="measured", step_s=[0.1] * 5, window_s=0.5)
    return Block(arm=arm, round=0, began_s=0.0, ended_s=0.5, timing=timing)


@pytest.mark.parametrize(
    ("ended", "blocks", "blamed"),
    [("timed-out", [0, 1, 0], False), ("timed-out", [0], True), ("failed", [0, 1, 0], True)],
)
def test_a_launch_that_ran_out_of_time_is_no_ceilings_fault(
    ended: str, blocks: list[int], blamed: bool
) -> None:
    arm = Arm(key="ceiling")
    found = SwitchedLaunch(
        ended=ended, reason="why", blocks=[block(n) for n in blocks], failed_in=1
    )
    assert abandon(found, [arm], [arm], enough=3) is blamed
    assert bool(arm.refused) is blamed


def planned(
    *fixes: str, workers: int = 0, known: Blocks | None = None, seconds: float | None = None
) -> Blocks:
    """The blocks of a launch with these arms, for a program whose loader has workers."""
    told: list[Blocks] = []

    def switch(_boundary: Any, _warmup: int, blocks: Blocks, _arms: Any, **_more: Any) -> None:
        told.append(blocks)

    plain = Blocks(block_steps=5, discard_steps=2 * workers, step_s=0.1, setup_s=1.0)
    trials = SwitchedTrials(
        SimpleNamespace(switch=switch),  # type: ignore[arg-type]
        SimpleNamespace(found=SimpleNamespace(boundary=None)),  # type: ignore[arg-type]
        SimpleNamespace(warmup_steps=3),  # type: ignore[arg-type]
        known or plain,
        {"tf32": made_fix("tf32")},
        lambda: 60.0,
        LoaderFacts(ident=0, num_workers=workers),
    )
    arms: list[Any] = [[(fix, {})] for fix in fixes]
    if seconds is not None:
        trials.rounds_within(arms, seconds)
    trials(arms, rounds=2, seed=0)
    return told[0]


def test_without_the_model_blocks_hold_whole_bursts_of_the_programs_own_workers() -> None:
    """Of a part of a burst the mean is a matter of where the block lies."""
    blocks = planned("ceiling-model-skipped", "ceiling-loader-batches", workers=4)
    assert blocks.arm_steps == (8, 5)
    assert blocks.more_steps == 3, "what lies ready is discarded already"
    assert planned("ceiling-model-skipped", workers=0).arm_steps == (5,)


def test_ceilings_leave_whole_epochs_where_their_time_has_no_room_for_them() -> None:
    """A tenth of the budget: blocks of four seconds meant that hardly any ceiling was tried."""
    short = Blocks(block_steps=5, discard_steps=2, step_s=0.1, setup_s=1.0)
    whole = replace(short, block_steps=40, cycle_steps=40, shorter=short)
    skipped = "ceiling-model-skipped"
    assert planned(skipped, known=whole, seconds=20.0).block_steps == 5
    assert planned(skipped, known=whole, seconds=60.0).block_steps == 40
    assert planned(skipped, known=whole).block_steps == 40
    assert planned("tf32", known=whole, seconds=20.0).block_steps == 40, "fixes are launched then"
