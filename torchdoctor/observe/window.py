"""How many iterations a timed launch discards, and how many it measures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchdoctor.observe.steps import LEAST_WARMUP
from torchdoctor.probe.hooks.analysis import ANALYSED_STEPS
from torchdoctor.schema import LoaderFacts, StepStatistics

LEAST_STEPS = 30
FEWEST_WARMUP, FEWEST_STEPS = 3, 5  # where steps are so long that the budget allows no more
LEAST_S = 2.5
SHORTEST_S = 1.0
MOST_S = 20.0
_ASKED_FOR_S = 3600.0  # a number of steps that the user wants is measured to its end
_LAUNCHES = 30  # a budget should pay for about so many of the longest windows
_SHORT_LAUNCHES = 60  # and, where it is small, for so many of the shortest: pairs tell more
# For writing a trace down, and for the tests that follow so many analysed steps.
_WRITTEN_S = {ANALYSED_STEPS: 5.0, 1: 2.5, 0: 1.5}
_WARMUP_SHARE = 0.25  # of a short program's iterations
DEFAULT_PREFETCH = 2
_LONG_STEP_S = 1.0  # so long a step needs no ten others before it, and two show enough
_MOST_LONG_STEPS = 2
_DEAR_START = 0.1  # of a budget: another start only for the profiler


@dataclass(frozen=True, kw_only=True)
class Window:
    """Iterations of a timed launch: discarded, then measured for at most `max_window_s`."""

    warmup_steps: int
    measure_steps: int
    max_window_s: float

    def overruled(self, measure_steps: int | None, warmup_steps: int | None) -> "Window":
        """Return the window with what the user asked for instead; None: nothing."""
        window = self if warmup_steps is None else replace(self, warmup_steps=warmup_steps)
        if measure_steps is None:
            return window
        return replace(window, measure_steps=measure_steps, max_window_s=_ASKED_FOR_S)

    def warmed_up(self, steps: int, step_s: float, start_s: float) -> "Window":
        """Return the window with a longer warm-up, if that at most doubles what a launch takes."""
        launch_s = start_s + (self.warmup_steps + self.measure_steps) * step_s
        if steps <= self.warmup_steps or (steps - self.warmup_steps) * step_s > launch_s:
            return self
        return replace(self, warmup_steps=steps)


def choose_window(
    observed: StepStatistics, budget_s: float | None = None, loaders: Sequence[LoaderFacts] = ()
) -> Window:
    """Choose warm-up and measured iterations from what the first launch showed.

    At least 10 iterations warm up and 30 are measured for 2.5 s (1 s if the budget is small), in
    whole cycles if one fits, as far as program and budget allow: never below 3 and 5.
    """
    longest = MOST_S
    least = LEAST_S
    step_s = max(observed.mean_s, 1e-6)
    fewest_warmup = fewest = LEAST_WARMUP
    if budget_s is not None:
        longest = min(MOST_S, max(LEAST_S, budget_s / _LAUNCHES))
        least = min(LEAST_S, max(SHORTEST_S, budget_s / _SHORT_LAUNCHES))
        # Steps of seconds: ten to warm up and ten to measure would leave no launches to compare.
        affordable = int(longest / step_s)
        fewest_warmup = min(LEAST_WARMUP, max(FEWEST_WARMUP, affordable))
        fewest = min(LEAST_WARMUP, max(FEWEST_STEPS, affordable))
    settled = min(observed.settled_after or 0, max(LEAST_WARMUP, int(2 * longest / step_s)))
    warmup = max(fewest_warmup, settled if fewest_warmup == LEAST_WARMUP else 0)
    # Iterations with prefetched batches cost less waiting, so they must not be in the window.
    warmup = max(warmup, min(prefetched(observed, loaders), int(longest / step_s)))
    steps = max(LEAST_STEPS, math.ceil(least / step_s))
    cycle = observed.cycle_steps
    if cycle and cycle * step_s <= longest:
        steps = min(math.ceil(steps / cycle), int(longest / (cycle * step_s))) * cycle
    steps = min(steps, max(fewest, int(longest / step_s)))
    if observed.program_ended:
        warmup, steps = _fit(warmup, steps, observed)
    return Window(warmup_steps=warmup, measure_steps=steps, max_window_s=longest)


@dataclass(frozen=True, kw_only=True)
class ProfilerWindow:
    """Iterations of the profiled launch: before the profiler, under it, and analysed after it."""

    warmup_steps: int
    profiled_steps: int
    analysed_steps: int  # by hooks; 0: no such steps follow

    @property
    def steps(self) -> int:
        """Return all of its iterations; the profiler's own warm-up takes two."""
        return self.warmup_steps + 2 + self.profiled_steps + self.analysed_steps

    @property
    def plan(self) -> dict[str, Any]:
        """Return what the probe is told of the profiler."""
        steps = {"wait": 1, "warmup": 1, "active": self.profiled_steps}
        analysed = {"analyse": self.analysed_steps > 0, "analysed_steps": self.analysed_steps}
        return {**steps, **analysed, "with_stack": False, "record_shapes": True}

    def launch_s(self, observed: StepStatistics, start_s: float) -> float:
        """Return the seconds of its launch, with those for writing down what was seen."""
        written_s = next(s for steps, s in _WRITTEN_S.items() if self.analysed_steps >= steps)
        return start_s + written_s + self.steps * observed.mean_s


