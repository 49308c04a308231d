"""Launches of both versions in pairs: side by side where they can be, else in turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from torchdoctor.gate.pairs import Pairs
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.pairs.record import Recorder
from torchdoctor.pairs.turn_blocks import TurnBlocks
from torchdoctor.pairs.turns import neighbours, take_turns_by_lot
from torchdoctor.trials.compare import usable
from torchdoctor.words import LaunchTiming, TurnsTaken
from torchdoctor.words.errors import Inconclusive, ProgramFailed, TorchdoctorError

_MOST_FAILED = 2  # launches of one version; a third says that it cannot be measured


@dataclass(kw_only=True)
class Side:
    """One version: how it is launched, how its steps were found, and what failed."""

    name: str  # "reference" or "new"
    recorder: Recorder
    seen: Observation
    failures: list[str] = field(default_factory=list)


class PairLauncher:
    """Measures one pair after the other.

    Args:
        sides: (reference, new).
        window: of a launch by itself.
        turns: blocks of launches side by side; None: only in turns.
        order: who goes first.
        say: told before each pair or launch.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        window: Window,
        turns: TurnBlocks | None,
        order: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self.sides, self._window, self._order, self._say = sides, window, order, say
        self.turns = turns
        self.pairs = Pairs()
        self.doubts: list[str] = []
        self._reference_went = 0  # iterations, in the launch that came furthest
        self._second_half: tuple[Side, Side] | None = None  # of an ABBA of launches in turns

    @property
    def pair_s(self) -> float:
        """What a pair is expected to take."""
        if self.turns is not None:
            return self.turns.pair_s
        return sum(self._expected_s(side) for side in self.sides)

    @property
    def shortest_pair_s(self) -> float:
        """What a pair takes at least: launches side by side may end after four turns.

        Their warm-up is left out: the observed launch, whose start was cold, overstates it.
        """
        if self.turns is not None:
            return max(side.seen.start_s for side in self.sides) + 4 * self.turns.turn_s
        return self.pair_s

    def measure(self, until_s: float) -> None:
        """One more pair; a launch that failed loses it.

        Args:
            until_s: `time.monotonic()` after which launches side by side begin no further blocks.

        Raises:
            ProgramFailed: the new version failed three times by itself.
            Inconclusive: one version could not be measured three times.
            KeyboardInterrupt: also of a launch that was interrupted.
        """
        if self.turns is not None:
            self._side_by_side(self.turns, until_s)
        else:
            self._in_turns()

    def _side_by_side(self, turns: TurnBlocks, until_s: float) -> None:
        self._say(f"both versions side by side, pair {len(self.pairs.blocks) + 1}")
        starts = self._start(self.sides[0], turns), self._start(self.sides[1], turns)
        reference, new = take_turns_by_lot(starts, turns, self._order, until_s)
        self._reference_went = max(self._reference_went, reference.went)
        if new.broke_down(self._reference_went):
            self._broke_down(new)
            return
        self._add(reference.counted, new.counted)
        blocks = neighbours(reference, new)
        # Where memory ended, both at once may be the reason: each by itself tells.
        if blocks and "out-of-memory" not in (reference.timing.ended, new.timing.ended):
            self.pairs.blocks.append(blocks)
            return
        # Not counted as failures: who cannot run beside itself may well run by itself.
        failed = next((x.timing for x in (new, reference) if not usable(x.timing)), new.timing)
        self.turns = None
        self.doubts.append(
            "The two versions could not run side by side, so their launches took turns, which "
            f"sees less in the same time: {failed.reason or 'a block took far too long.'}"
        )

    def _broke_down(self, new: TurnsTaken) -> None:
        """The pair is lost; a new version that always breaks down is no pass."""
        side = self.sides[1]
        why = new.timing.reason or "a block of its steps did not end."
        side.failures.append(why)
        self.doubts.append(
            f"The working tree's program broke down where that of the reference went on: {why}"
        )
        if len(side.failures) > _MOST_FAILED:
            raise ProgramFailed(
                f"The new version broke down in {len(side.failures)} launches, where the reference "
                f"went on: {why}"
            )

    def _start(self, side: Side, turns: TurnBlocks) -> Callable[..., TurnsTaken]:
        timeout_s = 4 * turns.pair_s + 4 * side.seen.start_s + 120.0
        return lambda poll: side.recorder.take_turns(
            side.name, side.seen.found.boundary, turns, timeout_s, poll
        )

    def _in_turns(self) -> None:
        if self._second_half is not None:
            order, self._second_half = self._second_half, None
        else:
            first, second = self._order.sample(self.sides, 2)
            order, self._second_half = (first, second), (second, first)
        timings = {side.name: self._launch(side) for side in order}
        reference, new = timings["reference"], timings["new"]
        self._add(reference, new)
        if usable(reference) and usable(new):
            self.pairs.blocks.append([(reference, new)])
        for side in self.sides:
            if len(side.failures) > _MOST_FAILED:
                raise self._given_up(side)

    def _given_up(self, side: Side) -> TorchdoctorError:
        """The reference is not decided; the working tree's own failures are the user's to see."""
        said = (
            f"The {side.name} version could not be measured {len(side.failures)} times: "
            f"{side.failures[-1]}"
        )
        ended = {x.ended for x in self.pairs.new if not usable(x)}
        if side.name == "new" and ended <= {"failed", "out-of-memory"}:
            return ProgramFailed(said)
        return Inconclusive(said)

    def _launch(self, side: Side) -> LaunchTiming:
        self._say(f"the {side.name} version, pair {len(self.pairs.blocks) + 1}")
        expected = self._expected_s(side)
        boundary, trainers = side.seen.found.boundary, side.seen.steps.trainers
        timing = side.recorder.time(
            side.name, boundary, self._window, [], 4 * expected + 120.0, 0, trainers
        )
        if timing.ended == "interrupted":
            raise KeyboardInterrupt
        if not usable(timing):
            side.failures.append(timing.reason or timing.ended)
        return timing

    def _expected_s(self, side: Side) -> float:
        steps = self._window.warmup_steps + self._window.measure_steps
        measured_s = min(side.seen.steps.mean_s * steps, self._window.max_window_s)
        return side.seen.start_s + measured_s

    def _add(self, reference: LaunchTiming, new: LaunchTiming) -> None:
        self.pairs.reference.append(reference)
        self.pairs.new.append(new)
