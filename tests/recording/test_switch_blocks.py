"""How long the blocks of a switching launch are."""

from __future__ import annotations

from typing import Any

import pytest

from torchdoctor.bench.block_plan import SwitchBlocks, choose_switch_blocks
from torchdoctor.launch.launch_spec import LaunchSpec, Switching
from torchdoctor.observe.window import Window
from torchdoctor.schema import Boundary, LoaderFacts, StepStatistics

WINDOW = Window(warmup_steps=10, measure_steps=30, max_window_s=20.0)


def observed(mean_s: float, **more: Any) -> StepStatistics:
    known = {"boundary": Boundary(kind="loader"), "total_steps_seen": 10_000, **more}
    return StepStatistics(
        steps=100,
        warmup_steps=10,
        median_s=mean_s,
        mean_s=mean_s,
        p10_s=mean_s,
        p90_s=mean_s,
        **known,
    )


@pytest.mark.parametrize(
    ("step_s", "steps", "discarded"),
    [(0.15, 4, 2), (0.01, 40, 10), (0.3, 2, 2), (0.42, 1, 1), (0.7, 1, 1), (2, 1, 1)],
)
def test_enough_iterations_and_enough_time(step_s: float, steps: int, discarded: int) -> None:
    blocks = choose_switch_blocks(observed(step_s), WINDOW, 4.0)
    assert blocks is not None
    assert (blocks.block_steps, blocks.discard_steps) == (steps, discarded)
    assert blocks.setup_s == pytest.approx(4.0 + 10 * step_s)


def test_whole_cycles_where_they_fit() -> None:
    accumulating = choose_switch_blocks(observed(0.1, cycle_steps=4), WINDOW, 4.0)
    assert accumulating is not None and accumulating.block_steps == 8
    rollouts = observed(0.01, cycle_steps=150, two_modes=True)
    blocks = choose_switch_blocks(rollouts, WINDOW, 4.0)
    assert blocks is not None and blocks.block_steps == 150
    # An epoch of ten minutes is no block; where its end costs little, blocks leave it out.
    epochs = choose_switch_blocks(observed(0.1, cycle_steps=6000), WINDOW, 4.0)
    assert epochs is not None and epochs.block_steps == 5


@pytest.mark.parametrize(
    "more",
    [
        {"cycle_steps": 6000, "two_modes": True},
        {"two_modes": True},
        {"trainers": 2},
        {"boundary": Boundary(kind="backward")},
    ],
)
def test_some_programs_are_not_compared_in_blocks(more: dict[str, Any]) -> None:
    assert choose_switch_blocks(observed(0.1, **more), WINDOW, 4.0) is None


def test_what_workers_hold_ready_is_discarded() -> None:
    """A faster side would live on the stock that the slower one let them fill."""
    loader = LoaderFacts(ident=0, num_workers=4, prefetch_factor=3)
    blocks = choose_switch_blocks(observed(0.2), WINDOW, 4.0, [loader])
    assert blocks is not None and blocks.discard_steps == 12


def test_rounds_that_fit() -> None:
    blocks = choose_switch_blocks(observed(0.1), WINDOW, 4.0)
    assert blocks is not None  # a block and its discarded iterations: 0.7 s
    three = arms((0, 2), (0, 2), (0, 2))
    assert blocks.round_s(three[:1]) == blocks.round_s(three[:2]) == pytest.approx(2.8)
    assert blocks.round_s(three) == pytest.approx(3.5)
    assert blocks.has_room(three, 100) and not blocks.has_room(three, 200), "ten minutes"
    ended = choose_switch_blocks(
        observed(0.1, program_ended=True, total_steps_seen=90), WINDOW, 4.0
    )
    assert ended is not None and ended.has_room(three, 2) and not ended.has_room(three, 3)


def arms(*workers: tuple[int, int]) -> list[LaunchSpec]:
    """Arms with so many workers of their own, each with batches ahead."""
    return [LaunchSpec(name="", switching=Switching(workers=n, ahead=x)) for n, x in workers]


def lengths(blocks: SwitchBlocks | None, *workers: int) -> list[int]:
    assert blocks is not None
    return blocks.arm_steps(arms(*((n, 2) for n in workers)))


def test_blocks_hold_whole_bursts_of_workers() -> None:
    """Four workers that finish together: the mean of two and a half bursts says nothing."""
    blocks = choose_switch_blocks(observed(0.1), WINDOW, 4.0)
    assert lengths(blocks, 0, 1, 2, 4, 8) == [5, 5, 6, 8, 16]
    accumulating = choose_switch_blocks(observed(0.1, cycle_steps=4), WINDOW, 4.0)
    assert lengths(accumulating, 2, 6, 16) == [8, 12, 32]
    rollouts = choose_switch_blocks(observed(0.01, cycle_steps=150, two_modes=True), WINDOW, 4.0)
    assert lengths(rollouts, 7) == [150], "1050 are too many"


def test_what_workers_of_their_own_add_to_a_round() -> None:
    plain = choose_switch_blocks(observed(0.1, batches_per_step=2.0), WINDOW, 4.0)
    assert plain is not None  # 5 iterations and 2 discarded
    three = arms((0, 2), (4, 2), (8, 4))
    # 3 and 11 more of their blocks, 2 and 14 more until what lies ready is used up.
    assert plain.round_s(three) == pytest.approx(3.5 + 3.0)
    assert plain.round_s(three[2:]) == pytest.approx(2.8 + 5.0)


def test_even_steps_need_no_whole_epochs() -> None:
    """An epoch of 40 steps of 0.1 s: blocks of four seconds fit no ceiling's time."""
    even = choose_switch_blocks(observed(0.1, cycle_steps=40), WINDOW, 4.0)
    assert even is not None and (even.block_steps, even.cycle_steps) == (5, 1)
    rollouts = choose_switch_blocks(observed(0.1, cycle_steps=40, two_modes=True), WINDOW, 4.0)
    assert rollouts is not None and rollouts.block_steps == 40
