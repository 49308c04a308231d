"""The log of a search: it measures arms through the engine, never beyond the budget."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.failures import Failed, Lost, Outcome
from torchdoctor.bench.pair_times import Estimator, switched_differences, usable
from torchdoctor.launch.launch_spec import BASELINE, UNTOUCHED
from torchdoctor.machine.load_beside import Held, LoadBeside
from torchdoctor.queries.hardware import much_load
from torchdoctor.schema import (
    Block,
    Evidence,
    LaunchTiming,
    Pair,
    ProgressEvent,
    SwitchedLaunch,
    fact,
    within,
)
from torchdoctor.schema.errors import TorchdoctorError
from torchdoctor.schema.figures import counted
from torchdoctor.schema.trials import NO_TIME_LEFT
from torchdoctor.trials.arms import Arm

SEED_LAUNCHES = 2  # with other seeds, if only they tell whether training changed
NO_TIME = fact(NO_TIME_LEFT)  # why a search ended


class BudgetEnded(Exception):  # noqa: N818 - a turn of events, not an error
    """The next launch would not end within the budget."""


class Stopped(Exception):  # noqa: N818 - a turn of events, not an error
    """No further launch makes sense; `why` is its reason."""

    def __init__(self, why: Evidence) -> None:
        super().__init__(why.fact)
        self.why = why


class Budget:
    """Wall time for everything that is left to do; `seconds`: None for no limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.clock = clock
        self._began = clock()

    def elapsed(self) -> float:
        """Return the seconds since the budget began."""
        return self.clock() - self._began

    def left(self) -> float:
        """Return the seconds left, infinite without a limit; may be negative."""
        return math.inf if self.seconds is None else self.seconds - self.elapsed()


@dataclass(frozen=True, kw_only=True)
class Series:
    """Blocks of several arms and of the untouched program, in the order they ran.

    `Block.arm` is a place in `keys`, whose first is the untouched program's.
    """

    keys: list[str]
    blocks: list[Block]

    def of(self, key: str) -> list[Block]:
        """Return the blocks of an arm."""
        return [block for block in self.blocks if self.keys[block.arm] == key]

    def differences(self, key: str, how: Estimator) -> list[float]:
        """Return the log speed-ups of an arm, one for each block of it."""
        if key not in self.keys:
            return []
        return switched_differences(self.blocks, self.keys.index(key), how)


