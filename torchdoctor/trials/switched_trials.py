"""The switching launch that trials call: arms in, blocks of each out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window, prepared_ahead
from torchdoctor.pairs.record import Recorder
from torchdoctor.pairs.switch_blocks import Blocks, choose_blocks
from torchdoctor.trials.arms import Fixes
from torchdoctor.trials.ceilings import CeilingTrial
from torchdoctor.trials.switching import FEWEST_ROUNDS
from torchdoctor.words import LoaderFacts, Recording, SwitchedLaunch
from torchdoctor.words.specs import FixSpec, SwitchSpec

_CEILING = "ceiling-"


def ceiling_trials(recording: Recording, bottleneck: str) -> list[CeilingTrial]:
    """Costs of which it is worth asking what they could give at most, the most telling first.

    Args:
        recording: the observed program.
        bottleneck: the branch that the diagnosis names: its cost comes first.
    """
    found = []
    for ident, ceiling in catalogue.ceilings().items():
        values = ceiling.settings(recording)
        if values is None:
            continue
        one = CeilingTrial(
            ceiling=ident,
            branch=ceiling.branch_in(recording),
            fixes=[(_CEILING + ident, values)],
            removes=ceiling.removes,
            share=ceiling.share(recording),
            whole=ceiling.takes_all(recording),
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
        fixes: Mapping[str, FixSpec],
        left: Callable[[], float],
        loader: LoaderFacts | None = None,
    ) -> None:
        self._recorder, self._seen, self._window = recorder, seen, window
        self._blocks, self._left = blocks, left
        self._specs: dict[str, SwitchSpec] = {**fixes}
        self._specs |= {_CEILING + ident: spec for ident, spec in catalogue.ceilings().items()}
        self._loader = loader or LoaderFacts(ident=0)  # the training loop's
        self._shortened: set[str] = set()  # arms whose whole cycles have no room

    @classmethod
    def choose(
        cls,
        recorder: Recorder,
        seen: Observation,
        window: Window,
        loaders: Sequence[LoaderFacts],
        fixes: Mapping[str, FixSpec],
        left: Callable[[], float],
    ) -> SwitchedTrials | None:
        """None where this program cannot be compared in blocks (`choose_blocks`)."""
        blocks = choose_blocks(seen.steps, window, seen.start_s, loaders)
        if blocks is None:
            return None
        boundary = seen.steps.boundary
        by_loader = [x for x in loaders if boundary.kind == "loader" and x.ident == boundary.ident]
        most_used = max(loaders, key=lambda x: x.batches, default=None)
        loader = by_loader[0] if by_loader else most_used
        return cls(recorder, seen, window, blocks, fixes, left, loader)

    def rounds_within(self, arms: Sequence[Fixes], seconds: float) -> int:
        """How many rounds of these arms a launch of so many seconds has room for.

        With ceilings, which have little time, blocks of even steps may hold a part of a cycle.
        """
        self._shortened.discard(str(arms))
        found = self._blocks_of(arms).rounds_within(len(arms), seconds)
        if found >= FEWEST_ROUNDS or self._blocks.shorter is None or not _with_ceilings(arms):
            return found
        self._shortened.add(str(arms))
        return self._blocks_of(arms).rounds_within(len(arms), seconds)

    def __call__(self, arms: Sequence[Fixes], *, rounds: int, seed: int) -> SwitchedLaunch:
        """Launch once with these arms in turns; a failure is a value."""
        blocks = self._blocks_of(arms)
        expected = blocks.launch_s(len(arms), rounds)
        return self._recorder.switch(
            self._seen.found.boundary,
            self._window.warmup_steps,
            blocks,
            [[(fix, Path(self._specs[fix].file), values) for fix, values in a] for a in arms],
            rounds=rounds,
            # Arms that are slower than the untouched program take longer; rounds end in time.
            most_s=max(min(1.5 * expected + 5.0, self._left()), 1.0),
            seed=seed,
            settle_s=[max((self._specs[fix].settles_s for fix, _ in a), default=0.0) for a in arms],
        )

    def _blocks_of(self, arms: Sequence[Fixes]) -> Blocks:
        blocks = self._blocks
        if blocks.shorter is not None and str(arms) in self._shortened:
            blocks = blocks.shorter
        return blocks.with_workers([self._workers(fixes) for fixes in arms])

    def _workers(self, fixes: Fixes) -> tuple[int, int]:
        """Workers of an arm's second loader, and batches that each prepares ahead.

        Without the model the program's own set the pace, and their batches come in bursts.
        """
        for fix, settings in fixes:
            if self._specs[fix].by_own_loader:
                return prepared_ahead({}, self._loader)
            if self._specs[fix].by_second_loader:
                return prepared_ahead(settings, self._loader)
        return 0, 0


def _with_ceilings(arms: Sequence[Fixes]) -> bool:
    return any(fix.startswith(_CEILING) for fixes in arms for fix, _ in fixes)
