"""What a fix could gain, by the share of the step that it works on (Amdahl)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.facts.loading import given_back_share, least_step_s
from torchdoctor.words import Diagnosis, Finding, Recording, StepStatistics
from torchdoctor.words.specs import FixSpec

_MOST_SHARE = 0.99  # keeps a ceiling finite
_MAIN_SHARE = 0.2  # a phase below this is not what treats a bottleneck


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """The possible gain of a fix.

    Tiers: 0 treats the bottleneck, 1 another finding with a share, 2 one without, 3 none.
    """

    tier: int
    share: float | None
    reason: str
    bound: float | None = None  # share of the step that it works on: it cannot remove more


def prospect_of(
    fix: FixSpec, treats: Collection[str], recording: Recording, diagnosis: Diagnosis
) -> Prospect:
    """Return what a fix could gain, by what it treats and the phases that it works on."""
    return _capped(_by_findings(fix.ident, treats, recording, diagnosis), fix, recording)


def ceiling(prospect: Prospect, fix: FixSpec, recording: Recording) -> float | None:
    """Return `Candidate.ceiling`; what is prepared elsewhere still needs the CPUs."""
    least_s = least_step_s(recording) if fix.prepares_elsewhere else None
    if least_s is None or prospect.share is None or recording.steps is None:
        return _speedup_without(prospect.share)
    left = least_s / recording.steps.mean_s if recording.steps.mean_s > 0 else 0.0
    return _speedup_without(min(prospect.share, max(1.0 - left, 0.0)))


def bound(
    prospect: Prospect, fix: FixSpec, settings: dict[str, Any], recording: Recording
) -> float | None:
    """Return `Candidate.bound`; workers that a loader needs less leave CPUs to training."""
    if prospect.bound is None:
        return None
    by_loader = "data_wait_s" in fix.phases
    left = given_back_share(recording, settings) if by_loader else 0.0
    return _speedup_without(prospect.bound + left)


def share_of(finding: Finding) -> float:
    """Return a finding's share of the step; 0.0 if it has none."""
    return finding.share_of_step or 0.0


def _by_findings(
    ident: str, treats: Collection[str], recording: Recording, diagnosis: Diagnosis
) -> Prospect:
    treated = [f for f in diagnosis.findings if f.check in treats or ident in f.fixes]
    treats_bottleneck = diagnosis.detail in {f.check for f in treated}
    known = [f for f in treated if f.share_of_step is not None]
    if known:
        # Findings overlap (waiting for data, and why): the largest, not the sum.
        largest = max(known, key=share_of)
        check = catalogue.checks().get(largest.check)
        return Prospect(
            tier=0 if treats_bottleneck else 1,
            share=share_of(largest),
            reason=f"treats {largest.check}, {check.share_prefix if check else ''}"
            f"{100 * share_of(largest):.0f} % of the step",
        )
    if treated:
        checks = ", ".join(f.check for f in treated)
        tier = 0 if treats_bottleneck else 2
        return Prospect(tier=tier, share=None, reason=f"treats {checks}")
    most = _most_share(sorted(treats), recording)
    return Prospect(tier=3, share=most, reason="no finding points to it, but it may help")


def _capped(prospect: Prospect, fix: FixSpec, recording: Recording) -> Prospect:
    """Limit a prospect: a fix that works within some phases cannot gain more than they take.

    On a GPU the host's phases say little of the device's.
    """
    steps = recording.steps
    if recording.has_gpu or steps is None or steps.mean_s <= 0:
        return prospect
    most_s = _works_on_s(fix, recording, steps)
    if most_s is None:
        return prospect
    most = most_s / steps.mean_s
    prospect = replace(prospect, bound=most)
    if prospect.share is not None and prospect.share <= most:
        return prospect
    tier = prospect.tier if most >= _MAIN_SHARE else max(prospect.tier, 1)
    return replace(prospect, share=most, tier=tier)


def _speedup_without(share: float | None) -> float | None:
    """Return the speed-up by Amdahl where this share of the step is gone."""
    return None if share is None else 1.0 / (1.0 - min(share, _MOST_SHARE))


def _works_on_s(fix: FixSpec, recording: Recording, steps: StepStatistics) -> float | None:
    """Return the seconds of a step that a fix works on; None: it does not tell."""
    in_phases = [sum(getattr(steps, phase) for phase in fix.phases)] if fix.phases else []
    own = fix.works_on_s(recording)
    return min([*in_phases, *([] if own is None else [own])], default=None)


def _most_share(checks: Iterable[str], recording: Recording) -> float | None:
    """Return the most that a fix of these checks could remove; None: not known."""
    shares: list[float] = []
    steps = recording.steps
    for ident in checks:
        check = catalogue.checks().get(ident)
        if check is None:
            return None
        if check.phases and steps is not None and steps.mean_s > 0:
            shares.append(sum(getattr(steps, phase) for phase in check.phases) / steps.mean_s)
            continue
        share = getattr(recording.shares, check.share_field) if check.share_field else None
        if share is None:
            return None
        shares.append(share)
    return max(shares, default=None)
