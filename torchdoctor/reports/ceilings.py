"""Ceilings that were tried, as lines of text: what a branch of the tree could give at most."""

from __future__ import annotations

from torchdoctor.records import BRANCHES, Ceiling, Report
from torchdoctor.reports.content import SHARE_LABELS, time_rows
from torchdoctor.reports.figures import percent, ratio, speedup

TITLE = "What if a branch cost nothing: tried, not to be used"
HIDDEN = "hidden, not the bottleneck"
_NOTHING = 1.02  # an interval that ends below is no gain
_HIGH = 0.2  # of the step: a share that would make one look for a gain


def ceiling_lines(report: Report) -> list[str]:
    """A line for each branch whose cost was taken away in a trial; replays are not among them."""
    shares = {row.key: row.share for row in time_rows(report)}
    return [
        _line(branch, ceiling, shares.get(branch))
        for branch in BRANCHES
        if (ceiling := report.ceilings.get(branch)) is not None and ceiling.source == "experiment"
    ]


def _line(branch: str, ceiling: Ceiling, share: float | None) -> str:
    label = SHARE_LABELS[branch]
    takes = f"{label} takes {percent(share)} of the step; " if share is not None else ""
    gives = f"without it: {speedup(ceiling.speedup)} at most"
    if ceiling.speedup.high < _NOTHING and (share or 0.0) >= _HIGH:
        gives += f": {HIDDEN}"
    elif share is not None and ceiling.speedup.low > 1 and share < 1:
        gives += f" ({ratio(1 / (1 - share))}x if nothing else used that time)"
    return takes + gives
