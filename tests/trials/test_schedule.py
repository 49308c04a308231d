import math

import pytest

from torchdoctor.trials.schedule import (
    Budget,
    Confirmation,
    Finalists,
    Screened,
    Screening,
    choose_finalists,
    hopeless,
    plan_confirmation,
    plan_screening,
)


def test_a_budget_runs_on_its_own_clock():
    now = [100.0]
    budget = Budget(10.0, lambda: now[0])
    now[0] = 104.0
    assert (budget.elapsed(), budget.left()) == (4.0, 6.0)
    assert Budget(None, lambda: now[0]).left() == math.inf


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        (math.inf, Screening(candidates=8, rounds=2)),
        (2 * 10 + 24 + 2, Screening(candidates=8, rounds=2)),
        (10 + 24 + 2, Screening(candidates=8, rounds=1)),
        (10 + 8, Screening(candidates=8, rounds=1)),
        (6 + 8, Screening(candidates=4, rounds=1)),
        (3 + 8, Screening(candidates=0, rounds=0)),
    ],
)
def test_screening_leaves_time_to_confirm(left_s, expected):
    assert plan_screening([1.0] * 8, 1.0, left_s) == expected


def test_one_candidate_needs_no_screening():
    assert plan_screening([1.0], 1.0, math.inf) == Screening(candidates=0, rounds=0)


def test_an_expensive_candidate_at_the_end_does_not_keep_the_others_out():
    plan = plan_screening([1.0, 1.0, 1.0, 30.0], 1.0, 50.0)
    assert plan.rounds == 1 and plan.candidates == 3


@pytest.mark.parametrize(
    ("expected_s", "left_s", "expected"),
    [
        ([1.0, 1.0, 1.0], math.inf, Confirmation(finalists=3, pairs=6)),
        ([1.0, 1.0, 1.0], 5 * 4 + 8, Confirmation(finalists=3, pairs=4)),
        ([1.0, 1.0, 1.0], 4 * 4 + 8, Confirmation(finalists=2, pairs=4)),
        ([1.0, 1.0], 4 * 4, Confirmation(finalists=2, pairs=4)),
        ([1.0, 1.0], 12, Confirmation(finalists=1, pairs=6)),
        ([1.0], 11, Confirmation(finalists=1, pairs=4)),
        ([1.0], 6, Confirmation(finalists=1, pairs=2)),
        ([1.0], 1, Confirmation(finalists=1, pairs=0)),
    ],
)
def test_confirmation_leaves_time_to_measure_them_together(expected_s, left_s, expected):
    assert plan_confirmation(expected_s, 1.0, left_s) == expected


def test_a_one_time_cost_is_planned_once() -> None:
    """60 s of compiling, and pairs of 8 s after it: they were planned as 64 s each."""
    assert plan_screening([64.0], 4.0, 110.0, least=1, pairs_up=True) == Screening(
        candidates=0, rounds=0
    )
    found = plan_screening([64.0], 4.0, 110.0, least=1, pairs_up=True, again_s=[12.0])
    assert found == Screening(candidates=1, rounds=1)
    assert plan_confirmation([64.0], 4.0, 120.0).pairs == 1
    assert plan_confirmation([64.0], 4.0, 120.0, again_s=[12.0]).pairs == 4
    several = plan_confirmation([64.0, 4.0], 4.0, 170.0, True, [12.0, 4.0])
    assert several == Confirmation(finalists=2, pairs=4)


def screened(key, *differences, fix=None):
    return Screened(key=key, fix=fix or key, differences=list(differences))


def test_the_best_setting_of_each_fix_that_looks_faster_goes_on():
    chosen = choose_finalists(
        [
            screened("w2", 0.3, 0.32, fix="workers"),
            screened("w4", 0.5, 0.52, fix="workers"),
            screened("w8", 0.4, 0.42, fix="workers"),
            screened("slow", -0.2, -0.21),
            screened("fused", 0.05, 0.07),
            screened("failed"),
        ]
    )
    # The other settings wait, should the best one fail.
    assert (chosen.worth, chosen.others) == (["w4", "fused"], ["w8", "w2"])


def test_nobody_goes_on_where_the_noise_is_small_and_nobody_looks_faster():
    quiet = [screened(str(i), 0.004, 0.005) for i in range(6)]
    assert choose_finalists(quiet) == Finalists(worth=[], others=[])
    slow = [screened("a", -0.1, -0.11), screened("b", -0.1, -0.09)]
    assert choose_finalists(slow) == Finalists(worth=[], others=[])


def test_those_that_noise_could_hide_a_gain_of_are_next_in_line():
    noisy = [screened("a", 0.09, -0.09), screened("b", -0.2, 0.1), screened("c", -0.9, -1.0)]
    assert choose_finalists(noisy) == Finalists(worth=[], others=["a", "b"])


def test_after_one_look_at_each_only_the_clearly_slower_are_out():
    looks = [screened("good", 0.2), screened("maybe", -0.05), screened("slow", -1.6)]
    assert choose_finalists(looks) == Finalists(worth=["good"], others=["maybe"])


def test_a_launch_that_somebody_elses_load_halved_is_not_dropped():
    """The mean of one launch was hit, most of its steps were not."""
    hit = Screened(key="good", fix="good", differences=[-0.6], other=[0.25])
    null = Screened(key="null", fix="null", differences=[-0.02], other=[-0.01])
    assert choose_finalists([null, hit]).worth == ["good"]
    # Kept, but behind who is faster by the figure that decides.
    bursts = Screened(key="bursts", fix="bursts", differences=[0.05], other=[0.7])
    even = Screened(key="even", fix="even", differences=[0.5], other=[0.5])
    assert choose_finalists([hit, bursts, even]).worth == ["even", "bursts", "good"]


def test_pairs_end_early_only_where_they_cannot_show_a_gain_any_more():
    assert hopeless([-0.02, -0.01], 6)
    assert hopeless([-0.5, 0.1], 6)
    assert not hopeless([-0.05, 0.1], 6)  # the noise is as large as a gain
    assert not hopeless([-0.02], 6)  # one pair says nothing
    assert not hopeless([-0.02, -0.01], 2)  # nothing left to save
