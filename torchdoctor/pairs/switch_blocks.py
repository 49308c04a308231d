"""How long the blocks of a switching launch are, and what a launch of them costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchdoctor.observe.window import Window, prefetched
from torchdoctor.words import LoaderFacts, StepStatistics

BLOCK_S = 0.4  # of a block, at least
FEWEST_STEPS = 5  # of a block
DISCARDED_S = 0.1  # after a switch, at least
FEWEST_DISCARDED = 2
MOST_BLOCK_S = 5.0
_MUCH_LONGER = 2  # times as many steps: worth doing without whole cycles
_SLOW = 4.0  # times as long as the untouched program: a block is cut short, its arm given up


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Iterations of a block and of what is discarded before it.

    Times are what the untouched program takes, in seconds.
    """

    block_steps: int
    discard_steps: int
    step_s: float
    setup_s: float  # until the first block can begin
    steps_left: int | None = None  # after the warm-up, where the program ends by itself
    cycle_steps: int = 1
    batches_per_step: float = 1.0
    arm_steps: tuple[int, ...] = ()  # by arm, where blocks differ in length
    more_steps: int = 0  # of a round, beyond those of `block_steps` and `discard_steps`
    shorter: Blocks | None = None  # of even steps: without whole cycles, where time is short

    @property
    def plan(self) -> dict[str, Any]:
        """What the probe is told of them."""
        return {
            "block_steps": self.block_steps,
            "arm_steps": list(self.arm_steps),
            "discard_steps": self.discard_steps,
            "block_most_s": self.block_most_s,
        }

    @property
    def block_most_s(self) -> float:
        """A block that takes longer is cut short."""
        return _SLOW * self.block_steps * self.step_s

    def with_workers(self, arms: Sequence[tuple[int, int]]) -> Blocks:
        """The same for arms that have loader workers of their own.

        Args:
            arms: by arm, its own workers and the batches that each prepares ahead.
        """
        lengths = tuple(self._steps_with(workers) for workers, _ in arms)
        more = sum(lengths) - self.block_steps * len(lengths)
        for workers, ahead in arms:  # what lies ready is used up before a block
            stock = math.ceil(workers * ahead / max(self.batches_per_step, 1.0))
            more += max(stock - self.discard_steps, 0)
        return replace(self, arm_steps=lengths, more_steps=more if len(lengths) > 1 else 2 * more)

    def _steps_with(self, workers: int) -> int:
        """Iterations of a block in which so many workers make the batches.

        Those that are alike finish together, and their batches come in bursts: of a part of a
        burst the mean would be a matter of chance.
        """
        if workers < 2:
            return self.block_steps
        unit = math.lcm(self.cycle_steps, workers)
        if unit > max(4 * self.block_steps, 2 * workers):
            unit = self.cycle_steps
        return math.ceil(max(self.block_steps, 2 * workers) / unit) * unit

    def round_s(self, arms: int) -> float:
        """One round: each arm once and the untouched program twice; one arm twice as well."""
        return self._round_steps(arms) * self.step_s

    def rounds_within(self, arms: int, seconds: float) -> int:
        """How many whole rounds of so many arms a launch that may take so long has room for."""
        found = (seconds - self.setup_s) / self.round_s(arms)
        if self.steps_left is not None:
            found = min(found, self.steps_left / self._round_steps(arms))
        return max(int(found), 0)

    def launch_s(self, arms: int, rounds: int) -> float:
        """The whole launch."""
        return self.setup_s + rounds * self.round_s(arms)

    def _round_steps(self, arms: int) -> int:
        each = self.block_steps + self.discard_steps
        return (4 if arms == 1 else arms + 2) * each + self.more_steps


def choose_blocks(
    observed: StepStatistics, window: Window, start_s: float, loaders: Sequence[LoaderFacts] = ()
) -> Blocks | None:
    """Blocks of whole cycles, where the program lets itself be compared in blocks.

    Args:
        observed: the observation's statistics.
        window: of timed launches: its warm-up is this launch's too.
        start_s: from a launch's start to the first iteration.
        loaders: the main process's loaders; what their workers have prefetched while one arm was
            on must be used up before another one is measured.

    Returns:
        None where several processes train (they would have to switch at the same iteration), where
        a backward separates iterations (the switch would fall between a forward and its backward),
        where steps come in two kinds whose cycle is not known or too long for a block.
    """
    if observed.trainers > 1 or observed.boundary.kind == "backward":
        return None
    step_s = max(observed.mean_s, 1e-6)
    steps = max(FEWEST_STEPS, math.ceil(BLOCK_S / step_s))
    cycle = observed.cycle_steps or 1
    plain, whole = steps, math.ceil(steps / cycle) * cycle
    if whole * step_s <= max(MOST_BLOCK_S, FEWEST_STEPS * step_s):
        steps = whole
    elif observed.two_modes:
        return None
    if observed.two_modes and observed.cycle_steps is None:
        return None
    left = observed.total_steps_seen - window.warmup_steps
    discard = max(FEWEST_DISCARDED, math.ceil(DISCARDED_S / step_s), prefetched(observed, loaders))
    found = Blocks(
        block_steps=steps,
        discard_steps=discard,
        step_s=step_s,
        setup_s=start_s + window.warmup_steps * step_s,
        steps_left=max(left, 0) if observed.program_ended else None,
        cycle_steps=cycle if steps % cycle == 0 else 1,
        batches_per_step=observed.batches_per_step,
    )
    if observed.two_modes or steps < _MUCH_LONGER * plain:
        return found
    return replace(found, shorter=replace(found, block_steps=plain, cycle_steps=1))
