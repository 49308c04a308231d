"""How much of the gain that there is a search recommends, in the time that it has."""

from __future__ import annotations

import math
import random

import pytest
from simulated_program import (
    FULL,
    QUIET,
    TYPICAL,
    Simulated,
    SimulatedPairs,
    SimulatedSwitching,
    seeds,
    try_all,
)

from torchdoctor.trials.arms import FixFacts
from torchdoctor.trials.ladder import Ladder
from torchdoctor.trials.samples import Preparation

Noise = tuple[float, float, float]
NAMES = [
    "workers n=2",
    "compile",
    "workers n=1",
    "threads n=1",
    "fused",
    "channels-last",
    "workers n=4",
    "allocator",
    "none",
    "tf32",
]
GAINS = {
    "workers n=2": 1.6,
    "workers n=1": 1.4,
    "workers n=4": 1.5,
    "threads n=1": 1.10,
    "fused": 1.12,
    "channels-last": 1.05,
    "compile": 1.2,
    "allocator": 1.03,
    "tf32": 0.98,
}
MOST = math.log(1.6 * 1.10 * 1.12 * 1.05 * 1.2 * 1.03)
SWITCHED = {name: FixFacts(switches=True) for name in ("threads", "channels-last", "none", "tf32")}
FACTS = {
    **SWITCHED,
    "workers": FixFacts(switches=True, ladder=Ladder(setting="n", least=1, most=4, today=0)),
    "compile": FixFacts(setup_s=40.0),
    "fused": FixFacts(),
    "allocator": FixFacts(),
}


class Compiles(Simulated):
    """The first launch of a set compiles, those after it find most of the result."""

    def __call__(self, fixes, *, seed_offset=0):
        names = frozenset(fix for fix, _ in fixes)
        seen = self.__dict__.setdefault("compiled", set())
        self.setup_s = {"compile": 4.0 if names in seen else 25.0}
        seen.add(names)
        return super().__call__(fixes, seed_offset=seed_offset)


def recommended(results):
    return [(fix.fix, fix.settings) for fix in results.recommendation.fixes]


def row(results, fix):
    return next(one for one in results.trials if one.fix == fix)


def share(budget_s: float, noise, beside: bool, seed: int) -> float:
    """Of the best speed-up's logarithm."""
    program = Compiles(gains=GAINS, noise=noise, seed=seed, launch_s=6.0)
    results = try_all(
        program,
        NAMES,
        budget_s,
        facts=FACTS,
        seed=seed,
        switching=SimulatedSwitching(program),
        patch=lambda fixes: None,
        both_at_once=SimulatedPairs(program) if beside else None,
    )
    assert program.now <= budget_s
    found = 0.0
    for fix, settings in recommended(results):
        label = " ".join([fix, *(f"{name}={value}" for name, value in settings.items())])
        found += math.log(GAINS.get(label, GAINS.get(fix, 1.0)))
    return found / MOST


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("budget_s", "least"), [(40.0, 0.45), (140.0, 0.7), (270.0, 0.9)])
def test_more_time_gives_more_of_what_there_is(budget_s: float, least: float, beside: bool) -> None:
    """Many fixes that gain, of which there is no time to confirm each."""
    noises = (QUIET, TYPICAL)
    searches = range(3 if FULL else 1)
    shares = [share(budget_s, noise, beside, seed) for noise in noises for seed in searches]
    assert sum(shares) / len(shares) >= least


