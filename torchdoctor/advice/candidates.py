"""Which fixes deserve a trial, with which settings, in what order.

A fix cannot remove more than the share of the step that it treats (Amdahl). The one that could
gain most comes first, so that a search that is cut short has tried what matters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.advice.prospects import FixModule, Prospect, bound, ceiling, prospect_of, share_of
from torchdoctor.words import Candidate, Diagnosis, Recording, Refused
from torchdoctor.words.errors import UsageError

LEAST_SHARE = 0.01  # of the step; a fix that could remove less is not tried
_KNOWN_TO = 0.05  # logarithm of a ceiling: closer ones are equal, and the cheaper trial comes first


def candidates(
    recording: Recording,
    diagnosis: Diagnosis,
    catalogue: Mapping[str, Any],
    *,
    fixes: Collection[str] | None = None,
    skip: Collection[str] = (),
    allow_training_changes: bool = False,
) -> tuple[list[Candidate], list[Refused]]:
    """Candidates in the order to try, and the fixes that are not tried, each with its reason.

    Args:
        recording: the observed program.
        diagnosis: its findings.
        catalogue: fix id to its module (`FixModule`).
        fixes: try these only, and however little they could gain; None: all.
        skip: do not try these.
        allow_training_changes: try fixes that change training too.

    Raises:
        UsageError: `fixes` or `skip` names a fix that does not exist.
    """
    for ident in [*(fixes or ()), *skip]:
        if ident not in catalogue:
            raise UsageError(
                f"There is no fix '{ident}'. There are: {', '.join(sorted(catalogue))}."
            )
    allowed = set(catalogue if fixes is None else fixes) - set(skip)
    ranked: list[tuple[tuple[float, ...], Candidate]] = []
    refused: list[Refused] = []
    for ident, module in catalogue.items():
        if fixes is not None and ident not in fixes:
            continue
        included = module.includes(recording) if hasattr(module, "includes") else ()
        treats = {*module.TREATS, *(c for one in included for c in catalogue[one].TREATS)}
        prospect = prospect_of(ident, module, treats, recording, diagnosis)
        offered = is_by_hand(module, recording)
        reason = (
            "left out by --skip"
            if ident in skip
            else _refusal(ident, module, recording, allow_training_changes)
        )
        if reason is None and fixes is None:
            reason = _pruned(prospect)
        called_for = any(ident in f.fixes or f.check in treats for f in diagnosis.findings)
        wants_call = offered or (fixes is None and getattr(module, "NEEDS_FINDING", False))
        if reason is None and treats and wants_call and not called_for:
            reason = "Nothing that was found calls for it."
        if reason is None and offered:
            continue  # the report offers it as code
        tried = [] if reason else _settings(module, recording)
        if not tried:
            refused.append(Refused(fix=ident, reason=reason or "It has no setting worth trying."))
            continue
        one = Candidate(
            fix=ident,
            ceiling=ceiling(prospect, module, recording),
            reason=prospect.reason,
            main=prospect.tier == 0,
        )
        cost_s = float(getattr(module, "SETUP_S", 0.0))
        tier = 0 if _is_larger_mistake(prospect, module, diagnosis) else prospect.tier
        listed = (*module.TREATS, diagnosis.detail).index(diagnosis.detail)
        company = _with_company(tried, module, recording, allowed)
        for number, (settings, also) in enumerate(company):
            rank = _rank(tier + number, one, cost_s, len(included), listed)
            # What goes with it works elsewhere in the step.
            most = None if also else bound(prospect, module, settings, recording)
            setting = replace(one, settings=settings, also=also, bound=most)
            ranked.append(((*rank, len(ranked)), setting))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])], refused


def _rank(tier: int, one: Candidate, cost_s: float, more: int, listed: int) -> tuple[float, ...]:
    """Least first: tier, possible gain, cost of its trial, who does more, who is made for it.

    A second setting waits until the next tier's first ones had their turn.
    """
    return (tier, -round(math.log(one.ceiling or 1.0) / _KNOWN_TO), cost_s, -more, listed)


def _is_larger_mistake(prospect: Prospect, module: FixModule, diagnosis: Diagnosis) -> bool:
    """Whether it treats more than the bottleneck does, for nothing: the same results, no set-up.

    The tree takes the first branch that is high, and a mistake beside it may cost more.
    """
    bottleneck = max(
        (share_of(f) for f in diagnosis.findings if f.check == diagnosis.detail), default=1
    )
    for_nothing = module.KEEPS_RESULTS == "exactly" and not getattr(module, "SETUP_S", 0.0)
    return for_nothing and prospect.tier == 1 and (prospect.share or 0.0) > bottleneck


def _refusal(
    ident: str, module: FixModule, recording: Recording, allow_training_changes: bool
) -> str | None:
    if reason := module.refuses(recording):
        return reason
    if is_by_hand(module, recording) and not advises_training(module):
        return None  # the user decides: it is shown, never run
    if module.KEEPS_RESULTS == "changes training" and not allow_training_changes:
        return "It changes training: needs --allow-training-changes."
    return None


def is_by_hand(module: FixModule, recording: Recording) -> bool:
    """Whether it is offered as code: no trial of its speed can apply it to this program."""
    if getattr(module, "WHEN", "") == "by hand" or advises_training(module):
        return True
    return hasattr(module, "by_hand") and bool(module.by_hand(recording))


def advises_training(module: FixModule) -> bool:
    """Whether it is about what is trained, not about how fast."""
    return getattr(module, "AIM", "speed") == "training"


def _pruned(prospect: Prospect) -> str | None:
    if prospect.share is None or prospect.share >= LEAST_SHARE:
        return None
    return (
        f"It could gain {100 * prospect.share:.1f} % at most: what it treats takes no more of the "
        "step."
    )


def _settings(module: FixModule, recording: Recording) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for settings in module.settings(recording):
        if settings not in found:
            found.append(settings)
    return found


def _with_company(
    tried: Sequence[dict[str, Any]],
    module: FixModule,
    recording: Recording,
    allowed: set[str],
) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Settings to try, the most promising of them with its company first, then alone."""
    found: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = []
    for settings in tried:
        also = {}
        if not found and hasattr(module, "together"):
            also = module.together(settings, recording)
        if also and set(also) <= allowed:
            found.append((settings, also))
        found.append((settings, {}))
    return found
