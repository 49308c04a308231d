"""How one program is measured: which launches there are, and how long each of them takes."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.running_launch import Poll
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.pairs.block_plan import SwitchBlocks, TurnBlocks
from torchdoctor.pairs.record import Recorder
from torchdoctor.pairs.turns import Start, take_turns_by_lot
from torchdoctor.words import Boundary, LaunchTiming, SwitchedLaunch


class Starts(Protocol):
    """Starts launches; a failure of the program is a value, not an exception."""

    @property
    def side_by_side(self) -> bool:
        """Return False where launches follow each other."""

    @property
    def blocks(self) -> SwitchBlocks | None:
        """Return the blocks of a launch that switches; None: no launch can switch."""

    @property
    def expected_s(self) -> float:
        """Return seconds of a launch of the untouched program, or of its half of a pair."""

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        """Launch an arm by itself."""

    def together(
        self, arms: tuple[LaunchSpec, LaunchSpec], chance: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming]:
        """Launch two arms at once; they take turns, and begin none after `most_s`."""

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> SwitchedLaunch:
        """Launch the program once; the arms take turns with the untouched program."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the observed launch, of two versions the slower one, says about every further one."""

    start_s: float  # until the first step
    step_s: float
    boundary: Boundary
    trainers: int = 1
    steps_in_all: int | None = None  # where the program ends by itself
    logs_phases: bool = False

    @classmethod
    def of(cls, *observations: Observation) -> Pace:
        """Return the slower pace of these observations."""
        slower = max((x.steps for x in observations), key=lambda steps: steps.mean_s)
        return cls(
            start_s=max(x.start_s for x in observations),
            step_s=slower.mean_s,
            boundary=slower.boundary,
            trainers=slower.trainers,
            steps_in_all=slower.total_steps_seen if slower.program_ended else None,
            logs_phases=any(x.logs_phases for x in observations),
        )

    def launch_s(self, window: Window) -> float:
        """Return seconds from the start of a launch to the end of its window."""
        return self.start_s + (window.warmup_steps + window.measure_steps) * self.step_s


@dataclass(frozen=True, kw_only=True)
class ProgramLaunches:
    """`Starts` of a real program.

    recorder: starts the program.
    pace: of the untouched program.
    window: of a launch by itself.
    turns: blocks of launches side by side; None: they follow each other.
    blocks: of a launch that switches; None: none can.
    cold: the files that training reads are dropped from the page cache before each launch.
    """

    recorder: Recorder
    pace: Pace
    window: Window
    turns: TurnBlocks | None = None
    blocks: SwitchBlocks | None = None
    cold: bool = False

    @property
    def side_by_side(self) -> bool:
        """Return False where launches follow each other."""
        return self.turns is not None

    @property
    def expected_s(self) -> float:
        """Return seconds of a launch of the untouched program, or of its half of a pair."""
        return self.turns.pair_s / 2 if self.turns else self.pace.launch_s(self.window)

    @property
    def shortest_pair_s(self) -> float:
        """Return what a pair takes at least: launches side by side may end after four turns.

        Their warm-up is left out: the observed launch, whose start was cold, overstates it.
        """
        if self.turns is None:
            return 2 * self.expected_s
        return self.pace.start_s + 4 * self.turns.turn_s

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        """Launch an arm by itself; see `Starts`."""
        window = self._window_of(arm)
        plan = {
            "phases": self.pace.logs_phases,
            "warmup_steps": window.warmup_steps,
            "measure_steps": window.measure_steps,
            "max_window_s": window.max_window_s,
            # Freezing one of several independent trainers would give the others its cores.
            "after": "continue" if self.pace.trainers > 1 else "freeze",
            "fingerprint_batches": min(window.warmup_steps, 10),
        }
        timeout_s = _timeout_s(self.pace.launch_s(window), most_s)
        return self.recorder.time(self._with(arm, plan), timeout_s, cold=self.cold)

    def together(
        self, arms: tuple[LaunchSpec, LaunchSpec], chance: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming]:
        """Launch two arms at once; see `Starts`."""
        assert self.turns is not None
        turns = self._turns_of(self.turns, arms)
        timeout_s = _timeout_s(turns.pair_s + self.pace.start_s, most_s)
        plan = {**turns.plan, "phases": self.pace.logs_phases}

        def start(arm: LaunchSpec) -> Start:
            spec = self._with(arm, plan)

            def begin(poll: Poll) -> LaunchTiming:
                return self.recorder.time(spec, timeout_s, poll)

            return begin

        until_s = time.monotonic() + max(most_s - turns.turn_s, 0.0)
        return take_turns_by_lot((start(arms[0]), start(arms[1])), turns, chance, until_s)

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> SwitchedLaunch:
        """Launch the program once, and switch; see `Starts`."""
        assert self.blocks is not None
        blocks = self.blocks.of(arms)
        expected_s = blocks.launch_s(arms, rounds)
        # Arms that are slower than the untouched program take longer; rounds end in time.
        limit_s = max(min(1.5 * expected_s + 5.0, most_s), 1.0)
        plan = blocks.plan(arms, rounds, limit_s, seed)
        spec = self._with(LaunchSpec(name="switch"), plan)
        return self.recorder.switch(spec, [len(arm.fixes) for arm in arms], limit_s)

    def warmup_steps(self, *arms: LaunchSpec) -> int:
        """Return the warm-up of one arm by itself, or of each of two at once, in iterations."""
        if len(arms) == 1:
            return self._window_of(arms[0]).warmup_steps
        assert self.turns is not None
        return self._turns_of(self.turns, arms).warmup_steps

    def _window_of(self, arm: LaunchSpec) -> Window:
        settled = self._settled_after(arm, self.window.measure_steps)
        return self.window.warmed_up(settled, self.pace.step_s, self.pace.start_s)

    def _turns_of(self, turns: TurnBlocks, arms: Sequence[LaunchSpec]) -> TurnBlocks:
        return turns.warmed_up(max(self._settled_after(x, turns.measured_steps) for x in arms))

    def _with(self, arm: LaunchSpec, plan: Mapping[str, object]) -> LaunchSpec:
        return replace(arm, plan=plan, boundary=arm.boundary or self.pace.boundary)

    def _settled_after(self, arm: LaunchSpec, measured: int) -> int:
        """Return the warm-up that an arm needs; 0 where the program ends before it could count."""
        in_all = self.pace.steps_in_all
        fits = in_all is None or arm.settled_after + measured < in_all
        return arm.settled_after if fits else 0


def _timeout_s(expected_s: float, most_s: float) -> float:
    """Compilation may take a minute; a fix that makes training 4x slower has lost anyway."""
    return max(min(4 * expected_s + 120.0, most_s + expected_s), expected_s + 10.0)