# The whole window first; each of the others says less, and takes less time.
PROFILER_WINDOWS = tuple(
    ProfilerWindow(warmup_steps=warmup, profiled_steps=profiled, analysed_steps=analysed)
    for warmup, profiled, analysed in (
        (10, 4, 6),
        (3, 4, 6),
        (3, 2, 6),
        (3, 3, 3),
        (2, 2, 1),
        (1, 2, 0),
        (1, 1, 0),
    )
)
# At the end of the observing launch, which has warmed up: one step until it begins.
JOINED_WINDOWS = tuple(replace(window, warmup_steps=1) for window in PROFILER_WINDOWS[1:])


def choose_profiler_window(
    observed: StepStatistics, start_s: float, most_s: float
) -> ProfilerWindow | None:
    """Choose the largest profiler window whose launch takes `most_s` at most; None: none does."""
    fits = []
    for window in PROFILER_WINDOWS:
        if _has_needless_steps(window, observed):
            continue
        needed = window.steps - window.analysed_steps + 2
        if observed.program_ended and observed.total_steps_seen < needed:
            continue
        if window.launch_s(observed, start_s) <= most_s:
            fits.append(window)
    if not fits and observed.program_ended:  # its end will cut the window off: what is there counts
        last = ProfilerWindow(warmup_steps=0, profiled_steps=4, analysed_steps=0)
        fits = [last] if last.launch_s(observed, start_s) <= most_s else []
    return fits[0] if fits else None


def choose_joined_window(
    observed: StepStatistics, start_s: float, most_s: float, budget_s: float
) -> ProfilerWindow | None:
    """Choose the profiler window to take where the steps were observed, in `most_s` at most.

    None: none fits, or a launch of its own has a whole window and starts soon.
    """
    own_window = choose_profiler_window(observed, start_s, most_s)
    is_whole = own_window is not None and own_window.analysed_steps == ANALYSED_STEPS
    if is_whole and start_s <= _DEAR_START * budget_s:
        return None
    windows = [
        joined_window
        for joined_window in JOINED_WINDOWS
        if not _has_needless_steps(joined_window, observed)
    ]
    return next((window for window in windows if window.launch_s(observed, 0.0) <= most_s), None)


def _has_needless_steps(window: ProfilerWindow, observed: StepStatistics) -> bool:
    """Return whether a window has more steps than are worth it where each takes long."""
    if observed.mean_s <= _LONG_STEP_S:
        return False
    return window.warmup_steps > FEWEST_WARMUP or window.profiled_steps > _MOST_LONG_STEPS


def prepared_ahead(settings: Mapping[str, Any], loader: LoaderFacts) -> tuple[int, int]:
    """Return a loader's workers with these settings, and the batches that each prepares ahead."""
    ahead = settings.get("prefetch_factor", loader.prefetch_factor)
    return int(settings.get("num_workers", loader.num_workers)), int(ahead or DEFAULT_PREFETCH)


def prefetched(observed: StepStatistics, loaders: Sequence[LoaderFacts]) -> int:
    """Return the iterations that batches which the workers hold ready would last."""
    batches = [
        math.prod(prepared_ahead({}, loader))
        for loader in loaders
        if loader.num_workers > 0
        and (observed.boundary.kind != "loader" or loader.ident == observed.boundary.ident)
    ]
    return math.ceil(max(batches, default=0) / max(observed.batches_per_step, 1.0))


def _fit(warmup: int, steps: int, observed: StepStatistics) -> tuple[int, int]:
    """Cut both to a program that ended by itself after `total_steps_seen` iterations."""
    total = observed.total_steps_seen
    cycle = observed.cycle_steps
    if warmup + steps <= total:
        return warmup, steps
    warmup = max(1, min(warmup, int(total * _WARMUP_SHARE)))
    steps = min(steps, total - warmup)
    if cycle and steps > cycle:
        steps -= steps % cycle
    return warmup, max(steps, 1)
