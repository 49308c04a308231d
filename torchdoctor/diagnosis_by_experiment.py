"""What the ceilings say of the diagnosis: shares suggest, taking a cost away proves.

docs/decisions/ceilings.md says why a share may mislead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.diagnosis import detail_of
from torchdoctor.records import Diagnosis, Interval, TriedCeiling

_APART = 0.15  # of the step: share and experiment that differ by more disagree


def by_experiment(
    diagnosis: Diagnosis, tried: Sequence[TriedCeiling], checks: Mapping[str, Any], on_gpu: bool
) -> tuple[Diagnosis, list[str]]:
    """The diagnosis as the ceilings confirm or refute it.

    A bottleneck whose cost is hidden gives way to the branch whose ceiling gives most; where none
    gives anything, it stays, and the sentence says that it is hidden.

    Args:
        diagnosis: by shares.
        tried: what was taken away.
        checks: check modules by id.
        on_gpu: whether the model trains on a GPU.

    Returns:
        The diagnosis, and a sentence for each share that the experiment disagrees with.
    """
    doubts = [said for one in tried if (said := _disagreement(one)) is not None]
    own = next((x for x in tried if x.branch == diagnosis.bottleneck and x.whole), None)
    if own is None or own.speedup is None or own.verdict == "unclear":
        return diagnosis, doubts
    if own.verdict == "gain":
        said = f"Tried: without {own.removes}, {_figures(own.speedup)} at most."
        return replace(diagnosis, sentence=f"{diagnosis.sentence} {said}"), doubts
    hidden = f"Tried: without {own.removes} a step takes as long ({_figures(own.speedup)})"
    gains = [x for x in tried if x.verdict == "gain" and x.whole and x.speedup is not None]
    best = max(gains, key=_least, default=None)
    if best is None or best.speedup is None:
        said = f"{hidden}: it is hidden, and not the bottleneck."
        return replace(diagnosis, sentence=f"{diagnosis.sentence} {said}"), doubts
    bottleneck = best.branch
    sentence = (
        f"{diagnosis.sentence} {hidden}: it is hidden. What limits it is {best.removes}: without "
        f"that, {_figures(best.speedup)} at most."
    )
    detail = detail_of(bottleneck, diagnosis.findings, checks, on_gpu)
    return replace(diagnosis, bottleneck=bottleneck, detail=detail, sentence=sentence), doubts


def _least(one: TriedCeiling) -> float:
    return one.speedup.low if one.speedup is not None else 0.0


def _disagreement(one: TriedCeiling) -> str | None:
    """A sentence where a share and what it gives differ by more than the interval explains."""
    if one.speedup is None or one.share is None or one.speedup.low <= 0:
        return None
    low, high = (1.0 - 1.0 / bound for bound in (one.speedup.low, one.speedup.high))
    if low - _APART <= one.share <= high + _APART:
        return None
    why = "more than its share explains" if one.share < low else "the rest of its share is hidden"
    return (
        f"Shares and experiment disagree about {one.removes}: {one.share:.0%} of the step, and "
        f"{_figures(one.speedup)} without it: {why}."
    )


def _figures(found: Interval) -> str:
    return f"{found.estimate:.2f}x [{found.low:.2f}, {found.high:.2f}]"
