"""Why a launch does not count: a fix that was not applied, or a program that failed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchdoctor.trials.compare import usable
from torchdoctor.words import LaunchTiming

if TYPE_CHECKING:
    from torchdoctor.trials.arms import Arm


def refusal(arm: Arm, timing: LaunchTiming) -> str | None:
    """Why a launch did not have all its fixes applied, or None."""
    for fix, _ in arm.fixes:
        states = {applied.state: applied for applied in timing.fixes if applied.fix == fix}
        if "refused" in states:
            return states["refused"].reason or f"{fix} refused to be applied."
        if usable(timing) and "applied" not in states and "failed" not in states:
            pending = states.get("pending")
            return (pending and pending.reason) or f"{fix} found nothing to apply to."
    return None


def failure(arm: Arm, timing: LaunchTiming) -> str | None:
    """Why a launch cannot be used, or None."""
    for applied in timing.fixes:
        if applied.state == "failed":
            return f"{applied.fix} could not be applied: {applied.reason or 'no reason given'}"
    if usable(timing):
        return None
    before = sum(usable(slot.timing) for slot in arm.slots)
    reason = timing.reason or {
        "out-of-memory": "Out of memory.",
        "timed-out": "Timed out.",
    }.get(timing.ended, "The program failed.")
    if timing.ended in ("measured", "program-ended"):
        reason = "No step was measured."
    if not before:
        return reason
    fine = "the one before it was fine" if before == 1 else f"the {before} before it were fine"
    return f"{reason.rstrip('.')}. That was launch {before + 1}; {fine}."
