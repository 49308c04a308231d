"""How long the blocks of a launch are, how many there are, and what they cost: the one planner.

Two kinds of launches are measured in blocks: two side by side that take turns (`TurnBlocks`), and
one that switches between arms (`SwitchBlocks`). Blocks hold whole cycles where these fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from torchdoctor.launch.launch_spec import LaunchSpec, Switching, plan_entries
from torchdoctor.machine import nvml
from torchdoctor.machine.environment import memory_limit_bytes
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window, prefetched
from torchdoctor.schema import Evidence, LoaderFacts, StepStatistics, fact
from torchdoctor.schema.program import UsedDevice

BLOCK_S = 0.4  # of a block, at least
FEWEST_STEPS = 5  # of a block
DISCARDED_S = 0.1  # after a switch or a wait, at least
FEWEST_DISCARDED = 2
MOST_BLOCK_S = 5.0
FEWEST_BLOCKS = 6  # of each version in one pair of launches
MOST_BLOCKS = 16
_SLOW = 4.0  # times as long as the untouched program: a block is cut short, its arm given up
_MUCH_LONGER = 2  # times as many steps: worth doing without whole cycles
_HANDOVER_S = 0.03
_MEMORY_TO_SPARE = 1.1
_CONTEXT_BYTES = 512 << 20  # of a GPU, that a process takes beside what torch reserves
_LONGEST_S = 600.0  # a launch that switches


def _block_steps(steps: StepStatistics, fewest: int, parts: bool) -> int | None:
    """Return iterations of a block: whole cycles where they fit, and else the fewest.

    `parts`: of even steps the fewest will do as well, where whole cycles would be much longer.
    None: steps come in two kinds, and the long ones would be in one block of many, or in none.
    """
    step_s = max(steps.mean_s, 1e-6)
    cycle = steps.cycle_steps or 1
    whole_cycles = math.ceil(fewest / cycle) * cycle
    fits = whole_cycles * step_s <= max(MOST_BLOCK_S, FEWEST_STEPS * step_s)
    if steps.two_modes:
        return whole_cycles if fits else None
    if parts and whole_cycles >= _MUCH_LONGER * fewest:
        return fewest
    return whole_cycles if fits else fewest


def _fewest_steps(step_s: float) -> tuple[int, int]:
    """Return the iterations of a block and of what is discarded before it, at least."""
    if step_s >= BLOCK_S:  # it makes a block, and one is enough for the machine to settle
        return 1, 1
    enough = min(FEWEST_STEPS, math.ceil(1.2 * BLOCK_S / step_s))
    discarded = max(FEWEST_DISCARDED, math.ceil(DISCARDED_S / step_s))
    return max(enough, math.ceil(BLOCK_S / step_s)), discarded


@dataclass(frozen=True, kw_only=True)
class TurnBlocks:
    """Iterations of a turn, and how many turns each version gets once both warmed up."""

    warmup_steps: int
    block_steps: int
    discard_steps: int
    blocks: int
    step_s: float
    setup_s: float
    least_s: float = 0.0  # of a block: a faster version makes as many more iterations
    in_epochs: "TurnBlocks | None" = None  # the same, for workers that each epoch starts

    @property
    def turn_s(self) -> float:
        """Return seconds of one turn of one version, with what is handed over."""
        return (self.block_steps + self.discard_steps) * self.step_s + _HANDOVER_S

    @property
    def measured_steps(self) -> int:
        """Return the iterations of one version after its warm-up."""
        return self.blocks * (self.block_steps + self.discard_steps)

    @property
    def pair_s(self) -> float:
        """Return seconds of both versions together."""
        return self.setup_s + 2 * self.blocks * self.turn_s

    def warmed_up(self, steps: int) -> "TurnBlocks":
        """Return the same with so long a warm-up, where that at most doubles what a pair takes."""
        more_s = max(steps - self.warmup_steps, 0) * self.step_s  # of one version alone
        if not 0 < more_s <= self.pair_s:
            return self
        return replace(self, warmup_steps=steps, setup_s=self.setup_s + more_s)

    @property
    def plan(self) -> dict[str, Any]:
        """Return what the probe is told: see `probe/fixkit/turns.py`."""
        return {
            "turns": {
                "warmup_steps": self.warmup_steps,
                "block_steps": self.block_steps,
                "discard_steps": self.discard_steps,
                "block_least_s": self.least_s,
                "block_most_s": _SLOW * self.block_steps * self.step_s,
            },
            "fingerprint_batches": min(self.warmup_steps, 10),
        }


def choose_turns(
    slower: StepStatistics,
    window: Window,
    start_s: float,
    most_s: float,
    steps: int | None = None,
    parts: bool = False,
) -> TurnBlocks | None:
    """Choose 6 to 16 blocks of each version: twice the time that starting them takes.

    `slower`: steps of the slower version; `most_s`: for one pair; `steps`: measured iterations of
    each version, by the user's word; `parts`: of even steps a part of a long cycle will do. None
    for the reasons that `why_in_turns` gives.
    """
    if slower.trainers > 1:
        return None
    step_s = max(slower.mean_s, 1e-6)
    fewest, discard = _fewest_steps(step_s)
    if step_s >= DISCARDED_S:
        discard = 1  # it wakes up: nothing was switched
    if steps is not None:
        fewest = min(fewest, max(steps // 2, 1))
    size = _block_steps(slower, fewest, parts)
    if size is None:
        return None
    block_s = (size + discard) * step_s + _HANDOVER_S
    # Both start at the same time, on the same cores; each warms up alone.
    setup_s = 1.5 * start_s + 2 * window.warmup_steps * step_s
    blocks = min(max(setup_s / block_s, FEWEST_BLOCKS), MOST_BLOCKS)
    blocks = min(blocks, max((most_s - setup_s) / (2 * block_s), 2))
    if steps is not None:
        blocks = max(math.ceil(steps / size), 2)
    if ends := slower.program_ended:
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
        # Of a step that grows, both versions make the same steps: later ones are longer.
        least_s=0.0 if steps is not None or ends or slower.growth is not None else BLOCK_S / 2,
        setup_s=setup_s,
    )


def why_in_turns(slower: StepStatistics) -> Evidence:
    """Return why `choose_turns` gives no blocks."""
    if slower.trainers > 1:
        return fact("several-processes-train")
    if slower.program_ended:
        return fact("ends-too-soon-for-blocks")
    return fact("cycle-too-long-for-block")


def too_large(
    observations: Sequence[Observation],
    to_spare: float = _MEMORY_TO_SPARE,
    gpu_to_spare: float = _MEMORY_TO_SPARE,
) -> Evidence | None:
    """Return why both versions cannot be in memory at the same time; None: they can.

    So many times as much as both used must be free.
    """
    sensors = [observation.sensors for observation in observations]
    # What processes share counts once: forked workers seem to hold all that their parent holds.
    host_bytes = sum(sensor.memory_peak_bytes or sensor.rss_peak_bytes or 0 for sensor in sensors)
    free_bytes = psutil.virtual_memory().available
    limit_bytes = memory_limit_bytes()
    if limit_bytes is not None:
        free_bytes = min(free_bytes, limit_bytes)
    if to_spare * host_bytes > free_bytes:
        return fact("no-memory-for-both")
    return gpu_too_small(observations, gpu_to_spare)


def takes_one_process(observations: Sequence[Observation]) -> Evidence | None:
    """Return why a second process cannot use the GPUs meanwhile, or None."""
    uuids = set().union(*(observation.gpu_uuids for observation in observations))
    with nvml.session() as gpus:
        if gpus is not None and gpus.takes_one_process(uuids):
            return fact("gpu-takes-one-process")
    return None


def gpu_too_small(observations: Sequence[Observation], to_spare: float) -> Evidence | None:
    """Return why the GPUs cannot hold both versions at the same time; None: they can, or none is.

    Each version needs what torch reserved at most, and what a process takes beside it.
    """
    needed: dict[str | int, float] = {}
    room: dict[str | int, float] = {}
    devices = [
        device
        for observation in observations
        for process in observation.trainers
        for device in process.used_devices
    ]
    for device in devices:
        key = device.uuid or device.index
        peak = device.peak_reserved_bytes or device.peak_bytes or 0
        needed[key] = needed.get(key, 0.0) + to_spare * peak + _CONTEXT_BYTES
        room[key] = min(room.get(key, math.inf), _room_on(device))
    if any(needed[key] > room[key] for key in needed):
        return fact("no-gpu-memory-for-both")
    return None


def _room_on(device: UsedDevice) -> float:
    """Return the bytes that a device has for both versions; infinity: it is not known."""
    if device.free_bytes is not None:
        # What others have is missing in what was free beside our own.
        return device.free_bytes + (device.reserved_bytes or 0) + _CONTEXT_BYTES
    return math.inf if device.memory_bytes is None else device.memory_bytes


@dataclass(frozen=True, kw_only=True)
class SwitchBlocks:
    """Iterations of a block, and of what is discarded before it, where one launch switches arms.

    Times are what the untouched program takes, in seconds.
    """

    warmup_steps: int
    block_steps: int
    discard_steps: int
    step_s: float
    setup_s: float  # until the first block can begin
    steps_left: int | None = None  # after the warm-up, where the program ends by itself
    cycle_steps: int = 1
    batches_per_step: float = 1.0

    def has_room(self, arms: Sequence[LaunchSpec], rounds: int) -> bool:
        """Return True if the program goes on for so many rounds, and they take ten minutes."""
        if self.steps_left is not None and rounds * self._round_steps(arms) > self.steps_left:
            return False
        return self.launch_s(arms, rounds) <= _LONGEST_S

    def round_s(self, arms: Sequence[LaunchSpec]) -> float:
        """Return seconds of a round: each arm once, but an arm alone and the baseline twice."""
        return self._round_steps(arms) * self.step_s

    def launch_s(self, arms: Sequence[LaunchSpec], rounds: int) -> float:
        """Return seconds of the whole launch."""
        return self.setup_s + rounds * self.round_s(arms)

    def plan(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> dict[str, Any]:
        """Return what the probe is told: see `probe/fixkit/switching.py`."""
        return {
            "warmup_steps": self.warmup_steps,
            "switch": {
                "arms": [plan_entries(arm.fixes) for arm in arms],
                "rounds": rounds,
                "block_steps": self.block_steps,
                "arm_steps": self.arm_steps(arms),
                "discard_steps": self.discard_steps,
                "block_most_s": _SLOW * self.block_steps * self.step_s,
                "most_s": max(most_s - self.setup_s - self.round_s(arms), 0.0),
                "seed": seed,
                "settle_s": [_switching(arm).settle_s for arm in arms],
            },
        }

    def arm_steps(self, arms: Sequence[LaunchSpec]) -> list[int]:
        """Return the iterations of each arm's blocks."""
        return [self._steps_with(_switching(arm).workers) for arm in arms]

    def _round_steps(self, arms: Sequence[LaunchSpec]) -> int:
        more = sum(self.arm_steps(arms)) - self.block_steps * len(arms)
        for arm in arms:  # what lies ready is used up before a block
            switching = _switching(arm)
            ready_batches = switching.workers * switching.ahead
            ready_steps = math.ceil(ready_batches / max(self.batches_per_step, 1.0))
            more += max(ready_steps - self.discard_steps, 0)
        each = self.block_steps + self.discard_steps
        if len(arms) == 1:  # the arm twice, and the baseline twice
            return 4 * each + 2 * more
        return (len(arms) + 2) * each + more

    def _steps_with(self, workers: int) -> int:
        """Return iterations of a block in which so many workers make the batches.

        Those that are alike finish together: of a part of a burst the mean would be chance.
        """
        if workers < 2:
            return self.block_steps
        unit = math.lcm(self.cycle_steps, workers)
        if unit > max(4 * self.block_steps, 2 * workers):
            unit = self.cycle_steps
        return math.ceil(max(self.block_steps, 2 * workers) / unit) * unit


