"""The launch that trials call: fixes in, one sample of the program's speed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchdoctor.recording.record import Observation, Recorder
from torchdoctor.recording.window import Window
from torchdoctor.records import LaunchTiming


class TimedLaunch:
    """What trials call: fixes in, one sample out."""

    def __init__(
        self,
        recorder: Recorder,
        seen: Observation,
        window: Window,
        modules: dict[str, Any],
        left: Callable[[], float],
    ) -> None:
        self._recorder = recorder
        self._seen = seen
        self._window = window
        self._modules = modules
        self._left = left

    def __call__(
        self, fixes: Sequence[tuple[str, dict[str, Any]]], *, seed_offset: int = 0
    ) -> LaunchTiming:
        """Launch once with these fixes; a failure is a value."""
        name = "+".join(fix for fix, _ in fixes) or "baseline"
        steps = self._window.warmup_steps + self._window.measure_steps
        expected = self._seen.start_s + steps * self._seen.steps.mean_s
        # Compilation may take a minute; a fix that makes training 4x slower has lost anyway.
        timeout = max(min(4 * expected + 120.0, self._left() + expected), expected + 10.0)
        return self._recorder.time(
            name,
            self._seen.found.boundary,
            self._window,
            [(fix, Path(self._modules[fix].__file__), values) for fix, values in fixes],
            timeout,
            seed_offset,
            self._seen.steps.trainers,
        )
