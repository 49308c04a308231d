"""Which fixes deserve a trial, with which settings, in what order.

A fix cannot remove more than the share of the step that it treats (Amdahl), nor more than what it
touches (`FixSpec.touches`). The one that could gain most comes first, so that a search that is cut
short has tried what matters.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torchdoctor.advice import catalogue
from torchdoctor.facts.bounds import bound_of, share_saved
from torchdoctor.facts.lookup import phase_share
from torchdoctor.words import (
    Candidate,
    CheckSpec,
    Diagnosis,
    FixSet,
    FixSpec,
    Recording,
    Refused,
    Settings,
    Touches,
)

LEAST_SHARE = 0.01  # of the step; a fix that could remove less is not tried
_KNOWN_TO = 0.05  # logarithm of a ceiling: closer ones are equal, and the cheaper trial comes first
_MAIN_SHARE = 0.2  # below, a phase is not what treats a bottleneck, nor a finding what explains it
_MOST_OF_STEP = 0.5  # what works on so much treats a bottleneck that no finding explains


@dataclass(frozen=True, kw_only=True)
class _Prospect:
    """What a fix could gain.

    Tiers: 0 treats the bottleneck, 1 another finding with a share, 2 one without, 3 none.
    """

    tier: int
    share: float | None
    reason: str
    named: str = ""  # `Candidate.named`


def candidates(
    recording: Recording,
    diagnosis: Diagnosis,
    catalogue: Mapping[str, FixSpec],
    *,
    fixes: Collection[str] | None = None,
    skip: Collection[str] = (),
    allow_training_changes: bool = False,
) -> tuple[list[Candidate], list[Refused]]:
    """Return candidates in the order to try, and other fixes with reasons; `fixes`: these alone."""
    allowed = set(catalogue if fixes is None else fixes) - set(skip)
    ranked: list[tuple[tuple[float, ...], Candidate]] = []
    refused: list[Refused] = []
    for ident in catalogue if fixes is None else [x for x in catalogue if x in fixes]:
        fix = catalogue[ident]
        included = [catalogue[other] for other in fix.includes(recording)]
        treats = {*fix.treats, *(check for other in included for check in other.treats)}
        reason = fix.refusal(recording)
        touched = fix.touches(recording) if reason is None else None
        prospect = _prospect(fix, touched, treats, recording, diagnosis)
        offered = fix.offered_as_code(recording)
        # What is shown and never run is for the user to decide.
        runs = fix.training is not None or not offered
        changes = runs and fix.keeps_results == "changes training" and not allow_training_changes
        if reason is None and changes:
            reason = "It changes training: needs --allow-training-changes."
        reason = "left out by --skip" if ident in skip else reason
        if reason is None and fixes is None:
            reason = _too_little(touched, prospect.share)
        called_for = any(ident in f.fixes or f.check in treats for f in diagnosis.findings)
        wants_call = offered or (fixes is None and fix.needs_finding)
        if reason is None and treats and wants_call and not called_for:
            reason = "No finding calls for it."
        if reason is None and offered:
            continue  # the report offers it as code
        tried = [] if reason else fix.settings(recording)
        if not tried:
            lacks = reason or "It has no setting worth trying."
            refused.append(Refused(fixes=FixSet.of(ident), reason=lacks))
            continue
        bound = bound_of(touched, recording.trace)
        speedup = bound.speedup if bound is not None else None
        ceiling = _speedup_without(prospect.share, speedup)
        if fixes is not None and _too_little(touched, prospect.share) is not None:
            speedup, ceiling = None, None  # who names a fix wants it measured, whatever it gains
        tier, *order = _order(fix, prospect, ceiling, len(included), diagnosis)
        for number, tried_set in enumerate(_with_company(ident, tried, fix, recording, allowed)):
            alone = tried_set.only is not None
            candidate = Candidate(
                fixes=tried_set,
                ceiling=ceiling,
                # A fix that goes with it works elsewhere in the step.
                bound=speedup if alone else None,
                reason=prospect.reason,
                named=prospect.named,
            )
            # A second setting waits until the next tier's first ones had their turn.
            ranked.append(((tier + number, *order, len(ranked)), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])], refused


def _too_little(touched: Touches, share: float | None) -> str | None:
    """Return why a fix has too little to work on; None: it may have enough."""
    if touched is not None and not touched:
        return "Nothing that it works on was recorded."
    if share is not None and share < LEAST_SHARE:
        most = f"{100 * share:.1f} % at most"
        return f"It could gain {most}: the cost that it treats takes no more of the step."
    return None


def _order(
    fix: FixSpec, prospect: _Prospect, ceiling: float | None, included: int, diagnosis: Diagnosis
) -> tuple[float, ...]:
    """Return what orders fixes, the first is least: tier, gain, cost, fixes included, treated."""
    gain = -round(math.log(ceiling or 1.0) / _KNOWN_TO)
    listed = (*fix.treats, diagnosis.detail).index(diagnosis.detail)
    return prospect.tier, gain, fix.setup_s, -included, listed


def _with_company(
    ident: str, tried: list[Settings], fix: FixSpec, recording: Recording, allowed: set[str]
) -> Iterator[FixSet]:
    """Yield sets to try; the most promising settings come first with their company, then alone."""
    also = fix.together(tried[0], recording)
    if also and set(also) <= allowed:
        yield FixSet({ident: tried[0], **also})
    for settings in tried:
        yield FixSet.of(ident, settings)


def _prospect(
    fix: FixSpec,
    touched: Touches,
    treats: Collection[str],
    recording: Recording,
    diagnosis: Diagnosis,
) -> _Prospect:
    """Return what a fix could gain, by what it treats and what it touches."""
    treated = [f for f in diagnosis.findings if f.check in treats or fix.ident in f.fixes]
    known = [(x.share_of_step, x.check) for x in treated if x.share_of_step is not None]
    share: float | None = None
    if known:
        # Findings overlap (waiting for data, and why): the largest, not the sum.
        share, ident = max(known, key=lambda pair: pair[0])
        check, tier = catalogue.checks().get(ident), 1
        prefix = check.share_prefix if check else ""
        reason = f"treats {ident}, {prefix}{100 * share:.0f} % of the step"
    elif treated:
        tier, reason = 2, f"treats {', '.join(f.check for f in treated)}"
    else:
        tier, reason = 3, "no finding points to it, but it may help"
        shares = [_most_share(check, recording) for check in map(catalogue.checks().get, treats)]
        share = None if None in shares else max((x for x in shares if x is not None), default=None)
    if any(f.check == diagnosis.detail for f in treated):
        tier = 0
        # Of a setting only the branch is known; what treats the branch itself may end all of it.
        whole = any(each and each.question for each in map(catalogue.checks().get, treats))
        if share is None or (whole and not recording.has_gpu):
            branch = getattr(recording.shares, diagnosis.bottleneck, None)
            share = max((x for x in (share, branch) if x is not None), default=None)
    most = share_saved(touched) if touched is not None else None
    if most is not None and (share is None or share > most):
        share = most
        tier = tier if most >= _MAIN_SHARE else max(tier, 1)
    # Beside the tree's first yes a mistake, whose end costs no result and no set-up, may cost more.
    named_shares = [
        f.share_of_step or 0.0 for f in diagnosis.findings if f.check == diagnosis.detail
    ]
    for_nothing = tier == 1 and fix.risk == 0 and not fix.setup_s
    if for_nothing and (share or 0.0) > max([_MAIN_SHARE, *named_shares]):
        tier = 0
    setting = any(f.severity == "high" and f.share_of_step is None for f in treated)
    causes = (f.share_of_step or 1.0 for f in diagnosis.findings if f.check == diagnosis.detail)
    works_on_most = (most or 0.0) >= _MOST_OF_STEP and max(causes, default=0.0) < _MAIN_SHARE
    kind = "setting" if setting else "cost" if works_on_most or not tier else ""
    return _Prospect(tier=tier, share=share, reason=reason, named=kind)


def _most_share(check: CheckSpec | None, recording: Recording) -> float | None:
    share = phase_share(recording, *check.phases) if check and check.phases else None
    field = check.share_field if check and share is None else None
    return getattr(recording.shares, field) if field else share


def _speedup_without(share: float | None, most: float | None) -> float | None:
    """Return the speed-up where this share of the step is gone, and no more than the bound."""
    by_share = 1.0 / (1.0 - share) if share is not None and share < 1.0 else None
    return min((x for x in (by_share, most) if x is not None), default=None)
