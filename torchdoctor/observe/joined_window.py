"""A profiler window at the end of the observing launch, where another start would be dear."""

import json
from collections.abc import Callable
from dataclasses import asdict

from torchdoctor.launch.launch import RunningLaunch
from torchdoctor.observe.window import ProfilerWindow
from torchdoctor.schema import Boundary, StepStatistics

# Given the observed steps, and the seconds of the start.
Choose = Callable[[StepStatistics, float], ProfilerWindow | None]
_PATIENCE, _MORE_PATIENCE_S = 3.0, 10.0  # times what it should take, and beside that
_BEGINS_STEPS, _BEGINS_S = 5.0, 4.0  # until it begins, at most: the next step does


class JoinedWindow:
    """Asks the observed program's probe for a window, and waits until it is over."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._over_by_s: float | None = None  # of the launch; None: not asked for
        self._begins_by_s = 0.0  # of the launch
        self._number = 0  # of the process

    @property
    def asked(self) -> bool:
        """Return True once a window was asked for."""
        return self._over_by_s is not None

    def ask(
        self,
        running: RunningLaunch,
        number: int,
        boundary: Boundary,
        steps: StepStatistics,
        start_s: float,
    ) -> bool:
        """Ask the process `number` for a window; False: this launch is to have none."""
        window = self._choose(steps, start_s)
        if window is None:
            return False
        expected_s = window.launch_s(steps, 0.0)
        self._over_by_s = running.elapsed_s + _PATIENCE * expected_s + _MORE_PATIENCE_S
        self._begins_by_s = running.elapsed_s + _BEGINS_S + _BEGINS_STEPS * steps.mean_s
        self._number = number
        path = running.channel / f"window-{number}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"boundary": asdict(boundary), "profile": window.plan}))
        part.replace(path)
        return True

    def is_over(self, running: RunningLaunch) -> bool:
        """Return True once the window is over, does not begin, or takes too long."""
        assert self._over_by_s is not None
        done = running.channel / f"done-{self._number}.json"
        begun = running.channel / f"observed-{self._number}.json"
        if running.elapsed_s > self._begins_by_s and not begun.exists():
            return True
        return done.exists() or running.elapsed_s > self._over_by_s
