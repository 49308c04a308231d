"""What the ceilings say of the diagnosis: shares suggest, taking a cost away proves.

docs/decisions/ceilings.md says why a share may mislead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchdoctor.advice.diagnosis import detail_of
from torchdoctor.words import CheckSpec, Diagnosis, Interval, TriedCeiling
from torchdoctor.words.figures import says_something

_FAR_MORE = 4.0  # times the time that its own cost takes
_APART = 0.15  # of the step: share and experiment that differ by more disagree


def by_experiment(
    diagnosis: Diagnosis,
    tried: Sequence[TriedCeiling],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
) -> tuple[Diagnosis, list[str]]:
    """The diagnosis as the ceilings confirm or refute it.

    A bottleneck whose cost is hidden gives way to the branch whose ceiling gives most, and so does
    one that gives little where another gives far more; where none gives anything, it stays, and the
    sentence says that it is hidden.

    Args:
        diagnosis: by shares.
        tried: what was taken away.
        checks: by id.
        on_gpu: whether the model trains on a GPU.

    Returns:
        The diagnosis, and a sentence for each share that the experiment disagrees with.
    """
    doubts = [said for one in tried if (said := _disagreement(one)) is not None]
    whole = [x for x in tried if x.whole and x.decided]
    branches = {x.ceiling: _branch(x, diagnosis, checks) for x in whole}
    own = next((x for x in whole if branches[x.ceiling] == diagnosis.bottleneck), None)
    if own is None or own.speedup is None:
        return diagnosis, doubts
    others = [
        x for x in whole if x.verdict == "gain" and branches[x.ceiling] != diagnosis.bottleneck
    ]
    best = max(others, key=_least, default=None)
    if own.verdict == "gain":
        found = f"Tried: without {own.removes}, {_at_most(own.speedup)}."
        if best is None or not _gives_far_more(best, own):
            return replace(diagnosis, sentence=f"{diagnosis.sentence} {found}"), doubts
    else:
        found = f"Tried: without {own.removes} a step takes as long ({_figures(own.speedup)})"
        if own.verdict == "nothing":  # it was not expected to give much
            return replace(diagnosis, sentence=f"{diagnosis.sentence} {found}."), doubts
        if best is None:
            said = f"{found}: it is hidden, and not the bottleneck."
            return replace(diagnosis, sentence=f"{diagnosis.sentence} {said}"), doubts
        found = f"{found}: it is hidden."
    assert best is not None and best.speedup is not None
    bottleneck = branches[best.ceiling]
    sentence = (
        f"{diagnosis.sentence} {found} What limits it is {best.removes}: without that, "
        f"{_at_most(best.speedup)}."
    )
    detail = detail_of(bottleneck, diagnosis.findings, checks, on_gpu)
    return replace(diagnosis, bottleneck=bottleneck, detail=detail, sentence=sentence), doubts


def _branch(one: TriedCeiling, diagnosis: Diagnosis, checks: Mapping[str, CheckSpec]) -> str:
    """Of the tree; without forward and backward the host's work for a GPU is gone as well.

    So where the path says that the GPU idles and the host does not, that is what limits it.
    """
    answers = {asked.question: asked.answer for asked in diagnosis.path}
    questions = {check.branch: check.question for check in checks.values() if check.question}
    gpu, cpu = (answers.get(questions[branch].text) for branch in ("gpu", "cpu"))
    return "cpu" if one.branch == "gpu" and (gpu, cpu) == ("no", "yes") else one.branch


def _gives_far_more(best: TriedCeiling, own: TriedCeiling) -> bool:
    assert best.speedup is not None and own.speedup is not None
    saved, own_saved = 1.0 - 1.0 / best.speedup.low, 1.0 - 1.0 / own.speedup.high
    return best.speedup.low > own.speedup.high and saved > _FAR_MORE * own_saved


def _least(one: TriedCeiling) -> float:
    return one.speedup.low if one.speedup is not None else 0.0


def _disagreement(one: TriedCeiling) -> str | None:
    """A sentence where a share and what it gives differ by more than the interval explains."""
    if one.speedup is None or one.share is None or not one.decided or one.speedup.low <= 0:
        return None
    low, high = (1.0 - 1.0 / bound for bound in (one.speedup.low, one.speedup.high))
    if low - _APART <= one.share <= high + _APART:
        return None
    why = "more than its share explains" if one.share < low else "the rest of its share is hidden"
    return (
        f"Shares and experiment disagree about {one.removes}: {one.share:.0%} of the step, and "
        f"{_figures(one.speedup)} without it: {why}."
    )


def _at_most(found: Interval) -> str:
    return f"{_figures(found)} at most" if says_something(found) else _figures(found)


def _figures(found: Interval) -> str:
    """What was measured; of an interval of hundreds of times what it leaves for certain."""
    if not says_something(found) and found.low > 1:
        return f"more than {found.low:.2f}x"
    return f"{found.estimate:.2f}x [{found.low:.2f}, {found.high:.2f}]"
