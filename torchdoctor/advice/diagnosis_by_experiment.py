"""What the ceilings say of the diagnosis: shares suggest, taking a cost away proves.

docs/decisions/upper-bounds.md says why a share may mislead.
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
    """Return the diagnosis as the ceilings confirm or refute it, and doubts about shares.

    A bottleneck whose cost is hidden gives way to the branch whose ceiling gives most, and so does
    one that gives little where another gives far more. If none gives anything, it stays, and the
    sentence says that its cost is hidden.

    Args:
        diagnosis: by shares.
        tried: costs that were taken away.
        checks: by id.
        on_gpu: the model trains on a GPU.
    """
    doubts = [doubt for trial in tried if (doubt := _disagreement(trial)) is not None]
    whole = [trial for trial in tried if trial.whole and trial.decided]
    branches = {trial.ceiling: _branch(trial, diagnosis, checks) for trial in whole}
    by_branch = {branches[trial.ceiling]: trial for trial in reversed(whole)}
    own = by_branch.get(diagnosis.bottleneck)
    if own is None or own.speedup is None:
        return diagnosis, doubts
    gains = [
        t for t in whole if t.verdict == "gain" and branches[t.ceiling] != diagnosis.bottleneck
    ]
    best = max(gains, key=lambda t: t.speedup.low if t.speedup else 0.0, default=None)
    measured = f"Without {own.removes} the program was {_faster(own.speedup)}."
    if own.verdict == "gain":
        if best is not None and not _gives_far_more(best, own):
            best = None
    else:
        measured = f"Without {own.removes} a step takes as long ({_figures(own.speedup)})."
        if own.verdict == "nothing":
            best = None  # little was expected of it
        elif best is None:
            measured += " Other work hides this cost, so it is not the bottleneck."
        else:
            measured += " Other work hides this cost."
    sentence = f"{diagnosis.sentence} {measured}"
    if best is None or best.speedup is None:
        return replace(diagnosis, sentence=sentence), doubts
    bottleneck = branches[best.ceiling]
    sentence += (
        f" The limit is {best.removes}: without that, the program was {_faster(best.speedup)}."
    )
    detail = detail_of(bottleneck, diagnosis.findings, checks, on_gpu)
    return replace(diagnosis, bottleneck=bottleneck, detail=detail, sentence=sentence), doubts


def _branch(trial: TriedCeiling, diagnosis: Diagnosis, checks: Mapping[str, CheckSpec]) -> str:
    """Return the branch of the tree that a trial took the cost of.

    Without forward and backward the host's work for a GPU is gone as well: if the path says that
    the GPU idles and the host is busy, the host is the limit.
    """
    answers = {asked.question: asked.answer for asked in diagnosis.path}
    questions = {check.branch: check.question for check in checks.values() if check.question}
    gpu, cpu = (answers.get(questions[branch].text) for branch in ("gpu", "cpu"))
    return "cpu" if trial.branch == "gpu" and (gpu, cpu) == ("no", "yes") else trial.branch


def _gives_far_more(best: TriedCeiling, own: TriedCeiling) -> bool:
    assert best.speedup is not None and own.speedup is not None
    saved, own_saved = 1.0 - 1.0 / best.speedup.low, 1.0 - 1.0 / own.speedup.high
    return best.speedup.low > own.speedup.high and saved > _FAR_MORE * own_saved


def _disagreement(trial: TriedCeiling) -> str | None:
    """Return a sentence if share and gain differ by more than the interval explains."""
    if trial.speedup is None or trial.share is None or not trial.decided or trial.speedup.low <= 0:
        return None
    low, high = (1.0 - 1.0 / bound for bound in (trial.speedup.low, trial.speedup.high))
    if low - _APART <= trial.share <= high + _APART:
        return None
    why = "Other work hides the rest of that share."
    if trial.share < low:
        why = "The share explains less than that: one of the two measurements was disturbed."
    return (
        f"The profile gives {trial.removes} {trial.share:.0%} of a step. Without that, "
        f"the program was {_faster(trial.speedup)}. {why}"
    )


def _faster(speedup: Interval) -> str:
    return f"{_figures(speedup)} as fast"


def _figures(speedup: Interval) -> str:
    """Return a speed-up with its interval; of a useless interval only what is certain."""
    if not says_something(speedup) and speedup.low > 1:
        return f"more than {speedup.low:.2f}x"
    return f"{speedup.estimate:.2f}x ({speedup.low:.2f}-{speedup.high:.2f})"
