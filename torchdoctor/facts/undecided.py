"""The trial that a report names where nothing is decided yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torchdoctor.words import Trial

_A_LITTLE = 0.02  # a smaller gain is not worth mentioning before it is proven


def looked_faster(trials: Sequence[Trial], changed: bool = False) -> list[Trial]:
    """Trials that are still open and looked faster.

    Args:
        changed: of those that change training, in place of those that do not.
    """
    unclear = [t for t in trials if t.verdict == "unclear" and (t.numerics == "changed") == changed]
    return [t for t in unclear if t.speedup is not None and t.speedup.estimate > 1 + _A_LITTLE]


def leader(trials: Sequence[Trial]) -> Trial | None:
    """The best of what looked faster and can be; the verdict names it. None: there is none."""
    seen = [t for t in looked_faster(trials) if t.at_most is None]  # what cannot be is no news
    return max(seen, key=_surest, default=None)


def _surest(trial: Trial) -> tuple[bool, float, float]:
    """Several pairs before one, then the lower end of the interval: one pair may say anything."""
    found = trial.speedup
    return (trial.pairs > 1, *((found.low, found.estimate) if found else (0.0, 0.0)))
