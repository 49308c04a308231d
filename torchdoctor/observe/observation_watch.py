"""Decides, while the observing launch runs, when it has shown enough."""

from __future__ import annotations

import time

from torchdoctor.launch.launch import RunningLaunch
from torchdoctor.observe.events import read_channel
from torchdoctor.observe.step_finding import NoSteps, find_boundary
from torchdoctor.observe.steps import step_durations

_LOOK_EVERY_S = 0.5
_ENOUGH_STEPS = 40
FEW_STEPS = 12
FEWEST_STEPS = 3


class ObservationWatch:
    """Decides when the observing launch has shown enough.

    Args:
        step_on: what separates iterations, where the user says so.
        enough_s: time of training that is worth watching.
        most_s: time after the first steps at which it ends in any case.
        wait_s: longest wait for the first steps.
    """

    def __init__(self, step_on: str | None, enough_s: float, most_s: float, wait_s: float) -> None:
        self._step_on = step_on
        self._enough_s = enough_s
        self._most_s = most_s
        self._wait_s = wait_s
        self.gave_up = False  # no steps came in time
        self._next_look = 0.0

    def __call__(self, running: RunningLaunch) -> bool:
        """True when the launch may be stopped; reads the step log about twice a second."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_S
        events, facts, _ = read_channel(running.channel)
        found = find_boundary(events, facts, self._step_on)
        if isinstance(found, NoSteps):
            self.gave_up = running.elapsed_s > self._wait_s
            return self.gave_up
        durations = step_durations(events[found.trainers[0]], found)
        # Reading grows with the log: look less often at a program with very many events.
        self._next_look += 10 * (time.monotonic() - now)
        return self._enough(len(durations), float(durations.sum()))

    def _enough(self, steps: int, stepping_s: float) -> bool:
        if steps >= _ENOUGH_STEPS and stepping_s >= self._enough_s:
            return True
        if steps >= FEW_STEPS and stepping_s >= 2 * self._enough_s:
            return True
        return steps >= FEWEST_STEPS and stepping_s >= self._most_s