@pytest.mark.parametrize(("budget_s", "least"), [(36.0, 0.4), (48.0, 0.95), (150.0, 1.9)])
def test_time_for_six_pairs_is_not_spent_on_the_first_candidate(
    budget_s: float, least: float
) -> None:
    """Six pairs went to one of 2 %, while one of 12 and one of 9 % were not looked at."""
    gains = {"compile": 1.3, "first": 1.02, "mixed": 1.12, "fused": 1.09, "threads": 0.97}
    facts, cheap = {"compile": FixFacts(setup_s=40.0)}, math.log(1.02 * 1.12 * 1.09)
    found = []
    for seed in range(5):
        program = Compiles(gains=gains, seed=seed, launch_s=4.0)
        results = try_all(
            program, list(gains), budget_s, facts=facts, seed=seed,
            patch=lambda fixes: None, both_at_once=SimulatedPairs(program),
        )  # fmt: skip
        assert program.now <= budget_s
        found.append(sum(math.log(gains[fix]) for fix, _ in recommended(results)) / cheap)
    assert sum(found) / len(found) >= least


def test_one_towering_gain_is_confirmed_before_what_adds_next_to_nothing() -> None:
    """All at once would compile anew: the time went there, and nothing was recommended."""
    gains = {"compile": 10.0, "threads": 1.06, "fused": 1.02, "none": 0.98}
    facts = {"compile": FixFacts(setup_s=40.0)}
    program = Compiles(gains=gains, launch_s=4.0)
    results = try_all(
        program, list(gains), 130.0, facts=facts, patch=lambda fixes: None,
        both_at_once=SimulatedPairs(program),
    )  # fmt: skip
    assert ("compile", {}) in recommended(results)
    assert row(results, "compile").pairs >= 3


EVALUATED = {"no-grad": 1.4, "bf": 1.0, "threads": 0.7, "mixed": 1.0, "compile": 1.6}
READ = {"workers n=1": 0.6, "workers n=2": 0.8, "persistent": 1.02, "cache": 1.0}


@pytest.mark.parametrize("noise", [QUIET, TYPICAL])
def test_what_can_gain_a_percent_does_not_take_the_time_of_what_compiles(noise: Noise) -> None:
    """Eight looks went to a loader that the step waits 1.5 % for, none to what gained most."""
    could_gain = {**dict.fromkeys(EVALUATED, 12.0), "no-grad": 3.5}
    could_gain |= dict.fromkeys(("workers", "persistent", "cache"), 1.015)
    names = [*EVALUATED, "persistent & threads n=1", "workers n=1 & threads n=1", *READ]
    facts = {name: FixFacts(switches=True) for name in EVALUATED} | {
        "compile": FixFacts(setup_s=60.0)
    }
    for seed in range(3):
        program = Compiles(gains=EVALUATED | READ, noise=noise, seed=seed, launch_s=4.0)
        results = try_all(
            program, names, 150.0, facts=facts, seed=seed, switching=SimulatedSwitching(program),
            patch=lambda fixes: None, both_at_once=SimulatedPairs(program), could_gain=could_gain,
        )  # fmt: skip
        assert {fix for fix, _ in recommended(results)} == {"no-grad", "compile"}


def test_with_forty_seconds_three_that_can_be_switched_are_seen_in_one_launch() -> None:
    """The time of four pairs was kept, of which three are enough: the first one got them all."""
    gains = {"bf": 1.15, "threads": 0.6, "mixed": 1.9, "fused": 0.97}
    facts = {name: FixFacts(switches=True) for name in ("bf", "threads", "mixed")}
    for seed in range(3):
        program = Simulated(gains=gains, noise=TYPICAL, seed=seed, launch_s=4.5)
        results = try_all(
            program, list(gains), 40.0, facts=facts, seed=seed, patch=lambda fixes: None,
            switching=SimulatedSwitching(program, setup_s=4.0),
            both_at_once=SimulatedPairs(program),
            could_gain={**dict.fromkeys(gains, 12.0), "fused": 1.03},
        )  # fmt: skip
        assert [fix for fix, _ in recommended(results)] == ["mixed"]


