import math

import numpy as np
import pytest

from torchdoctor.bench.pair_times import seconds_per_sample
from torchdoctor.schema import Block, Boundary, Interval, LaunchTiming, StepStatistics
from torchdoctor.trials import compare


def launch(step_s, samples=None, **more):
    return LaunchTiming(
        ended="measured", step_s=step_s, window_s=sum(step_s), samples=samples, **more
    )


def test_time_per_sample_by_median_and_by_the_whole_window():
    timing = launch([0.1] * 9 + [1.1], samples=40)
    assert seconds_per_sample(timing, "median") == pytest.approx(0.1 / 4)
    assert seconds_per_sample(timing, "mean") == pytest.approx(2.0 / 40)
    assert seconds_per_sample(timing, "mean", per_step=True) == pytest.approx(0.2)


def test_a_failed_launch_has_no_time():
    assert seconds_per_sample(LaunchTiming(ended="failed", step_s=[0.1]), "mean") is None
    assert seconds_per_sample(LaunchTiming(ended="measured"), "mean") is None


def test_two_kinds_of_steps_are_judged_by_the_mean():
    even, uneven = launch([0.1] * 10), launch([0.01] * 9 + [1.0])
    assert compare.decided_by([even, even], None) == "median"
    assert compare.decided_by([uneven, uneven], None) == "mean"
    steps = StepStatistics(
        boundary=Boundary(kind="loader"),
        steps=9,
        warmup_steps=0,
        median_s=1,
        mean_s=2,
        p10_s=1,
        p90_s=1,
        two_modes=True,
    )
    assert compare.decided_by([even], steps) == "mean"


def test_a_host_ahead_of_its_gpu_is_judged_by_whole_blocks():
    # Nine steps of the host in 88 ms each; in the tenth it waits for what the GPU has left to do.
    ahead = launch([0.088] * 9 + [0.208], on_device=True)
    assert compare.decided_by([ahead], None) == "mean"
    assert seconds_per_sample(ahead, "mean") == pytest.approx(0.1)


def test_blocks_differ_where_a_few_hold_what_takes_long():
    def blocks(*step_s):
        return launch([*step_s], blocks=[Block(step_s=[x, x]) for x in step_s])

    assert not compare.blocks_differ([blocks(0.1, 0.1, 0.1, 0.11)])
    assert compare.blocks_differ([blocks(0.1, 0.1, 0.1, 0.5)])
    assert not compare.blocks_differ([launch([0.1, 0.5])])


@pytest.mark.xdist_group("scipy")
def test_interval_and_p_are_those_of_the_paired_t_test():
    from scipy import stats

    differences = [0.11, 0.07, 0.15, 0.08, 0.12]
    expected = stats.ttest_1samp(differences, 0.0)
    low, high = expected.confidence_interval(0.95)
    found = compare.interval(differences)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.estimate == pytest.approx(math.exp(np.mean(differences)))
    assert compare.p_value(differences) == pytest.approx(expected.pvalue)


def test_one_pair_has_no_interval():
    assert compare.interval([0.3]) is None
    assert compare.p_value([0.3]) == 1.0


def test_wild_pairs_give_a_finite_interval():
    found = compare.interval([5.0, -5.0])
    assert math.isfinite(found.low) and math.isfinite(found.high)


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (None, 0.02),
        (Interval(estimate=1.0, low=0.995, high=1.005), 0.02),
        (Interval(estimate=1.0, low=0.97, high=1.03), 1 / 0.97 - 1),
        (Interval(estimate=1.0, low=0.5, high=2.0), 0.05),
    ],
)
def test_delta_follows_the_noise_floor_between_its_bounds(floor, expected):
    assert compare.delta(floor) == pytest.approx(expected)
