"""Which fixes deserve a trial, with which settings, in what order.

A fix cannot remove more than the share of the step that it treats (Amdahl). The one that could
gain most comes first, so that a search that is cut short has tried what matters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.advice.prospects import Prospect, bound, ceiling, prospect_of, share_of
from torchdoctor.words import Candidate, Diagnosis, Recording, Refused
from torchdoctor.words.specs import FixSpec

LEAST_SHARE = 0.01  # of the step; a fix that could remove less is not tried
_KNOWN_TO = 0.05  # logarithm of a ceiling: closer ones are equal, and the cheaper trial comes first


def candidates(
    recording: Recording,
    diagnosis: Diagnosis,
    catalogue: Mapping[str, FixSpec],
    *,
    fixes: Collection[str] | None = None,
    skip: Collection[str] = (),
    allow_training_changes: bool = False,
) -> tuple[list[Candidate], list[Refused]]:
    """Return candidates in the order to try, and the other fixes with their reasons.

    Args:
        recording: the observed program.
        diagnosis: its findings.
        catalogue: all fixes by id.
        fixes: try these only, and however little they could gain; None: all.
        skip: do not try these.
        allow_training_changes: try fixes that change training too.
    """
    allowed = set(catalogue if fixes is None else fixes) - set(skip)
    ranked: list[tuple[tuple[float, ...], Candidate]] = []
    refused: list[Refused] = []
    for ident in catalogue if fixes is None else [x for x in catalogue if x in fixes]:
        fix = catalogue[ident]
        included = [catalogue[other] for other in fix.includes(recording)]
        treats = {*fix.treats, *(check for other in included for check in other.treats)}
        prospect = prospect_of(fix, treats, recording, diagnosis)
        offered = fix.offered_as_code(recording)
        if ident in skip:
            reason: str | None = "left out by --skip"
        else:
            reason = _refusal(fix, recording, allow_training_changes)
        if reason is None and fixes is None:
            reason = _pruned(prospect)
        called_for = any(ident in f.fixes or f.check in treats for f in diagnosis.findings)
        wants_call = offered or (fixes is None and fix.needs_finding)
        if reason is None and treats and wants_call and not called_for:
            reason = "No finding calls for it."
        if reason is None and offered:
            continue  # the report offers it as code
        tried = [] if reason else _settings(fix, recording)
        if not tried:
            refused.append(Refused(fix=ident, reason=reason or "It has no setting worth trying."))
            continue
        candidate = Candidate(
            fix=ident,
            ceiling=ceiling(prospect, fix, recording),
            reason=prospect.reason,
            main=prospect.tier == 0,
        )
        tier, *order = _order(fix, prospect, candidate, len(included), diagnosis)
        for number, (settings, also) in enumerate(_with_company(tried, fix, recording, allowed)):
            # A fix that goes with it works elsewhere in the step.
            most = None if also else bound(prospect, fix, settings, recording)
            variant = replace(candidate, settings=settings, also=also, bound=most)
            # A second setting waits until the next tier's first ones had their turn.
            ranked.append(((tier + number, *order, len(ranked)), variant))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])], refused


def _order(
    fix: FixSpec, prospect: Prospect, candidate: Candidate, included: int, diagnosis: Diagnosis
) -> tuple[float, ...]:
    """Return what orders fixes, the first is least: tier, gain, cost, fixes included, treated."""
    tier = 0 if _is_larger_mistake(prospect, fix, diagnosis) else prospect.tier
    gain = -round(math.log(candidate.ceiling or 1.0) / _KNOWN_TO)
    listed = (*fix.treats, diagnosis.detail).index(diagnosis.detail)
    return tier, gain, fix.setup_s, -included, listed


def _is_larger_mistake(prospect: Prospect, fix: FixSpec, diagnosis: Diagnosis) -> bool:
    """Return True if a fix treats more than the bottleneck, and costs no results and no set-up.

    The tree takes the first branch that is high, and a mistake beside it may cost more.
    """
    bottleneck = max(
        (share_of(f) for f in diagnosis.findings if f.check == diagnosis.detail), default=1
    )
    for_nothing = fix.risk == 0 and not fix.setup_s
    return for_nothing and prospect.tier == 1 and (prospect.share or 0.0) > bottleneck


def _refusal(fix: FixSpec, recording: Recording, allow_training_changes: bool) -> str | None:
    if reason := fix.refuses(recording):
        return reason
    if fix.offered_as_code(recording) and fix.training is None:
        return None  # the user decides: it is shown, never run
    if fix.keeps_results == "changes training" and not allow_training_changes:
        return "It changes training: needs --allow-training-changes."
    return None


def _pruned(prospect: Prospect) -> str | None:
    if prospect.share is None or prospect.share >= LEAST_SHARE:
        return None
    return (
        f"It could gain {100 * prospect.share:.1f} % at most: what it treats takes no more of the "
        "step."
    )


def _settings(fix: FixSpec, recording: Recording) -> list[dict[str, Any]]:
    different: list[dict[str, Any]] = []
    for settings in fix.settings(recording):
        if settings not in different:
            different.append(settings)
    return different


def _with_company(
    tried: Sequence[dict[str, Any]], fix: FixSpec, recording: Recording, allowed: set[str]
) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Return settings to try; the most promising come first with their company, then alone."""
    alone: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]
    alone = [(settings, {}) for settings in tried]
    also = fix.together(tried[0], recording)
    return [(tried[0], also), *alone] if also and set(also) <= allowed else alone
