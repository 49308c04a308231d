"""The switching launch that trials call: arms in, blocks of each out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchdoctor import catalogue
from torchdoctor.recording.observation import Observation
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.switch_blocks import Blocks, choose_blocks
from torchdoctor.recording.window import Window
from torchdoctor.records import LoaderFacts, Recording, SwitchedLaunch
from torchdoctor.trials.ceilings import CeilingTrial

_CEILING = "ceiling-"


def ceiling_trials(recording: Recording, bottleneck: str) -> list[CeilingTrial]:
    """Costs of which it is worth asking what they could give at most, the most telling first.

    Args:
        recording: the observed program.
        bottleneck: the branch that the diagnosis names: its cost comes first.
    """
    found = []
    for ident, module in catalogue.ceilings().items():
        values = module.settings(recording)
        if values is None:
            continue
        one = CeilingTrial(
            ceiling=ident,
            branch=module.branch(recording),
            fixes=[(_CEILING + ident, values)],
            removes=module.REMOVES,
            share=module.share(recording),
            whole=module.WHOLE,
        )
        found.append(one)
    return sorted(found, key=lambda one: (one.branch != bottleneck, -(one.share or 0.0)))


class SwitchedTrials:
    """What trials call for a switching launch; see `trials.switching.Switching`."""

    def __init__(
        self,
        recorder: Recorder,
        seen: Observation,
        window: Window,
        blocks: Blocks,
        modules: dict[str, Any],
        left: Callable[[], float],
    ) -> None:
        self._recorder, self._seen, self._window = recorder, seen, window
        known = {_CEILING + ident: module for ident, module in catalogue.ceilings().items()}
        self._blocks, self._left = blocks, left
        self._modules = {**modules, **known}

    @classmethod
    def choose(
        cls,
        recorder: Recorder,
        seen: Observation,
        window: Window,
        loaders: Sequence[LoaderFacts],
        modules: dict[str, Any],
        left: Callable[[], float],
    ) -> SwitchedTrials | None:
        """None where this program cannot be compared in blocks (`choose_blocks`)."""
        blocks = choose_blocks(seen.steps, window, seen.start_s, loaders)
        return cls(recorder, seen, window, blocks, modules, left) if blocks else None

    def rounds_within(self, arms: int, seconds: float) -> int:
        """How many rounds of so many arms a launch of so many seconds has room for."""
        return self._blocks.rounds_within(arms, seconds)

    def __call__(
        self, arms: Sequence[Sequence[tuple[str, dict[str, Any]]]], *, rounds: int, seed: int
    ) -> SwitchedLaunch:
        """Launch once with these arms in turns; a failure is a value."""
        expected = self._blocks.launch_s(len(arms), rounds)
        return self._recorder.switch(
            self._seen.found.boundary,
            self._window.warmup_steps,
            self._blocks,
            [[(fix, Path(self._modules[fix].__file__), values) for fix, values in a] for a in arms],
            rounds=rounds,
            # Arms that are slower than the untouched program take longer; rounds end in time.
            most_s=max(min(1.5 * expected + 5.0, self._left()), 1.0),
            seed=seed,
            settle_s=[
                max((getattr(self._modules[fix], "SETTLES_S", 0.0) for fix, _ in a), default=0.0)
                for a in arms
            ],
        )
