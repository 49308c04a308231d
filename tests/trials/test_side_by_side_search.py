"""Trials whose pairs run side by side: what they see, and who cannot run beside itself."""

from __future__ import annotations

import pytest
from simulated_program import (
    Simulated,
    SimulatedPairs,
    SimulatedSpecs,
    engine_of,
    says_why,
    seeds,
    try_all,
)
from told_facts import why

from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.schema import FixSet, fact
from torchdoctor.trials.arms import FixFacts

IN_TURNS = ("never-beside-itself", "launches-in-turns")  # doubts that say so
ROUGH = (0.06, 0.0, 0.0)  # a pair side by side differs from the next by 8 %
SHARED = (0.01, 0.15, 0.1)  # noise of a machine that others use: launches differ by 15 %


def row(results, fix):
    return next(one for one in results.trials if one.fixes.only == fix)


def recommended(results):
    return [one.fix for one in results.recommendation.fixes]


def found(seed: int, beside: bool) -> list[str]:
    program = Simulated(gains={"fused": 1.12}, noise=SHARED, seed=seed)
    pairs = SimulatedPairs(program) if beside else None
    names = ["a", "fused", "b", "c"]
    return recommended(try_all(program, names, 240.0, pairs=pairs))


@pytest.mark.slow
def test_a_shared_machine_hides_no_gain_of_a_tenth():
    searches = seeds(30)
    alone = sum(found(seed, False) == ["fused"] for seed in searches)
    beside = sum(found(seed, True) == ["fused"] for seed in searches)
    assert alone <= 0.5 * len(searches)  # one launch after the other: mostly lost in the noise
    assert beside >= 0.9 * len(searches)