def _switching(arm: LaunchSpec) -> Switching:
    return arm.switching or Switching()


def choose_switch_blocks(
    observed: StepStatistics, window: Window, start_s: float, loaders: Sequence[LoaderFacts] = ()
) -> SwitchBlocks | None:
    """Choose blocks of whole cycles, after what the workers of `loaders` prefetched is used up.

    None where several processes train (they would have to switch at once), where a backward
    separates iterations (the switch would fall between a forward and its backward), or where steps
    come in two kinds whose cycle is not known or too long for a block.
    """
    if observed.trainers > 1 or observed.boundary.kind == "backward":
        return None
    step_s = max(observed.mean_s, 1e-6)
    fewest, discarded = _fewest_steps(step_s)
    steps = _block_steps(observed, fewest, parts=True)
    if steps is None or (observed.two_modes and observed.cycle_steps is None):
        return None
    cycle = observed.cycle_steps or 1
    steps_left = None
    if observed.program_ended:
        steps_left = max(observed.total_steps_seen - window.warmup_steps, 0)
    return SwitchBlocks(
        warmup_steps=window.warmup_steps,
        block_steps=steps,
        discard_steps=max(discarded, prefetched(observed, loaders)),
        step_s=step_s,
        setup_s=start_s + window.warmup_steps * step_s,
        steps_left=steps_left,
        cycle_steps=cycle if steps % cycle == 0 else 1,
        batches_per_step=observed.batches_per_step,
    )
