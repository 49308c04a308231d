"""Paired differences -> slower, not slower, or another look. Pure.

A difference is log(time of the new version) minus log(time of the reference) within one pair:
above 0 is slower. docs/decisions/gate-rule.md gives the simulated error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from torchdoctor.trials.compare import p_value, t_quantile

FIRST_LOOK, SECOND_LOOK = 5, 10  # pairs
_FAIL_FIRST, _FAIL_SECOND = 0.001, 0.006  # p below which a slow-down counts
_PASS_FIRST = 0.2  # p above which the first look is enough
_BASELINE_CONFIDENCE = 0.999  # of the prediction interval: one false alarm in a thousand


def look(differences: Sequence[float], tolerance: float) -> str:
    """ "slower", "not slower", or "more": the first look did not decide.

    Args:
        differences: of the pairs so far.
        tolerance: slow-down that is accepted, as a share (0.02: 2 %).
    """
    pairs = len(differences)
    if pairs < FIRST_LOOK:
        return "more"
    p, slowdown = p_value(differences), fmean(differences)
    final = pairs >= SECOND_LOOK
    if p < (_FAIL_SECOND if final else _FAIL_FIRST) and slowdown > math.log1p(tolerance):
        return "slower"
    if final or p > _PASS_FIRST or slowdown <= 0.0:
        return "not slower"
    return "more"


def against_stored(
    stored_s: Sequence[float], now_s: Sequence[float], tolerance: float
) -> tuple[str, float, float]:
    """Launches of now against those of a stored report, by a prediction interval.

    Args:
        stored_s: time per sample of each launch of the stored run; at least three.
        now_s: of the launches of now.
        tolerance: slow-down that is accepted, as a share.

    Returns:
        "slower" or "not slower", the ratio now / stored, and the ratio above which it is slower.
    """
    before, now = [math.log(x) for x in stored_s], [math.log(x) for x in now_s]
    spread = stdev(before) * math.sqrt(1 / len(before) + 1 / len(now))
    limit = t_quantile(_BASELINE_CONFIDENCE, len(before) - 1) * spread
    ratio = fmean(now) - fmean(before)
    slower = ratio > limit and ratio > math.log1p(tolerance)
    return (
        "slower" if slower else "not slower",
        math.exp(ratio),
        math.exp(max(limit, math.log1p(tolerance))),
    )


def grown(reference: Sequence[float], new: Sequence[float], tolerance: float) -> bool:
    """Whether a figure that hardly varies (peak memory) grew beyond the tolerance.

    Every launch of the new version must lie above every one of the reference.
    """
    if not reference or not new:
        return False
    beyond = median(new) > median(reference) * (1.0 + tolerance)
    return beyond and min(new) > max(reference)
