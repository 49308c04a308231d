"""Paired differences -> slower, not slower, or another look. Pure.

A difference is log(time of the new version) minus log(time of the reference) within one pair:
above 0 is slower. docs/decisions/gate-rule.md gives the simulated error rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from torchdoctor.schema import Evidence, Interval, fact
from torchdoctor.schema.students_t import t_quantile
from torchdoctor.trials.compare import as_interval, half_width, p_value, visible

# Pairs at which it is decided; each but the last leaves the alternative of going on.
LOOKS = (5, 7, 10, 14, 20, 28, 40, 56, 80)
FEWEST_PAIRS = LOOKS[0]
# The same bound at every look (Pocock's way), and a wider one at the last, when the time is up: all
# looks together raise a false alarm in at most 1.1 % of gates (tests/gate/test_gate_rule.py).
FAIL, FAIL_FINAL = 0.002, 0.01  # two-sided p below which a slow-down counts
_NARROW = 0.5  # of the tolerance: half an interval as narrow as this is not made narrower
_BASELINE_CONFIDENCE = 0.999  # of the prediction interval: one false alarm in a thousand


def look(differences: Sequence[float], tolerance: float, final: bool = False) -> str:
    """Return "slower", "not slower", or "more": not decided yet.

    `tolerance` is the slow-down that is accepted, as a share (0.02: 2 %). `final`: the time is up,
    so that "not slower" only says that no slow-down is proven.
    """
    pairs = len(differences)
    if pairs < FEWEST_PAIRS or (pairs not in LOOKS and not final):
        return "more"
    accepted = math.log1p(tolerance)
    slowdown = fmean(differences)
    final = final or pairs >= LOOKS[-1]
    if p_value(differences) < (FAIL_FINAL if final else FAIL) and slowdown > accepted:
        return "slower"
    half = half_width(differences)
    ruled_out = slowdown + half <= accepted
    narrow = slowdown <= accepted and half <= _NARROW * accepted
    return "not slower" if final or ruled_out or narrow else "more"


def ratio_of(differences: Sequence[float]) -> Interval | None:
    """Return new / reference with its 95 % interval; None below two pairs."""
    if len(differences) < 2:
        return None
    return as_interval(fmean(differences), half_width(differences))


def blind_spot(ratio: Interval | None) -> float | None:
    """Return the largest slow-down that the interval does not rule out, as a share, or None."""
    return None if ratio is None else max(ratio.high - 1.0, 0.0)


def is_blind(blind: float | None, tolerance: float | None) -> bool:
    """Return True if a pass rests on too little: it could have missed more than is accepted."""
    return blind is not None and blind > (1.0 + _NARROW) * (tolerance or 0.0) + 1e-3


def means_say_slower(mean: Interval | None, tolerance: float | None) -> bool:
    """Return True if the mean step took longer than is accepted, where typical steps decide."""
    return mean is not None and mean.low > 1.0 + (tolerance or 0.0)


def state(
    verdict: str, ratio: Interval | None, tolerance: float | None, mean: Interval | None = None
) -> str:
    """Return the word for the step time's row: "ok" only if pairs could have shown the tolerance.

    `ratio` is new / reference, None below two pairs; `mean` that of the mean step, where typical
    steps decide. A pass that proves little is "perhaps slower" (no change lies outside the
    interval, or the mean step is slower) or "not seen well enough".
    """
    if verdict != "not slower":
        return "worse" if verdict == "slower" else "not measured"
    beyond = ratio is not None and ratio.low > 1.0 and ratio.high > 1.0 + (tolerance or 0.0)
    if beyond or means_say_slower(mean, tolerance):
        return "perhaps slower"
    return "not seen well enough" if is_blind(blind_spot(ratio), tolerance) else "ok"


def pairs_for(differences: Sequence[float], slowdown: float) -> int | None:
    """Return the pairs that prove a slow-down (a share) four times in five; None: too many."""
    spread = stdev(differences)
    counts = range(FEWEST_PAIRS, LOOKS[-1] + 1)
    return next((n for n in counts if visible(spread, n, FAIL_FINAL) <= slowdown), None)


@dataclass(frozen=True, kw_only=True)
class StoredComparison:
    """Launches of now against stored ones; ratios are now / stored."""

    verdict: str  # "slower" or "not slower"
    ratio: Interval
    limit: float  # the ratio from which on it is slower
    chance: float  # the ratio that chance alone goes beyond once in a thousand


def against_stored(
    stored_s: Sequence[float], now_s: Sequence[float], tolerance: float
) -> StoredComparison:
    """Compare launches of now with at least two stored ones, by a prediction interval."""
    before = [math.log(launch_s) for launch_s in stored_s]
    now = [math.log(launch_s) for launch_s in now_s]
    spread = stdev(before) * math.sqrt(1 / len(before) + 1 / len(now))
    ratio = fmean(now) - fmean(before)
    freedom = len(before) - 1
    chance = t_quantile(_BASELINE_CONFIDENCE, freedom) * spread
    limit = max(chance, math.log1p(tolerance))
    return StoredComparison(
        verdict="slower" if ratio > limit else "not slower",
        ratio=as_interval(ratio, t_quantile(0.975, freedom) * spread),
        limit=math.exp(min(limit, 50.0)),
        chance=math.exp(min(chance, 50.0)),
    )


def grown(reference: Sequence[float], new: Sequence[float], tolerance: float) -> bool:
    """Return True if a figure that hardly varies (peak memory) grew, in every launch."""
    beyond = bool(reference and new) and median(new) > median(reference) * (1.0 + tolerance)
    return beyond and min(new) > max(reference)


def too_few_pairs(pairs: int, spent_s: float, pair_s: float) -> Evidence:
    """Return why a gate of so many pairs of `pair_s` is undecided, and how much time decides it."""
    needed_s = spent_s + FEWEST_PAIRS * pair_s
    return fact("time-up", pairs=pairs, needed=FEWEST_PAIRS, needed_s=needed_s)


def decides(
    differences: Sequence[float], tolerance: float, state: str, spent_s: float, pair_s: float
) -> Evidence | None:
    """Return what would decide a pass that proves little; None where that cannot be computed.

    "perhaps slower" asks for pairs that prove the measured slow-down, "not seen well enough" for
    those that prove one of the tolerance. `spent_s` and `pair_s` as of `too_few_pairs`.
    """
    if len(differences) < 2 or state not in ("perhaps slower", "not seen well enough"):
        return None
    measured = state == "perhaps slower"
    size = max(math.expm1(fmean(differences)) if measured else tolerance, 1e-3)
    pairs = pairs_for(differences, size)
    if pairs is None:
        least = visible(stdev(differences), LOOKS[-1], FAIL_FINAL)
        return fact("pairs-vary", most=LOOKS[-1], least=least)
    pairs = max(pairs, len(differences) + 1)
    return fact(
        "pairs-would-prove-size" if measured else "pairs-would-prove-tolerance",
        pairs=pairs,
        size_share=size,
        measured=len(differences),
        needed_s=spent_s + pairs * pair_s,
    )
