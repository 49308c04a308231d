"""Which fixes deserve a trial, with which settings, in what order.

A fix cannot remove more than the share of the step that it treats (Amdahl). The one that could
gain most comes first, so that a search that is cut short has tried what matters.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torchdoctor.advice import catalogue
from torchdoctor.facts.loading import given_back_share, least_step_s
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
)

LEAST_SHARE = 0.01  # of the step; a fix that could remove less is not tried
_KNOWN_TO = 0.05  # logarithm of a ceiling: closer ones are equal, and the cheaper trial comes first
_MOST_SHARE = 0.99  # keeps a ceiling finite
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
    bound: float | None = None  # share of the step that it works on: it cannot remove more
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
        prospect = _prospect(fix, treats, recording, diagnosis)
        offered, reason = fix.offered_as_code(recording), fix.refusal(recording)
        # What is shown and never run is for the user to decide.
        runs = fix.training is not None or not offered
        changes = runs and fix.keeps_results == "changes training" and not allow_training_changes
        if reason is None and changes:
            reason = "It changes training: needs --allow-training-changes."
        reason = "left out by --skip" if ident in skip else reason
        share = prospect.share
        if reason is None and fixes is None and share is not None and share < LEAST_SHARE:
            most = f"{100 * share:.1f} % at most"
            reason = f"It could gain {most}: the cost that it treats takes no more of the step."
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
        ceiling = _ceiling(prospect, fix, recording)
        tier, *order = _order(fix, prospect, ceiling, len(included), diagnosis)
        for number, tried_set in enumerate(_with_company(ident, tried, fix, recording, allowed)):
            alone = tried_set.only is not None
            candidate = Candidate(
                fixes=tried_set,
                ceiling=ceiling,
                # A fix that goes with it works elsewhere in the step.
                bound=_bound(prospect, fix, tried_set[ident], recording) if alone else None,
                reason=prospect.reason,
                named=prospect.named,
            )
            # A second setting waits until the next tier's first ones had their turn.
            ranked.append(((tier + number, *order, len(ranked)), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])], refused


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
    fix: FixSpec, treats: Collection[str], recording: Recording, diagnosis: Diagnosis
) -> _Prospect:
    """Return what a fix could gain, by what it treats and the phases that it works on."""
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
    most = _works_on(fix, recording)
    if most is not None and (share is None or share > most):
        share = most
        tier = tier if most >= _MAIN_SHARE else max(tier, 1)
    # Beside the tree's first yes a mistake, whose end costs no result and no set-up, may cost more.
    named = [f.share_of_step or 0.0 for f in diagnosis.findings if f.check == diagnosis.detail]
    for_nothing = tier == 1 and fix.risk == 0 and not fix.setup_s
    if for_nothing and (share or 0.0) > max([_MAIN_SHARE, *named]):
        tier = 0
    setting = any(f.severity == "high" and f.share_of_step is None for f in treated)
    causes = (f.share_of_step or 1.0 for f in diagnosis.findings if f.check == diagnosis.detail)
    works_on_most = (most or 0.0) >= _MOST_OF_STEP and max(causes, default=0.0) < _MAIN_SHARE
    kind = "setting" if setting else "cost" if works_on_most or not tier else ""
    return _Prospect(tier=tier, share=share, reason=reason, bound=most, named=kind)


def _most_share(check: CheckSpec | None, recording: Recording) -> float | None:
    share = phase_share(recording, *check.phases) if check and check.phases else None
    field = check.share_field if check and share is None else None
    return getattr(recording.shares, field) if field else share


def _works_on(fix: FixSpec, recording: Recording) -> float | None:
    """Return the share of a step that a fix works on; None: it does not tell, or a GPU hides it."""
    steps = recording.steps
    if recording.has_gpu or steps is None or steps.mean_s <= 0:
        return None
    phases_s = sum(getattr(steps, phase) for phase in fix.phases) if fix.phases else None
    known = [x for x in (phases_s, fix.works_on_s(recording)) if x is not None]
    return min(known) / steps.mean_s if known else None


def _ceiling(prospect: _Prospect, fix: FixSpec, recording: Recording) -> float | None:
    """Return `Candidate.ceiling`; what is prepared elsewhere still needs the CPUs."""
    share, steps = prospect.share, recording.steps
    least_s = least_step_s(recording) if fix.prepares_elsewhere else None
    if share is not None and steps is not None and least_s is not None and steps.mean_s > 0:
        share = min(share, max(1.0 - least_s / steps.mean_s, 0.0))
    return _speedup_without(share)


def _bound(
    prospect: _Prospect, fix: FixSpec, settings: Settings, recording: Recording
) -> float | None:
    """Return `Candidate.bound`; workers that a loader needs less leave CPUs to training."""
    left = given_back_share(recording, settings) if "data_wait_s" in fix.phases else 0.0
    return None if prospect.bound is None else _speedup_without(prospect.bound + left)


def _speedup_without(share: float | None) -> float | None:
    """Return the speed-up by Amdahl where this share of the step is gone."""
    return None if share is None else 1.0 / (1.0 - min(share, _MOST_SHARE))
