"""How long the blocks are in which two versions take turns, and whether both fit at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from torchdoctor.machine import nvml
from torchdoctor.machine.usable_cpus import memory_limit_bytes
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.pairs.switch_blocks import (
    BLOCK_S,
    DISCARDED_S,
    FEWEST_DISCARDED,
    FEWEST_STEPS,
    MOST_BLOCK_S,
)
from torchdoctor.words import StepStatistics

FEWEST_BLOCKS, MOST_BLOCKS = 6, 16  # of each version in one pair of launches
_HANDOVER_S = 0.03
_MEMORY_TO_SPARE = 1.1
_SLOW = 4.0  # times as long as expected: a block is cut short


@dataclass(frozen=True, kw_only=True)
class TurnBlocks:
    """Iterations of a turn, and how many turns each version gets; `pair_s`: of both together."""

    warmup_steps: int
    block_steps: int
    discard_steps: int
    blocks: int
    step_s: float
    pair_s: float

    @property
    def turn_s(self) -> float:
        """One turn of one version, with what is handed over."""
        return (self.block_steps + self.discard_steps) * self.step_s + _HANDOVER_S

    @property
    def most_turn_s(self) -> float:
        """What a turn may take where starting is charged to the turns: to wait for at least."""
        return self.pair_s / (2 * self.blocks)

    def shortened(self, blocks: int) -> TurnBlocks:
        """So many of each side at most: what a pair saves goes into other pairs."""
        fewer = max(self.blocks - blocks, 0)
        return replace(
            self, blocks=self.blocks - fewer, pair_s=self.pair_s - 2 * fewer * self.turn_s
        )

    @property
    def measured_steps(self) -> int:
        """Iterations of one version after its warm-up."""
        return self.blocks * (self.block_steps + self.discard_steps)

    def warmed_up(self, steps: int) -> TurnBlocks:
        """With so long a warm-up, where that at most doubles what a pair takes."""
        more_s = 2 * max(steps - self.warmup_steps, 0) * self.step_s
        if not 0 < more_s <= self.pair_s:
            return self
        return replace(self, warmup_steps=steps, pair_s=self.pair_s + more_s)

    @property
    def block_most_s(self) -> float:
        """A block that takes longer is cut short."""
        return _SLOW * self.block_steps * self.step_s

    @property
    def plan(self) -> dict[str, float]:
        """What the probe is told: see `probe/turns.py`."""
        return {
            "warmup_steps": self.warmup_steps,
            "block_steps": self.block_steps,
            "discard_steps": self.discard_steps,
            "block_most_s": self.block_most_s,
        }


def choose_turns(
    slower: StepStatistics, window: Window, start_s: float, most_s: float, steps: int | None = None
) -> TurnBlocks | None:
    """Blocks of whole cycles, 6 to 16 of each version: twice the time that starting them takes.

    Args:
        slower: the observed steps of the slower version.
        window: of a timed launch: its warm-up is discarded here too.
        start_s: from a launch's start to its first iteration.
        most_s: what one pair of launches may take.
        steps: measured iterations of each version, where the user says so.

    Returns:
        None where several processes train, where the program ends too soon, and where steps come
        in two kinds whose cycle is too long for a block.
    """
    if slower.trainers > 1:
        return None
    step_s = max(slower.mean_s, 1e-6)
    size = max(FEWEST_STEPS, math.ceil(BLOCK_S / step_s))
    if steps is not None:
        size = min(size, max(steps // 2, 1))
    whole = math.ceil(size / (slower.cycle_steps or 1)) * (slower.cycle_steps or 1)
    if whole * step_s <= max(MOST_BLOCK_S, FEWEST_STEPS * step_s):
        size = whole
    elif slower.two_modes:
        return None  # the long step would be in one block of many, or in none
    discard = max(FEWEST_DISCARDED, math.ceil(DISCARDED_S / step_s))
    block_s = (size + discard) * step_s + _HANDOVER_S
    # Both start at the same time, on the same cores; each warms up alone.
    setup_s = 1.5 * start_s + 2 * window.warmup_steps * step_s
    blocks = min(max(setup_s / block_s, FEWEST_BLOCKS), MOST_BLOCKS)
    blocks = min(blocks, max((most_s - setup_s) / (2 * block_s), 2))
    if steps is not None:
        blocks = max(math.ceil(steps / size), 2)
    if slower.program_ended:
        left = slower.total_steps_seen - window.warmup_steps - 1
        blocks = min(blocks, left // (size + discard))
    even = int(blocks) // 2 * 2  # whole ABBAs
    if even < 2:
        return None
    return TurnBlocks(
        warmup_steps=window.warmup_steps,
        block_steps=size,
        discard_steps=discard,
        blocks=even,
        step_s=step_s,
        pair_s=setup_s + 2 * even * block_s,
    )


def why_in_turns(slower: StepStatistics) -> str:
    """Why `choose_turns` gives no blocks, as half a sentence."""
    if slower.trainers > 1:
        return "several processes train, whose collectives would have to stop at the same iteration"
    if slower.program_ended:
        return "the program ends too soon for blocks of steps"
    return "its steps come in two kinds, and the cycle of the long ones is too long for a block"


def too_large(
    seen: Sequence[Observation],
    to_spare: float = _MEMORY_TO_SPARE,
    gpu_to_spare: float = _MEMORY_TO_SPARE,
) -> str | None:
    """Why both versions cannot be in memory at the same time; None: they can.

    Args:
        seen: of each version.
        to_spare: times as much as both used must be free.
        gpu_to_spare: the same of the GPU's memory, where a launch that finds none just fails.
    """
    # What processes share counts once: forked workers seem to hold all that their parent holds.
    host = [x.sensors.memory_peak_bytes or x.sensors.rss_peak_bytes or 0 for x in seen]
    free = psutil.virtual_memory().available
    limit = memory_limit_bytes()
    if to_spare * sum(host) > (free if limit is None else min(free, limit)):
        return "this machine has no memory for both at the same time"
    with nvml.session() as gpus:
        # The observed peak is of the whole device, so what others use is counted twice.
        device = [x.sensors.gpu_memory_peak_bytes or 0 for x in seen]
        for gpu in gpus.describe() if gpus is not None and any(device) else []:
            if gpu.memory_bytes and gpu_to_spare * sum(device) > gpu.memory_bytes:
                return "the GPU has no memory for both at the same time"
    return None
