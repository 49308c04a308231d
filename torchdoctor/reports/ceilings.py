"""Ceilings that were tried, as lines of text: what taking a cost away could give at most."""

from __future__ import annotations

from torchdoctor.words import Interval, Report, TriedCeiling
from torchdoctor.words.figures import clean, percent, ratio, says_something, speedup

TITLE = "What if a cost were gone: tried, not to be used"
HIDDEN = "hidden, not the bottleneck"
_SAID = {"hidden": HIDDEN, "nothing": "not the bottleneck"}
_SLOWER = "took longer without it, so this says nothing"


def ceiling_lines(report: Report) -> list[str]:
    """A line for each cost that was taken away in a trial; replays are not among them.

    Where nothing at all could be tried, the section says less than its absence.
    """
    trials = report.ceiling_trials
    return (
        [_line(one) for one in trials] if any(one.verdict != "not-tried" for one in trials) else []
    )


def ceiling_text(report: Report, branch: str) -> str:
    """For a place beside the branch's share: "without it 2.90x (2.81-2.99)"; empty: not tried."""
    for one in report.ceiling_trials:
        if one.branch == branch and one.whole and one.speedup is not None:
            if not one.decided:
                return "without it: not decided"
            hidden = f": {HIDDEN}" if one.verdict == "hidden" else ""
            return f"without it {_gives(one.speedup)}{hidden}"
    return ""


def _line(one: TriedCeiling) -> str:
    removes, share = clean(one.removes), one.share
    if one.speedup is None:
        how = one.verdict.replace("-", " ")
        return f"without {removes}: {how}. {clean(one.reason or '')}".strip()
    takes = f" ({percent(share)} of the step)" if share is not None else ""
    if one.verdict == "slower":
        return f"without {removes}{takes}: {_SLOWER}"
    if not one.decided:
        return f"without {removes}{takes}: not decided. {clean(one.reason or '')}".strip()
    gives = f"without {removes}{takes}: {_gives(one.speedup)}"
    if one.verdict in _SAID:
        return f"{gives}: {_SAID[one.verdict]}"
    if share is not None and 0 < share < 1:
        gives += f"; by its share alone {ratio(1 / (1 - share))}x"
    return gives


def _gives(found: Interval) -> str:
    return (
        f"{speedup(found)} at most" if says_something(found) else f"more than {ratio(found.low)}x"
    )