def test_what_is_compiled_once_is_not_charged_to_every_pair() -> None:
    """125 s were held to be too little for what compiles in 60, with the pairs that follow."""
    gains = {"compile": 8.0, "mixed": 0.9, "fused": 1.03, "threads": 1.1}
    facts = {"compile": FixFacts(setup_s=60.0), "fused": FixFacts(switches=True)}
    for seed in range(3):
        program = Compiles(gains=gains, seed=seed, launch_s=4.0)
        results = try_all(
            program, [*gains, "workers n=1"], 125.0, facts=facts, seed=seed,
            switching=SimulatedSwitching(program), patch=lambda fixes: None,
            both_at_once=SimulatedPairs(program),
            could_gain={"compile": 20.0, "mixed": 12.0, "fused": 1.04, "workers": 1.02},
        )  # fmt: skip
        assert ("compile", {}) in recommended(results)


def test_the_pairs_that_are_left_are_the_leaders_where_it_gives_most() -> None:
    """Two pairs of a set decide little, and would be all that was measured of anybody."""
    gains = {"fused": 2.0, "bf": 1.12, "threads": 0.97}
    program = Simulated(gains=gains, launch_s=4.0)
    pairs = SimulatedPairs(program)
    results = try_all(program, list(gains), 44.0, both_at_once=pairs)
    assert recommended(results) == [("fused", {})]
    assert not any(" + " in names[1] for names in pairs.pairs)


def test_another_setting_takes_the_place_of_one_that_fails() -> None:
    facts = {name: FixFacts(switches=True) for name in ("workers", "threads", "channels-last")}
    program = Simulated(
        gains={"workers n=4": 1.6, "workers n=2": 1.5}, ends={"workers n=4": "failed"}
    )
    names = ["workers n=4", "workers n=2", "threads n=1", "channels-last"]
    switching = SimulatedSwitching(program)
    results = try_all(program, names, 140.0, facts=facts, switching=switching)
    assert recommended(results) == [("workers", {"n": 2})]


@pytest.mark.parametrize("budget_s", [90.0, 110.0, 130.0])
def test_one_that_compiles_does_not_hide_the_cheap_ones_behind_it(budget_s: float) -> None:
    program = Simulated(gains={"a": 1.5, "compile": 1.02}, setup_s={"compile": 40.0})
    facts = {"compile": FixFacts(setup_s=40.0)}
    results = try_all(program, ["compile", "n1", "n2", "a", "n3"], budget_s, facts=facts)
    assert recommended(results) == [("a", {})]


def noisy_losses(fixes, seed):
    """Workers draw other random numbers, as another seed does."""
    drawn = random.Random(seed + 100 * any(fix == "workers" for fix, _ in fixes))
    return [2.0 - 0.01 * i + drawn.gauss(0.0, 0.05) for i in range(60)]


@pytest.mark.parametrize("budget_s", [40.0, 50.0, 70.0, 85.0, 90.0, 120.0])
def test_there_is_time_for_the_seeds_that_tell_whether_training_changed(budget_s: float) -> None:
    how = Preparation(elsewhere=True, draws_random=True)
    facts = {name: FixFacts(switches=True) for name in ("threads", "channels-last")}
    facts["workers"] = FixFacts(switches=True, how=how)
    program = Simulated(gains={"workers": 1.8}, seed=3, losses=noisy_losses)
    names = ["workers n=2", "workers n=1", "threads n=1", "channels-last"]
    switching = SimulatedSwitching(program)
    results = try_all(program, names, budget_s, facts=facts, switching=switching)
    assert [fix for fix, _ in recommended(results)] == ["workers"]


def test_a_fast_fix_that_changes_training_leaves_the_time_to_the_next() -> None:
    def losses(fixes, seed):
        faster = 3 if any(fix == "amp" for fix, _ in fixes) else 1
        return [2.0 - 0.01 * i * (faster if i else 1) for i in range(60)]

    facts = {name: FixFacts(switches=True) for name in ("threads", "channels-last")}
    facts["amp"] = FixFacts(switches=True, keeps_results="lower precision")
    program = Simulated(gains={"amp": 1.6, "threads n=1": 1.3}, launch_s=6.0, losses=losses)
    names, switching = ["amp", "threads n=1", "channels-last"], SimulatedSwitching(program)
    results = try_all(program, names, 140.0, facts=facts, switching=switching)
    assert recommended(results) == [("threads", {"n": 1})]
    assert row(results, "amp").pairs <= 2