class Log:
    """Measures arms through the engine within the budget, and keeps what was measured."""

    def __init__(
        self,
        engine: Engine,
        budget: Budget,
        progress: Callable[[ProgressEvent], None] | None = None,
        beside: LoadBeside | None = None,
    ) -> None:
        self._beside = beside
        self.engine = engine
        self.budget = budget
        self._progress = progress
        self.baseline = Arm(key=BASELINE, spec=UNTOUCHED)
        self.pairs: dict[str, list[Pair]] = defaultdict(list)  # by the key of the arm
        self.seeds: list[LaunchTiming] = []  # of the untouched program with other seeds
        self.sizes: list[Series] = []  # each block is a launch
        self.switched: list[Series] = []  # blocks within a launch
        self.best: str | None = None
        self.why = ""  # the next measurement is made, as a sentence

    def expected_s(self, arm: Arm) -> float:
        """Return seconds that the next launch of this arm takes at most."""
        return self.engine.expected_launch_s(arm.spec)

    def affords(self, *arms: Arm) -> bool:
        """Return True if one launch of each of these ends within the budget."""
        left = self.budget.left()
        return left > 0 and sum(map(self.expected_s, arms)) <= left

    def launch(self, arm: Arm, phase: str, seed_offset: int = 0) -> LaunchTiming:
        """Launch once. Raise BudgetEnded if it would not end in time, Stopped if none can be."""
        if not self.affords(arm):
            raise BudgetEnded
        seed = " with another seed" * bool(seed_offset)
        message = f"One launch runs {arm.label}{seed}"
        spec = replace(arm.spec, seed_offset=seed_offset)
        with self._measuring(phase, message, arm):
            timing = self.engine.launch(spec, most_s=self.budget.left())
        if seed_offset:
            return timing
        if usable(timing):
            arm.timings.append(timing)
        if timing.cut_off and not usable(timing):
            return timing
        outcome = self.engine.failures.after_launch(arm.spec, timing)
        if isinstance(outcome, Failed):
            self._is_out(arm, outcome)
        return timing

    def pair(self, arm: Arm, phase: str) -> None:
        """Measure a pair of the untouched program and an arm; raise as `launch` does."""
        if not self.affords(self.baseline, arm):
            raise BudgetEnded
        how = "side by side" if self.engine.side_by_side else "in turns"
        message = f"A pair of launches compares {arm.label} with {self.baseline.label}, {how}"
        with self._measuring(phase, message, arm):
            outcome = self.engine.pair(arm.spec, most_s=self.budget.left())
        self.take(arm, outcome)
        if isinstance(outcome, Lost):
            raise BudgetEnded

    def take(self, arm: Arm, outcome: Pair | Outcome) -> None:
        """Keep what became of a pair of the untouched program and an arm."""
        remarks = self.engine.failures.remarks(arm.spec.name)
        arm.remarks += [remark for remark in remarks if remark not in arm.remarks]
        if isinstance(outcome, Failed):
            self._is_out(arm, outcome)
        if isinstance(outcome, Lost):
            arm.cut_off_pairs += outcome.cut_off
        if not isinstance(outcome, Pair):
            return
        self.pairs[arm.key].append(outcome)
        arm.cost_s -= outcome.seconds[0]
        for side, timing in zip((self.baseline, arm), outcome.launches, strict=True):
            if usable(timing):
                side.timings.append(timing)

    def switch(self, arms: Sequence[Arm], rounds: int) -> SwitchedLaunch:
        """Launch once with several arms that take turns; raise as `launch` does."""
        fixes = sum(arm.candidate is not None for arm in arms)
        parts = [counted(fixes, "fix", "fixes")] if fixes else []
        if len(arms) > fixes:
            parts.append(f"{counted(len(arms) - fixes, 'removed cost')}")
        message = f"One launch switches {' and '.join(parts)} on and off in turns"
        with self._measuring("switch", message, *arms):
            return self.engine.switch([arm.spec for arm in arms], rounds, most_s=self.budget.left())

    def tell(self, phase: str, message: str) -> None:
        """Tell how far the search has come."""
        if self._progress is not None:
            event = ProgressEvent(
                phase=phase,
                message=message,
                why=self.why,
                launches_done=self.engine.launches,
                elapsed_s=self.budget.elapsed(),
                budget_s=self.budget.seconds,
                best=self.best,
            )
            self._progress(event)

    @contextmanager
    def _measuring(self, phase: str, message: str, *arms: Arm) -> Iterator[None]:
        """Tell of a measurement before and after, and charge its time to these arms."""
        self.tell(phase, message)
        began_s = self.budget.clock()
        beside = self._beside.measuring() if self._beside is not None else nullcontext()
        held: Held | None = None
        try:
            with beside as held:
                yield
        except TorchdoctorError as error:
            why = within(fact("message", message=str(error)))
            raise Stopped(fact("trials-stopped", why=why)) from error
        finally:
            for arm in arms:
                arm.cost_s += (self.budget.clock() - began_s) / len(arms)
                self._note_load(arm, held)
        self.tell(phase, message)

    def _note_load(self, arm: Arm, held: Held | None) -> None:
        if self._beside is not None and held is not None and held.held is not None:
            busy = much_load(held.held, self._beside.usable) is not None
            arm.measured_s += held.seconds
            arm.busy_s += held.seconds * busy

    def _is_out(self, arm: Arm, outcome: Failed) -> None:
        if outcome.name == BASELINE:
            raise Stopped(fact("untouched-unmeasured-twice", why=within(outcome.why)))
        if outcome.kind == "refused":
            arm.refused = outcome.why
        else:
            arm.failed = outcome.why
