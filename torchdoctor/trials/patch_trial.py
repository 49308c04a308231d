"""The patched program against the untouched one: does the edit do what the run-time fix did?"""

from __future__ import annotations

from torchdoctor.trials.arms import Arm
from torchdoctor.trials.claims import Floats, claim_interval
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.outcome import as_speedup
from torchdoctor.trials.search_policy import PATCH_PAIRS
from torchdoctor.words import Interval, PatchTrial
from torchdoctor.words.figures import counted

_MINUTES_APART = 0.05  # between the bounds of two speed-ups that are the same


def patch_result(
    evidence: Evidence, arm: Arm | None, why: str | None, sigma_log: Floats | None = None
) -> PatchTrial | None:
    """Return what was measured of the patch, or why nothing was; None: none was to be measured.

    Args:
        evidence: the log.
        arm: of the patched program; None: it was not launched.
        why: nothing, or less than wished, was measured.
        sigma_log: as in `claim_interval`.
    """
    if arm is None:
        return PatchTrial(reason=why) if why else None
    measured = evidence.measured(arm)
    logs, reason = measured.differences, arm.failed or arm.refused
    if reason is None and len(logs) < PATCH_PAIRS and why:
        reason = f"only {counted(len(logs), 'pair')}: {why}" if logs else why
    return PatchTrial(
        speedup=as_speedup(claim_interval(logs, sigma_log)) if logs and arm.alive else None,
        numerics=measured.numerics.classification,
        numerics_reason=measured.numerics.reason,
        pairs=len(logs),
        reason=reason,
    )


def disagreement(fixes: Interval | None, patch: Interval | None) -> str | None:
    """Return a sentence if patch and run-time fixes differ beyond their intervals; else None.

    Each was measured beside the untouched program, but minutes apart: the load of the machine may
    have changed, and may slow the two programs differently.
    """
    if fixes is None or patch is None:
        return None
    gap = max(patch.low / fixes.high, fixes.low / patch.high)
    if gap <= 1 + _MINUTES_APART:
        return None
    return (
        f"The patched program runs {patch.estimate:.2f}x ({patch.low:.2f}-{patch.high:.2f}), the "
        f"fixes applied at run time {fixes.estimate:.2f}x ({fixes.low:.2f}-{fixes.high:.2f}): the "
        "edit does not do quite the same, or the load of the machine changed in between. The "
        "patch's figure is that of the edit."
    )
