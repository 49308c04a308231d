from __future__ import annotations

from torchdoctor.observe.window import choose_window
from torchdoctor.schema import Boundary, LoaderFacts, StepStatistics


def observed(mean_s, total=10_000, **more):
    return StepStatistics(
        boundary=more.pop("boundary", Boundary(kind="loader")),
        steps=total,
        warmup_steps=10,
        median_s=mean_s,
        mean_s=mean_s,
        p10_s=mean_s,
        p90_s=mean_s,
        total_steps_seen=total,
        **more,
    )


def test_at_least_thirty_steps_and_some_seconds():
    assert choose_window(observed(0.3)).measure_steps == 30
    fast = choose_window(observed(0.005))
    assert 400 <= fast.measure_steps <= 600
    assert fast.warmup_steps == 10


def test_slow_steps_stay_within_the_longest_window():
    window = choose_window(observed(1.5))
    assert window.measure_steps == 13
    assert window.max_window_s == 20.0


def test_a_small_budget_shortens_the_window():
    window = choose_window(observed(0.3), budget_s=120)
    assert window.max_window_s == 4.0
    assert window.measure_steps == 13
    # More and shorter launches say more than few long ones: launches are the samples.
    assert choose_window(observed(0.01), budget_s=70).measure_steps == 117
    assert choose_window(observed(0.01), budget_s=600).measure_steps == 250


def test_steps_of_seconds_leave_launches_to_compare():
    """20 steps of 4 s a launch would be 3 launches in 5 minutes."""
    window = choose_window(observed(4.0, settled_after=20), budget_s=300)
    assert (window.warmup_steps, window.measure_steps) == (3, 5)
    assert window.max_window_s >= 10.0
    unlimited = choose_window(observed(4.0))
    assert (unlimited.warmup_steps, unlimited.measure_steps) == (10, 10)


def test_whole_cycles():
    assert choose_window(observed(0.1, cycle_steps=14)).measure_steps == 42
    assert choose_window(observed(0.1, cycle_steps=150)).measure_steps == 150
    # An epoch of 100 s cannot be measured whole.
    assert choose_window(observed(0.1, cycle_steps=1000)).measure_steps == 30


def test_warmup_lasts_until_settled_and_the_stock_of_batches_is_drained():
    assert choose_window(observed(0.1, settled_after=25)).warmup_steps == 25
    workers = [LoaderFacts(ident=0, num_workers=8, prefetch_factor=4)]
    assert choose_window(observed(0.1), loaders=workers).warmup_steps == 32
    other = [LoaderFacts(ident=1, num_workers=8)]
    assert choose_window(observed(0.1), loaders=other).warmup_steps == 10


def test_a_short_program_gives_what_it_has():
    window = choose_window(observed(0.1, total=24, program_ended=True))
    assert window.warmup_steps + window.measure_steps <= 24
    assert window.measure_steps >= 14
    tiny = choose_window(observed(0.1, total=3, program_ended=True))
    assert (tiny.warmup_steps, tiny.measure_steps) == (1, 2)
    # Five more would be seen if it had not been stopped.
    assert choose_window(observed(0.1, total=24)).measure_steps == 30
