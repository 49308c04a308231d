"""The search where some fixes can be compared within one launch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from simulated_program import (
    NO_LOADER,
    QUIET,
    TYPICAL,
    Simulated,
    SimulatedSwitching,
    says_why,
    seeds,
    try_all,
)
from told_facts import why

from torchdoctor.schema import FixSet, TriedCeiling, fact
from torchdoctor.trials.arms import FixFacts, Ladder
from torchdoctor.trials.ceilings import CeilingTrial

NAMES = ["workers n=2", "threads n=1", "tf32", "amp", "threads n=2", "workers n=4", "none"]
GAINS = {"workers n=2": 1.4, "workers n=4": 1.8, "threads n=2": 1.25, "amp": 1.3, "tf32": 0.9}
WINNERS = {"workers": {"n": 4}, "amp": {}, "threads": {"n": 2}}
SWITCHED = ("threads", "tf32", "amp", "none")
FACTS = {"workers": FixFacts(p_helps=0.8)}
COULD_GAIN = {"workers": 3.0, "amp": 2.0, "threads": 2.0}


def search(
    program: Simulated, names: list[str] | None = None, budget_s: float | None = None, **more: Any
) -> tuple[Any, SimulatedSwitching]:
    """A search in which all but `workers` can be switched."""
    switching = SimulatedSwitching(program, **more)
    found = try_all(
        program,
        names or NAMES,
        budget_s,
        facts=FACTS,
        switched=SWITCHED,
        switching=switching,
        could_gain=COULD_GAIN,
    )
    return found, switching


def row(results: Any, *fixes: str, **settings: int) -> Any:
    """The trial of just these fixes; with `settings`, of the one that has these."""
    return next(
        t
        for t in results.trials
        if t.fixes.ids == fixes and (not settings or t.fixes[fixes[0]] == settings)
    )


def recommended(results: Any) -> list[tuple[str, dict[str, int]]]:
    return [(one.fix, one.settings) for one in results.recommendation.fixes]


@pytest.mark.parametrize("noise", [QUIET, TYPICAL], ids=["quiet", "typical"])
@pytest.mark.parametrize("seed", range(2))
def test_the_same_winners_with_fewer_launches(noise: tuple[float, ...], seed: int) -> None:
    plain = Simulated(gains=GAINS, noise=noise, seed=seed)  # type: ignore[arg-type]
    by_launches = try_all(plain, NAMES, facts=FACTS, switched=SWITCHED, could_gain=COULD_GAIN)
    program = Simulated(gains=GAINS, noise=noise, seed=seed)  # type: ignore[arg-type]
    switched, _ = search(program)
    assert set(WINNERS) >= {fix for fix, _ in recommended(by_launches)}
    assert dict(recommended(switched)) == WINNERS
    assert switched.launches == len(program.launched)


def test_what_is_known_to_be_far_slower_is_not_launched() -> None:
    """Its one block was cut short and too few to decide, so launches of it took the time."""
    program = Simulated(gains={"threads n=1": 0.2, "amp": 1.3})
    names = ["threads n=1", "amp", "tf32"]
    _, switching = search(program, names, cut=("threads",))
    assert switching.launched
    assert not any(one.startswith("threads") for one, _ in program.launched)


def test_an_untouched_step_that_runs_ahead_of_its_gpu_is_judged_by_the_mean() -> None:
    """Its blocks end in one long step; the median said that bf16 gains nothing."""
    program = Simulated(gains={"amp": 4.0})
    _, switching = search(program, ["amp", "tf32", "none"], ahead=True)
    assert switching.launched
    # The best one seen in blocks is confirmed first.
    first = next(one for one, _ in program.launched[1:] if one)
    assert first == "amp"


def test_what_is_confirmed_comes_from_fresh_launches_alone() -> None:
    program = Simulated(gains=GAINS)
    results, switching = search(program)
    assert {"threads n=1", "tf32", "amp", "none"} <= {*itertools.chain(*switching.launched)}
    launched = [name for name, _ in program.launched if name.count("+") == 2]
    assert results.recommendation.pairs == len(launched)
    assert results.recommendation.numerics == "identical"


def test_who_was_screened_in_blocks_only_says_so() -> None:
    results, _ = search(Simulated(gains=GAINS))
    slower = row(results, "tf32")
    assert slower.verdict == "slower" and slower.pairs >= 3
    assert slower.speedup.estimate == pytest.approx(0.9, rel=0.03)
    assert slower.why[0] == fact("blocks-only", pairs=slower.pairs)
    assert slower.numerics == "not-comparable" and slower.peak_memory_bytes is None
    assert slower.cost_s > 0


def test_a_gain_seen_in_blocks_but_not_in_launches_is_not_recommended() -> None:
    """A launch keeps its own offset: what helps within one may be nothing in fresh ones."""

    class OnlyWithin(Simulated):
        def __call__(self, fixes: Any, *, seed_offset: int = 0) -> Any:
            gains, self.gains = self.gains, {}
            try:
                return super().__call__(fixes, seed_offset=seed_offset)
            finally:
                self.gains = gains

    results, _ = search(OnlyWithin(gains={"amp": 1.3}), ["amp", "tf32"])
    assert recommended(results) == []
    assert row(results, "amp").speedup.estimate == pytest.approx(1.0, abs=0.03)


def test_a_program_that_fails_while_switched_is_screened_by_launches() -> None:
    program = Simulated(gains=GAINS)
    results, _ = search(program, ends_after=9)
    assert {"workers", "amp"} <= {fix for fix, _ in recommended(results)}


def test_arms_measured_before_a_failure_count() -> None:
    program = Simulated(gains=GAINS)
    search(program, ends_after=7 * 4 + 2)
    assert all(name != "tf32" for name, _ in program.launched)


def test_what_the_program_refuses_is_refused() -> None:
    program = Simulated(gains=GAINS, states={"tf32": "refused"})
    results, _ = search(program)
    refused = row(results, "tf32")
    assert refused.verdict == "refused" and refused.why == [says_why("tf32")]
    assert all(name != "tf32" for name, _ in program.launched)


@pytest.mark.parametrize("state", ["pending", "failed"])
def test_what_could_not_be_switched_is_launched(state: str) -> None:
    """It found nothing to apply to in its blocks, or cannot be switched off: launches decide."""
    program = Simulated(gains=GAINS, states={"amp": state})
    search(program)
    assert any("amp" in name and "switching" not in name for name, _ in program.launched)


def test_blocks_that_cost_more_than_launches_are_not_run() -> None:
    program = Simulated(gains=GAINS, launch_s=3.0)
    results, switching = search(program, budget_s=200.0, block_s=15.0)
    assert switching.launched == []
    assert recommended(results)


def test_a_single_candidate_is_switched_once_at_most_and_claimed_by_pairs() -> None:
    program = Simulated(gains={"amp": 1.3})
    results, switching = search(program, ["amp"])
    assert len(switching.launched) <= 1 and recommended(results) == [("amp", {})]
    assert results.recommendation.pairs >= 1


def test_nothing_to_gain_costs_one_launch_and_still_has_a_noise_floor() -> None:
    program = Simulated(noise=QUIET)
    names = ["amp", "tf32", "threads n=1", "none"]
    program.gains = {"amp": 0.95, "tf32": 0.9, "threads": 0.8, "none": 0.97}
    results, _ = search(program, names)
    assert len(program.launched) == 1 and recommended(results) == []
    assert results.noise_floor.low < 1 < results.noise_floor.high
    assert "faster" not in {trial.verdict for trial in results.trials}
    assert row(results, "threads").verdict == "slower"


@pytest.mark.parametrize("budget_s", range(2, 320, 11))
def test_the_budget_is_kept(budget_s: int) -> None:
    program = Simulated(gains=GAINS, noise=TYPICAL, seed=budget_s)
    results, _ = search(program, budget_s=float(budget_s))
    assert program.now <= budget_s
    assert results.launches == len(program.launched)
    if budget_s >= 60:
        assert recommended(results), "enough to confirm one"


def test_ctrl_c_in_the_switching_launch() -> None:
    class Stops(SimulatedSwitching):
        def __call__(self, arms: Any, *, rounds: int, seed: int) -> Any:
            raise KeyboardInterrupt

    program = Simulated(gains=GAINS)
    results = try_all(program, NAMES, facts=FACTS, switched=SWITCHED, switching=Stops(program))
    assert results.interrupted and recommended(results) == []


@pytest.mark.slow
@pytest.mark.parametrize("budget_s", [None, 150.0])
def test_null_candidates_are_rarely_recommended(budget_s: float | None) -> None:
    runs, false = seeds(100), 0
    for seed in runs:
        program = Simulated(noise=TYPICAL, seed=7000 + seed)
        names = ["amp", "tf32", "threads n=1", "threads n=2", "none", "workers n=2", "workers n=4"]
        switching = SimulatedSwitching(program)
        results = try_all(
            program, names, budget_s, facts=FACTS, switched=SWITCHED, switching=switching, seed=seed
        )
        false += bool(results.recommendation.fixes)
    assert false <= max(1, len(runs) * 6 // 100)


NO_WAITS = CeilingTrial(
    row=TriedCeiling(ceiling="answered-waits", branch="cpu", removes="", share=0.3, whole=False),
    fixes=FixSet.of("no-waits"),
)


def with_ceilings(
    program: Simulated,
    names: list[str],
    budget_s: float | None = None,
    ceilings: tuple[CeilingTrial, ...] = (NO_LOADER,),
    **more: Any,
) -> Any:
    return try_all(
        program,
        names,
        budget_s,
        facts=FACTS,
        switched=SWITCHED,
        switching=SimulatedSwitching(program, **more),
        ceilings=ceilings,
        could_gain=COULD_GAIN,
    )


def switching_launches(program: Simulated) -> list[str]:
    return [name for name, _ in program.launched if name.startswith("switching")]


def test_a_ceiling_is_measured_beside_the_fixes_and_never_recommended() -> None:
    program = Simulated(gains={**GAINS, "no-loader": 3.0})
    results = with_ceilings(program, NAMES)
    (one,) = results.ceilings
    assert one.speedup.low < 3.0 < one.speedup.high and one.speedup.low > 2.8
    assert (one.verdict, one.why) == ("gain", None) and one.pairs >= 3
    assert sum("no-loader" in name for name, _ in program.launched) == 1
    assert dict(recommended(results)) == WINNERS
    assert all("no-loader" not in one.fixes for one in results.trials)


def test_a_high_share_that_gives_nothing_is_called_hidden() -> None:
    gains = {**GAINS, "no-loader": 1.0, "no-waits": 1.5}
    program = Simulated(gains=gains, noise=(0.002, 0.0005, 0.0), seed=1)
    hidden, gain = with_ceilings(program, NAMES, ceilings=(NO_LOADER, NO_WAITS)).ceilings
    assert (hidden.ceiling, hidden.verdict) == ("loader-batches", "hidden")
    assert (gain.ceiling, gain.verdict, gain.whole) == ("answered-waits", "gain", False)


def test_a_ceiling_alone_gets_a_launch_only_where_the_budget_is_large() -> None:
    for budget_s, launched in ((60.0, 0), (300.0, 1), (None, 1)):
        program = Simulated(gains={"workers": 1.5, "no-loader": 1.0})
        results = with_ceilings(program, ["workers n=2"], budget_s)
        assert len(switching_launches(program)) == launched
        assert (results.ceilings[0].speedup is not None) == bool(launched)
        if not launched:
            assert why(results.ceilings[0]) == ["no-time-for-ceiling"]
        assert recommended(results) == [("workers", {"n": 2})]


def test_ceilings_cost_a_tenth_of_the_budget_the_most_telling_first() -> None:
    """With little time only the first one is tried; the fixes lose no round to it."""
    program = Simulated(gains={"no-loader": 3.0, "no-waits": 1.0})
    names = ["threads n=1", "tf32"]
    few = with_ceilings(program, names, 200.0, (NO_LOADER, NO_WAITS), block_s=1.6)
    first, second = few.ceilings
    assert first.speedup is not None and second.speedup is None
    assert second.verdict == "not-tried"
    assert why(second) == ["no-time-for-ceiling"]


def test_a_ceiling_that_the_program_refuses_has_no_figure() -> None:
    program = Simulated(gains=GAINS, states={"no-loader": "refused"})
    (one,) = with_ceilings(program, NAMES).ceilings
    assert (one.speedup, one.verdict) == (None, "abandoned")
    assert one.why == says_why("no-loader")


def test_a_ceiling_that_ends_the_program_is_given_up_and_the_launch_repeated() -> None:
    program = Simulated(gains={**GAINS, "no-waits": 1.0})
    results = with_ceilings(program, NAMES, ceilings=(NO_LOADER, NO_WAITS), fatal="no-loader")
    broken, fine = results.ceilings
    assert broken.verdict == "abandoned" and why(broken) == ["did-not-go-on"]
    assert fine.speedup is not None
    launches = switching_launches(program)
    assert len(launches) == 2
    assert "no-loader" in launches[0] and "no-loader" not in launches[1]
    assert dict(recommended(results)) == WINNERS


def test_a_program_that_fails_after_ceilings_were_on_is_tried_without_them() -> None:
    """Nobody can tell which of them left something behind."""
    program = Simulated(gains=GAINS)
    results = with_ceilings(program, NAMES, ceilings=(NO_LOADER, NO_WAITS), fatal="after")
    assert all(why(one) == ["failed-after-it"] for one in results.ceilings)
    launches = switching_launches(program)
    assert len(launches) == 2 and "no-" not in launches[1]


def test_a_program_without_comparable_blocks_says_so() -> None:
    program = Simulated(gains=GAINS)
    results = try_all(program, NAMES, facts=FACTS, switched=SWITCHED, ceilings=[NO_LOADER])
    (one,) = results.ceilings
    assert (one.verdict, one.speedup) == ("not-tried", None)
    assert why(one) == ["blocks-not-comparable"]


def test_batches_that_arrive_in_bursts_are_judged_by_the_mean_of_their_blocks() -> None:
    """Workers that finish together: the median step is next to nothing, the mean no better."""

    class Bursts(SimulatedSwitching):
        def _block(self, arm: int, number: int, arms: Any, offset: float) -> Any:
            block = super()._block(arm, number, arms, offset)
            if not arm or arms[arm - 1][0][0] != "workers":
                return block
            each = block.step_s[0]
            steps = [each * 0.1, each * 0.1, each * 0.1, each * 3.7] * 2
            return replace(block, step_s=steps, samples=256.0, window_s=sum(steps))

    program = Simulated(gains={"workers": 0.9, "amp": 1.3})
    results = try_all(
        program,
        ["workers n=4", "amp", "none"],
        switched=(*SWITCHED, "workers"),
        switching=Bursts(program),
    )
    assert recommended(results) == [("amp", {})]
    assert row(results, "workers").speedup.estimate == pytest.approx(0.9, rel=0.05)


def test_more_values_of_what_is_switched_are_seen_in_the_same_launch() -> None:
    """A sweep over workers costs no launch for each number where they are switched."""
    gains = {f"workers n={n}": g for n, g in ((1, 1.2), (2, 1.6), (4, 2.2), (8, 2.9), (16, 2.7))}
    program = Simulated(gains=gains)
    ladder = Ladder(setting="n", least=1, most=32, today=0)
    switching = SimulatedSwitching(program)
    names = ["workers n=1", "workers n=2", "workers n=4", "none"]
    results = try_all(
        program,
        names,
        facts={"workers": FixFacts(ladder=ladder, p_helps=0.8)},
        switched=("none", "workers"),
        switching=switching,
        could_gain={"workers": 4.0},
    )
    assert {"workers n=8", "workers n=16"} <= set(switching.launched[0])
    assert recommended(results) == [("workers", {"n": 8})]
    launched = {name for name, _ in program.launched if name and "switching" not in name}
    assert launched == {"workers n=8"}, "to confirm it"
