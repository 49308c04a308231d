"""The launch that trials call: fixes in, one sample of the program's speed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.recording.observation import Observation
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.sandbox import Contents
from torchdoctor.recording.window import Window
from torchdoctor.records import AppliedFix, LaunchTiming, Recording
from torchdoctor.source_patch import SourcePatch, source_patch
from torchdoctor.trials.patch_trial import PATCH


class TimedLaunch:
    """What trials call: fixes in, one sample out.

    `kind` begins the names of its launches, where they are not of the trials of speed.
    """

    def __init__(
        self,
        recorder: Recorder,
        seen: Observation,
        window: Window,
        modules: dict[str, Any],
        left: Callable[[], float],
        recording: Recording,
        kind: str = "",
    ) -> None:
        self._recorder = recorder
        self._seen = seen
        self._window = window
        self._modules = modules
        self._left = left
        self._recording = recording
        self._kind = kind
        self.patch: SourcePatch | None = None  # of `make_patch`

    def make_patch(self, fixes: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
        """Make the patch that launches of PATCH run; a sentence where it cannot be run."""
        self.patch = source_patch(fixes, self._recording, self._modules)
        if self.patch is None:
            return "no edit of the source can be made with certainty"
        if self._recording.environment.sandbox != "overlay":
            return "the patched source can be run in the overlay sandbox alone"
        return None

    def __call__(
        self, fixes: Sequence[tuple[str, dict[str, Any]]], *, seed_offset: int = 0
    ) -> LaunchTiming:
        """Launch once with these fixes, or `[(PATCH, {})]`; a failure is a value."""
        if [fix for fix, _ in fixes] == [PATCH]:
            timing = self._launch(
                PATCH, [], seed_offset, self.patch.contents() if self.patch else None
            )
            return replace(timing, fixes=[AppliedFix(fix=PATCH, state="applied")])
        files = [(fix, Path(self._modules[fix].__file__), values) for fix, values in fixes]
        name = self._kind + ("+".join(fix for fix, _ in fixes) or "baseline")
        return self._launch(name, files, seed_offset, None, self._variables(fixes))

    def _variables(self, fixes: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str | None]:
        """Of the environment, by the fixes that work through it."""
        found: dict[str, str | None] = {}
        for fix, values in fixes:
            if hasattr(self._modules[fix], "environment"):
                found |= self._modules[fix].environment(values)
        return found

    def _launch(
        self,
        name: str,
        fixes: Sequence[tuple[str, Path, dict[str, Any]]],
        seed_offset: int,
        contents: Contents | None,
        variables: dict[str, str | None] | None = None,
    ) -> LaunchTiming:
        steps = self._window.warmup_steps + self._window.measure_steps
        expected = self._seen.start_s + steps * self._seen.steps.mean_s
        # Compilation may take a minute; a fix that makes training 4x slower has lost anyway.
        timeout = max(min(4 * expected + 120.0, self._left() + expected), expected + 10.0)
        return self._recorder.time(
            name,
            self._seen.found.boundary,
            self._window,
            fixes,
            timeout,
            seed_offset,
            self._seen.steps.trainers,
            contents,
            variables,
        )
