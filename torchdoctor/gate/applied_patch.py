"""What the report of an applied patch told of it, which a gate of the patched program accepts."""

from collections.abc import Sequence

from torchdoctor.reports import handed_out
from torchdoctor.schema import Report, set_of


def told_memory(report: Report, fixes: Sequence[str] = ()) -> float | None:
    """Return the largest growth of peak memory that a pair of the patch showed, as a share.

    `fixes`: ids of those whose edits were applied; none: the recommended patch was. None: the
    report measured no memory with just these. Raise UsageError for a fix that it does not offer.
    """
    if fixes:
        applied = set_of([handed_out.edit_of(report, ident) for ident in fixes])
    else:
        applied = set_of(handed_out.applied_sets(report))
    growths = [
        growth
        for trial in report.trials
        if applied and trial.fixes == applied
        for growth in trial.memory_growths
    ]
    return max(max(growths) - 1.0, 0.0) if growths else None
