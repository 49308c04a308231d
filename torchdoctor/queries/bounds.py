"""The most that a fix can gain: by what it touches, by replay of the trace, by experiments. Pure.

What a fix touches bounds its gain in any case, as no more than that time can go. A replay or an
experiment without a whole branch may say less, as other work hides a part of it: that is believed.
"""

from collections.abc import Sequence

from torchdoctor.schema import Bound, Touched, Touches, TraceStatistics, TriedCeiling, WhatIf
from torchdoctor.schema.traced import REPRODUCED_WITHIN

_LEAST_LEFT = REPRODUCED_WITHIN  # of a step: where less is left, no figure says how much
LARGEST_BOUND = 1.0 / _LEAST_LEFT  # as a speed-up
_BELIEVED_FROM = 0.005  # of the step: what says so much less than the shares do


def bound_of(
    touched: Touches, trace: TraceStatistics | None = None, tried: Sequence[TriedCeiling] = ()
) -> Bound | None:
    """Return the bound of a fix that touches this; None: it is not known, or no figure says it."""
    if not touched:
        return None
    by_share = share_saved(touched)
    by_replay = _hidden(touched, _replayed(trace))
    by_experiment = _hidden(touched, _measured(tried))
    believed = {"share": by_share, "replay": by_replay, "experiment": by_experiment}
    by = "share"
    for source in ("experiment", "replay"):
        if believed[source] < believed[by] - _BELIEVED_FROM:
            by = source
    saved = believed[by]
    if saved > 1.0 - _LEAST_LEFT:
        return None
    works_on = " and ".join(dict.fromkeys(each.label for each in touched if each.saved_share > 0))
    return Bound(speedup=1.0 / (1.0 - saved), works_on=works_on or touched[0].label, by=by)


def share_saved(touched: Sequence[Touched]) -> float:
    """Return the share of the step that goes at most, by the time of what is touched."""
    return min(sum(each.saved_share for each in touched), 1.0)


def _hidden(touched: Sequence[Touched], most: dict[str, float]) -> float:
    """Return the share that goes if no branch can save more than its `most`.

    Of several parts one may be taken away first, so that its branch alone holds; what the others
    save after that is no more than their time.
    """
    total = share_saved(touched)
    saved = total
    for branch in {each.branch for each in touched} & most.keys():
        branch_share = sum(each.saved_share for each in touched if each.branch == branch)
        saved = min(saved, total - branch_share + min(branch_share, most[branch]))
    return max(saved, 0.0)


def _replayed(trace: TraceStatistics | None) -> dict[str, float]:
    """Return the share of the step that a believed replay saves without each branch."""
    replay: WhatIf | None = trace.what_if if trace is not None else None
    if replay is None or not replay.reproduced:
        return {}
    gains = {branch: replay.gain(branch) for branch in replay.branches}
    return {branch: max(1.0 - 1.0 / gain, 0.0) for branch, gain in gains.items() if gain}


def _measured(tried: Sequence[TriedCeiling]) -> dict[str, float]:
    """Return the share of the step that was saved at most without each whole branch."""
    decided = [
        tried_ceiling
        for tried_ceiling in tried
        if tried_ceiling.whole and tried_ceiling.decided and tried_ceiling.speedup is not None
    ]
    return {
        tried_ceiling.branch: max(1.0 - 1.0 / tried_ceiling.speedup.high, 0.0)
        for tried_ceiling in decided
        if tried_ceiling.speedup is not None and tried_ceiling.speedup.high > 0
    }
