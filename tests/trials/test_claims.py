"""Intervals of a set's own pairs: finite from the first, and true as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchdoctor.trials import compare
from torchdoctor.trials.beliefs import Arm, Beliefs, Results, Step
from torchdoctor.trials.claims import TAIL_SHARE, TAIL_WIDTH, BlockGain, claim_interval
from torchdoctor.trials.prices import Prices
from torchdoctor.trials.search_policy import SearchPolicy


def test_one_pair_has_a_finite_interval() -> None:
    claim = claim_interval([math.log(5.7)])
    assert math.log(2.5) < claim.low < claim.estimate < claim.high < math.log(14)
    interval = compare.estimate([math.log(5.7)])
    assert interval is not None and 2.5 < interval.low < 5.7 < interval.high < 14


def test_more_pairs_narrow_it_and_a_far_one_does_not_pull_the_estimate_along() -> None:
    even = [0.30, 0.28, 0.31, 0.29]
    widths = [claim_interval(even[:pairs]).half_width for pairs in (1, 2, 4)]
    assert widths[0] > 2 * widths[1] > 2 * widths[2]
    assert claim_interval([*even, 1.2]).estimate == pytest.approx(0.30, abs=0.05)


def test_blocks_of_one_launch_count_beside_a_pair_but_do_not_outvote_it() -> None:
    """nanoGPT gained 1.15x in blocks and in a pair, and a minute was over before more pairs."""
    one = claim_interval([0.14])
    agreed = claim_interval([0.14], blocks=BlockGain(gain=0.157, error=0.043))
    assert one.low < 0 < agreed.low and agreed.half_width < 0.75 * one.half_width
    for other in (-0.4, 1.4):
        denied = claim_interval([0.14], blocks=BlockGain(gain=other, error=0.03))
        assert denied.low < 0.0 < 0.14 < denied.high and denied.half_width > one.half_width
    # Channels-last: blocks of one launch said 2.1x, pairs 1.5x.
    more = claim_interval([0.43, 0.45], blocks=BlockGain(gain=0.75, error=0.06))
    assert more.estimate < 0.48


@pytest.mark.parametrize("gain", [30.0, 5.65, 2.5, 0.02])
def test_blocks_that_show_nothing_do_not_make_less_of_a_clear_pair(gain: float) -> None:
    """A cache of 5.65x became 1.2x where its blocks had shown none of it."""
    log, alone = math.log(gain), claim_interval([math.log(gain)])
    denied = claim_interval([log], blocks=BlockGain(gain=0.0, error=0.03))
    assert denied.low < log < denied.high
    assert denied.estimate == pytest.approx(alone.estimate, abs=0.1)


def test_a_pair_that_is_ten_times_faster_is_no_outlier() -> None:
    """No pair of a program with itself was ever off by half, so two far pairs decide."""
    search = SearchPolicy(
        Beliefs(
            [Arm(name="compile", fixes=frozenset(["compile"]), ceiling=3.7, once_s=60.0)],
            Step(),
            Results(pairs={frozenset(["compile"]): [math.log(10.6), math.log(9.8)]}),
            seed=0,
        ),
        Prices(budget_s=100.0, left_s=10.0, launch_s=2.5),
    )
    assert [claim.members for claim in search.claims] == [{"compile"}]


@pytest.mark.parametrize(("sigma", "pairs"), [(0.016, 2), (0.06, 3), (0.14, 2)])
def test_intervals_hold_on_quiet_and_on_bad_machines(sigma: float, pairs: int) -> None:
    random = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        far = np.where(random.random(pairs) < TAIL_SHARE, TAIL_WIDTH, 1.0)
        claim = claim_interval(list(0.2 + sigma * far * random.normal(size=pairs)))
        held += claim.low <= 0.2 <= claim.high
    assert held >= 180