class UnluckyOnce(Simulated):
    """Somebody else's load falls on the first launch with `a`."""

    def __call__(self, fixes, *, seed_offset=0):
        self.gains["a"] = 0.98 if not any(name == "a" for name, _ in self.launched) else 1.5
        return super().__call__(fixes, seed_offset=seed_offset)


@pytest.mark.parametrize("budget_s", [200.0, 270.0])
def test_one_unlucky_look_does_not_hide_a_gain_beside_another_winner(budget_s: float) -> None:
    program = UnluckyOnce(gains={"x": 1.08}, seed=2)
    names = ["x", "a", "n1", "n2", "n3", "n4", "n5", "n6"]
    results = try_all(program, names, budget_s, seed=2)
    assert ("a", {}) in recommended(results)


def test_the_settings_of_a_lesser_fix_are_searched_too() -> None:
    gains = {"amp": 2.0, "workers n=2": 1.5, "workers n=4": 1.9, "workers n=8": 1.95}
    ladder = Ladder(setting="n", least=1, most=16, today=0)
    program = Simulated(gains=gains)
    facts = {"workers": FixFacts(ladder=ladder)}
    results = try_all(program, ["amp", "workers n=1", "workers n=2"], facts=facts)
    tried = {one.settings.get("n") for one in results.trials if one.fix == "workers"}
    assert {4, 8} <= tried


def test_the_patch_of_what_compiles_is_measured_with_a_warm_cache() -> None:
    program = Compiles(gains={"compile": 1.6})
    facts = {"compile": FixFacts(setup_s=40.0)}
    names = ["compile", "n1"]
    results = try_all(program, names, 240.0, facts=facts, patch=lambda fixes: None)
    assert recommended(results) == [("compile", {})] and results.patch.pairs >= 2


def test_a_tie_does_not_hold_up_the_next() -> None:
    """Of few pairs that show no gain, the others get the time."""
    found = 0
    for seed in range(10):
        program = Simulated(gains={"b": 1.5}, noise=(0.002, 0.001, 0.0), seed=seed)
        results = try_all(program, ["a", "b", "c"], 55.0, seed=seed)
        found += recommended(results) == [("b", {})]
    assert found >= 7


def test_what_there_is_no_time_for_keeps_no_time_from_the_others() -> None:
    """Time was kept to confirm a compilation of minutes, and what gains little got no look."""
    nothing = [f"nothing-{number}" for number in range(6)]
    gains = {"compile": 3.0, "large": 1.0, **dict.fromkeys(nothing, 1.0), "little": 1.045}
    could_gain = {"compile": 4.0, "large": 4.0} | dict.fromkeys([*nothing, "little"], 1.05)
    facts = {"compile": FixFacts(setup_s=400.0)}
    program = Compiles(gains=gains, launch_s=4.0)
    results = try_all(
        program, list(gains), 150.0, facts=facts, both_at_once=SimulatedPairs(program),
        patch=lambda fixes: None, could_gain=could_gain,
    )  # fmt: skip
    assert ("little", {}) in recommended(results)


@pytest.mark.parametrize("beside", [False, True])
def test_what_can_gain_little_waits_also_where_there_is_no_time_for_a_look(beside: bool) -> None:
    gains = {"little": 1.04, "large": 1.3}
    program = Compiles(gains=gains, launch_s=4.0)
    try_all(
        program, list(gains), 20.0, both_at_once=SimulatedPairs(program) if beside else None,
        patch=lambda fixes: None, could_gain={"little": 1.05, "large": 4.0},
    )  # fmt: skip
    assert next(fix for fix, _ in program.launched if fix) == "large"