@pytest.mark.slow
def test_fixes_that_do_nothing_are_not_recommended():
    searches, false = seeds(80), 0
    for seed in searches:
        program = Simulated(noise=SHARED, seed=seed)
        names = ["a", "b", "c", "d", "e", "f"]
        results = try_all(program, names, 300.0, pairs=SimulatedPairs(program))
        false += bool(results.recommendation.fixes)
    assert false <= max(1, len(searches) * 7 // 80)


def test_the_best_set_is_found_in_pairs():
    program = Simulated(gains={"workers": 2.0, "fused": 1.2}, noise=SHARED)
    pairs = SimulatedPairs(program)
    results = try_all(program, ["workers", "fused", "a"], pairs=pairs)
    assert recommended(results) == ["workers", "fused"]
    assert results.recommendation.speedup.estimate == pytest.approx(2.4, rel=0.04)
    assert len(program.launched) == 2 * len(pairs.pairs) == results.launches
    assert row(results, "workers").numerics == "identical"


@pytest.mark.parametrize(
    ("step_s", "gain", "proven"),
    [(0.1, 18.0, ["fused"]), (0.1, 400.0, ["fused"]), (0.0003, 18.0, [])],
)
def test_a_program_that_trains_for_milliseconds_proves_nothing(step_s, gain, proven):
    """One pause within a pair of 8 ms looked like 18x; a cure may leave little of a long step."""
    program = Simulated(gains={"fused": gain}, step_s=step_s)
    results = try_all(program, ["fused", "a"], 60.0, pairs=SimulatedPairs(program))
    assert recommended(results) == proven
    assert row(results, "fused").verdict == ("faster" if proven else "unclear")


@pytest.mark.parametrize(("loads", "gain", "proven"), [((1.7, 3.6), 1.0, []), ((), 2.3, ["fused"])])
def test_a_pair_that_met_a_change_of_load_proves_nothing(loads, gain, proven):
    """Others took the cores in blocks of the untouched program alone: 2.32x was recommended."""
    program = Simulated(gains={"fused": gain})
    pairs = SimulatedPairs(program, blocks=2, loads=loads)
    results = try_all(program, ["fused"], 30.0, pairs=pairs)
    assert recommended(results) == proven and pairs.pairs


def test_what_cannot_run_beside_itself_is_launched_alone():
    """A fixed port, a lock file: every pair fails, no launch by itself does."""
    program = Simulated(gains={"fused": 1.3})
    pairs = SimulatedPairs(program, alone=("all",))
    results = try_all(program, ["fused", "a"], pairs=pairs)
    assert recommended(results) == ["fused"]
    assert any(doubt.fact == "never-beside-itself" for doubt in results.doubts)
    assert len(pairs.pairs) <= 2  # it is not tried again and again


def test_a_fix_that_fails_alone_too_has_failed_and_the_others_go_on_in_pairs():
    program = Simulated(gains={"fused": 1.3}, ends={"broken": "out-of-memory"})
    pairs = SimulatedPairs(program)
    results = try_all(program, ["broken", "fused", "a"], pairs=pairs)
    assert row(results, "broken").verdict == "failed"
    assert recommended(results) == ["fused"]
    assert not any(doubt.fact in IN_TURNS for doubt in results.doubts)
    assert [one for one, _ in program.launched].count("broken") == 2  # beside, and by itself


def test_a_fix_that_has_no_room_beside_another_is_measured_by_itself():
    """Twice in memory is too much for it alone: everybody else stays in pairs until it is fine."""
    program = Simulated(gains={"large": 1.5})
    results = try_all(program, ["large", "a"], pairs=SimulatedPairs(program, ("large",)))
    assert recommended(results) == ["large"]
    assert results.recommendation.speedup.estimate == pytest.approx(1.5, rel=0.03)


@pytest.mark.parametrize(
    ("how", "told"), [("failed", "ended-with-code"), ("late", "block-given-up")]
)
def test_a_fix_that_breaks_down_after_its_first_blocks_is_no_gain(how, told):
    """It was twice as fast until it crashed, or stood still for ever, and was recommended."""
    program = Simulated(gains={"leaky": 2.0, "fused": 1.3})
    pairs = SimulatedPairs(program, crashes={"leaky": how})
    results = try_all(program, ["leaky", "fused", "a"], pairs=pairs)
    assert recommended(results) == ["fused"]
    assert row(results, "leaky").verdict == "failed" and why(row(results, "leaky")) == [told]
    assert not any(doubt.fact in IN_TURNS for doubt in results.doubts)


class Hangs(SimulatedPairs):
    """The fix's block does not end in these pairs of it."""

    in_pairs: tuple[int, ...] = ()

    def __call__(self, one, other, order, most_s):
        number = sum("fused" in names[1] for names in self.pairs)
        self.crashes = {"fused": "late"} if number in self.in_pairs else {}
        return super().__call__(one, other, order, most_s)


def test_one_block_that_does_not_end_costs_a_fix_that_pair_and_no_more():
    """A starved machine held one block up, and three pairs of 1.37x were thrown away."""
    for in_pairs, verdict in (((2,), "faster"), ((2, 3), "failed")):
        program = Simulated(gains={"fused": 1.3})
        pairs = Hangs(program)
        pairs.in_pairs = in_pairs
        results = try_all(program, ["fused"], pairs=pairs)
        assert row(results, "fused").verdict == verdict
    assert recommended(results) == []


def test_a_crash_that_the_untouched_program_had_not_come_to_is_repeated_first():
    """It may be the program's own; the third is the fix's."""
    program = Simulated(gains={"leaky": 2.0})
    pairs = SimulatedPairs(program, crashes={"leaky": "failed"}, first=True)
    results = try_all(program, ["leaky"], pairs=pairs)
    assert row(results, "leaky").verdict == "failed"
    assert [names[1] for names in pairs.pairs].count("leaky") == 3


def test_the_untouched_programs_own_crash_is_no_fixs():
    """It dies at an epoch's end beyond what was observed; by lot the fix comes there first."""
    program = Simulated(gains={"fused": 1.3})
    pairs = SimulatedPairs(program, crashes={"fused": "failed", "": "failed"}, first=True)
    results = try_all(program, ["fused"], pairs=pairs)
    assert recommended(results) == ["fused"]
    assert fact("untouched-failed", iterations=100) in results.doubts


def test_a_long_pause_of_the_program_in_its_first_block_is_no_failure_of_a_fix():
    """An evaluation of minutes, which the fix came to first: it was "given up" and gone."""
    program = Simulated(gains={"fused": 1.3})
    pairs = SimulatedPairs(program, crashes={"fused": "paused"})
    results = try_all(program, ["fused", "a"], pairs=pairs)
    assert row(results, "fused").verdict == "faster"
    [beside] = [each for each in row(results, "fused").why if each.fact == "failed-beside-another"]
    assert beside.values["why"]["fact"] == "first-block-did-not-end"


def test_a_set_that_fails_beside_the_best_one_costs_the_best_one_nothing():
    """The one that had only been stopped was launched alone from then on, and all others too."""
    program = Simulated(gains={"fused": 1.5, "nice": 1.02}, noise=SHARED)
    pairs = SimulatedPairs(program, alone=("nice",))
    results = try_all(program, ["fused", "nice", "a"], pairs=pairs)
    assert recommended(results) == ["fused"]
    assert why(row(results, "fused")) == []
    assert not any(doubt.fact == "never-beside-itself" for doubt in results.doubts)


def test_one_that_has_no_room_beside_another_leaves_the_others_side_by_side():
    program = Simulated(gains={"large": 1.5, "fused": 1.3})
    pairs = SimulatedPairs(program, alone=("large",))
    results = try_all(program, ["fused", "large", "a"], pairs=pairs)
    assert not any(doubt.fact == "never-beside-itself" for doubt in results.doubts)
    after = [names for names in pairs.pairs if "large" not in names[1]]
    assert after


def test_what_a_fix_compiles_is_not_charged_to_the_untouched_program():
    """Half of it was: one pair of 100 s made every pair after it look as dear, and none fitted."""
    program = Simulated(setup_s={"compile": 90.0})
    engine, specs = engine_of(program, pairs=SimulatedPairs(program)), SimulatedSpecs()
    specs.setup_s = {"compile": 15.0}
    pair = engine.pair(specs.of(FixSet.of("compile")))
    assert engine.expected_launch_s(UNTOUCHED) == pytest.approx(5.0)
    assert engine.expected_launch_s(specs.of(FixSet.of("b"))) == pytest.approx(5.0)
    assert pair.seconds == pytest.approx((5.0, 95.0))


def test_a_fix_that_refuses_is_told_from_one_that_fails():
    program = Simulated(states={"picky": "refused"})
    results = try_all(program, ["picky", "a"], pairs=SimulatedPairs(program))
    assert row(results, "picky").verdict == "refused"
    assert row(results, "picky").why == [says_why("picky")]
    assert [one for one, _ in program.launched].count("picky") == 1


@pytest.mark.parametrize("budget_s", [12.0, 30.0, 45.0, 80.0, 150.0])
def test_the_budget_holds(budget_s):
    program = Simulated(gains={"fused": 1.3})
    results = try_all(program, ["fused", "a", "b"], budget_s, pairs=SimulatedPairs(program))
    assert program.now <= budget_s
    if budget_s >= 80:
        members = recommended(results)
        assert "fused" in members


def test_ctrl_c_keeps_what_was_measured():
    program = Simulated(gains={"fused": 1.3}, interrupt_at=5)
    results = try_all(program, ["fused", "a"], pairs=SimulatedPairs(program))
    assert results.interrupted and sum(one.pairs for one in results.trials) >= 1


def test_a_plain_gain_gets_the_pairs_that_a_look_at_the_others_would_take():
    """Five pairs in all: looks at three left two, which decided nothing."""
    program = Simulated(gains={"big": 1.6}, noise=ROUGH)
    pairs = SimulatedPairs(program)
    known = {"could_gain": {"big": 3.0}, "facts": {"big": FixFacts(p_helps=0.8)}}
    results = try_all(program, ["big", "a", "b", "c"], 52.0, pairs=pairs, **known)
    assert recommended(results) == ["big"]
    assert program.now <= 52.0


def test_what_ends_the_same_wait_is_not_put_together_unmeasured():
    """With workers each process fills a cache of its own: both were slower than one alone."""
    waits = FixFacts(phases=frozenset({"data_wait_s"}))
    program = Simulated(gains={"cache": 2.0, "workers": 1.7, "cache + workers": 0.4, "fused": 1.1})
    facts = {"cache": waits, "workers": waits, "fused": FixFacts()}
    for budget_s in (75.0, 90.0, 120.0):
        pairs = SimulatedPairs(program)
        try_all(program, ["cache", "workers", "fused"], budget_s, pairs=pairs, facts=facts)
        sets = [name for pair in pairs.pairs for name in pair if " + " in name]
        assert not any("cache" in name and "workers" in name for name in sets), budget_s
