"""Which fixes are recommended together: what adds nothing is left out, what adds is taken in."""

from __future__ import annotations

import pytest
from simulated_program import TYPICAL, Simulated, try_all


class Interacting(Simulated):
    """Launches whose gain is that of the whole set, by the set's names."""

    def __call__(self, fixes, *, seed_offset=0):
        names = frozenset(fix for fix, _ in fixes)
        whole = self.together.get(names)
        known = dict(self.gains)
        if whole is not None:
            first, *rest = sorted(names)
            self.gains = {first: whole, **dict.fromkeys(rest, 1.0)}
        try:
            return super().__call__(fixes, seed_offset=seed_offset)
        finally:
            self.gains = known


def interacting(together, **fields):
    program = Interacting(**fields)
    program.together = {frozenset(names.split()): gain for names, gain in together.items()}
    return program


def recommended(results):
    return {one.fix for one in results.recommendation.fixes}


@pytest.mark.parametrize("seed", range(6))
def test_a_fix_without_which_the_set_is_as_fast_is_left_out(seed):
    """Workers and a cache both hide the same loader: the second one is an edit for nothing."""
    program = interacting({"a b": 2.0}, gains={"a": 2.0, "b": 1.6}, seed=seed)
    results = try_all(program, ["a", "b", "null"])
    assert recommended(results) == {"a"}
    whole = next((one for one in results.trials if one.fix == "a + b"), None)
    assert whole is not None and whole.verdict == "faster"
    assert results.recommendation.speedup.estimate == pytest.approx(2.0, rel=0.03)


def test_what_the_set_is_slower_without_stays():
    results = try_all(Simulated(gains={"a": 2.0, "b": 1.3, "c": 1.1}), ["a", "b", "c"])
    assert recommended(results) == {"a", "b", "c"}
    assert "as fast without" not in str([one.reason for one in results.trials])


def test_a_leaning_that_was_not_confirmed_is_tried_on_top_of_the_best():
    """Channels-last gains little in float32 and much once the precision is lower."""
    added = 0
    for seed in range(8):
        program = interacting({"a c": 2.6}, gains={"a": 1.8, "c": 1.025}, noise=TYPICAL, seed=seed)
        results = try_all(program, ["a", "c"])
        alone = next(one for one in results.trials if one.fix == "c")
        if "on top of a:" in (alone.reason or ""):
            added += 1
            assert recommended(results) == {"a", "c"}
            # Against the untouched program, in pairs of its own.
            assert results.recommendation.speedup.estimate == pytest.approx(2.6, rel=0.06)
            assert results.recommendation.pairs >= 4
    assert added >= 3


def test_a_set_that_was_never_beside_the_untouched_program_has_no_row():
    results = try_all(Simulated(gains={"a": 2.0, "b": 1.02}, noise=TYPICAL, seed=3), ["a", "b"])
    for one in results.trials:
        assert one.pairs or " + " not in one.fix


def test_what_fails_on_top_of_the_best_is_shown_as_failed_and_not_taken():
    class Clash(Simulated):
        def __call__(self, fixes, *, seed_offset=0):
            self.ends = {"c": "failed"} if {fix for fix, _ in fixes} == {"a", "c"} else {}
            return super().__call__(fixes, seed_offset=seed_offset)

    for seed in range(8):
        program = Clash(gains={"a": 1.8, "c": 1.02}, noise=TYPICAL, seed=seed)
        results = try_all(program, ["a", "c"])
        assert recommended(results) <= {"a", "c"} and recommended(results) != {"a", "c"}


def test_an_addition_that_fails_does_not_keep_the_next_one_from_being_tried():
    """a alone is confirmed; c and d lean, c clashes with a, d gains much beside it."""
    tried = 0
    for seed in range(12):

        class Clash(Interacting):
            def __call__(self, fixes, *, seed_offset=0):
                self.ends = {"c": "failed"} if {"a", "c"} <= {fix for fix, _ in fixes} else {}
                return super().__call__(fixes, seed_offset=seed_offset)

        gains = {"a": 1.8, "c": 1.03, "d": 1.025}
        program = Clash(gains=gains, noise=TYPICAL, seed=seed)
        program.together = {frozenset("ad"): 2.6}
        results = try_all(program, ["a", "c", "d"])
        reasons = {one.fix: one.reason or "" for one in results.trials}
        if reasons.get("a + c") and "on top of" in reasons["d"]:
            tried += 1
            assert recommended(results) == {"a", "d"}
    assert tried


@pytest.mark.parametrize("budget_s", range(100, 700, 60))
def test_whatever_the_budget_what_is_recommended_was_measured_as_a_whole(budget_s):
    program = interacting({"a b": 2.0}, gains={"a": 2.0, "b": 1.6}, noise=TYPICAL, seed=budget_s)
    results = try_all(program, ["a", "b", "null"], float(budget_s))
    assert program.now <= budget_s
    assert recommended(results) and results.recommendation.pairs >= 4
    assert results.recommendation.speedup.estimate == pytest.approx(2.0, rel=0.06)