def test_what_was_seen_in_blocks_keeps_its_time_from_what_can_gain_little() -> None:
    """Of 38 s left one look went to what can gain 3 %, and only one of two gains was confirmed."""
    gains = {"bf": 1.15, "threads": 0.6, "mixed": 1.9, "compile": 1.05, "fused": 0.97}
    facts = {name: FixFacts(switches=True) for name in ("bf", "threads", "mixed")}
    facts["compile"] = FixFacts(setup_s=60.0)
    program = Compiles(gains=gains, launch_s=4.5)
    results = try_all(
        program, list(gains), 60.0, facts=facts, patch=lambda fixes: None,
        switching=SimulatedSwitching(program, setup_s=4.0), both_at_once=SimulatedPairs(program),
        could_gain={**dict.fromkeys(gains, 12.0), "fused": 1.03},
    )  # fmt: skip
    assert {fix for fix, _ in recommended(results)} == {"mixed", "bf"}


@pytest.mark.parametrize("budget_s", [47.0, 55.0, 67.0, 79.0])
@pytest.mark.parametrize("expected_s", [7.5, 9.0, 11.0])
def test_time_that_is_left_goes_to_those_that_nobody_has_looked_at(
    budget_s: float, expected_s: float
) -> None:
    """After one look at what gains nothing half of the budget was left, and nothing was done."""
    gains = {"evaluation": 0.97, "threads": 1.5, "compile": 1.0, "fused": 1.0}
    facts = {"compile": FixFacts(setup_s=60.0)}
    program = Simulated(gains=gains, launch_s=7.5)
    results = try_all(
        program, list(gains), budget_s, facts=facts, expected_launch_s=expected_s,
        patch=lambda fixes: None, both_at_once=SimulatedPairs(program),
        could_gain={"evaluation": 1.4, "threads": 12.0, "compile": 12.0, "fused": 1.04},
    )  # fmt: skip
    assert row(results, "threads").pairs >= 1


@pytest.mark.parametrize("seed", seeds(60))
def test_a_search_without_a_winner_ends_only_when_no_look_fits(seed: int) -> None:
    """What one that compiles took was charged to the untouched program, or ended everything."""
    chance = random.Random(seed)
    names = [f"f{number}" for number in range(chance.randint(2, 6))]
    gains = {name: chance.choice([0.7, 0.95, 1.0]) for name in names}
    launch_s, budget_s = chance.choice([5.0, 8.0, 15.0]), chance.choice([60.0, 100.0])
    facts = {name: FixFacts(switches=chance.random() < 0.3) for name in names}
    facts[chance.choice(names)] = FixFacts(setup_s=chance.choice([30.0, 60.0]))
    program = Compiles(gains=gains, seed=seed, launch_s=launch_s)
    results = try_all(
        program, names, budget_s, facts=facts, seed=seed, patch=lambda fixes: None,
        switching=SimulatedSwitching(program) if seed % 2 else None,
        both_at_once=SimulatedPairs(program), expected_launch_s=launch_s * chance.choice([1, 1.3]),
        could_gain={name: chance.choice([1.03, 1.4, 4.0, 12.0]) for name in names},
    )  # fmt: skip
    cheap = [name for name in names if not facts[name].setup_s]
    unseen = [name for name in cheap if row(results, name).speedup is None]
    assert not unseen or budget_s - program.now < 3 * launch_s


def test_time_that_is_left_goes_to_no_fix_that_nobody_can_judge() -> None:
    """Batches without a size, and one that may change theirs: it had 14 launches, the rest two."""
    program = Simulated(gains={"a": 1.0, "b": 1.0}, launch_s=5.0, samples_per_step=None)
    facts = {"size": FixFacts(keeps_results="changes training")}
    could_gain = {"a": 2.0, "b": 2.0, "size": 4.0}
    results = try_all(program, ["a", "b", "size"], 300.0, facts=facts, patch=lambda fixes: None,
                      could_gain=could_gain)  # fmt: skip
    assert "not judged" in (row(results, "size").reason or "")
    assert sum(name == "size" for name, _ in program.launched) <= 8
