"""Which fixes deserve a trial, with which settings, in what order.

A fix cannot remove more than the share of the step that it treats (Amdahl), nor more than what it
touches (`FixSpec.touches`). The one that could gain most comes first, so that a search that is cut
short has tried what matters.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from torchdoctor.advice import catalogue
from torchdoctor.queries.bounds import bound_of, share_saved
from torchdoctor.queries.lookup import phase_share
from torchdoctor.schema import (
    Candidate,
    CheckSpec,
    Diagnosis,
    Evidence,
    Finding,
    FixSet,
    FixSpec,
    Recording,
    Refused,
    Settings,
    Touches,
    fact,
)

LEAST_SHARE = 0.01  # of the step; a fix that could remove less is not tried
_KNOWN_TO = 0.05  # logarithm of a ceiling: closer ones are equal, and the cheaper trial comes first
_MAIN_SHARE = 0.2  # below, a phase is not what treats a bottleneck, nor a finding what explains it
_SURE_HELP = 0.7  # where what a fix is for was seen, it helps so probably
_MOST_OF_STEP = 0.5  # what works on so much treats a bottleneck that no finding explains


class _Tier(IntEnum):
    """What a fix is for; the first tiers are tried first."""

    BOTTLENECK = 0
    COST = 1  # another finding, with a share of the step
    SETTING = 2  # findings without one
    NOTHING_SEEN = 3  # no finding calls for it


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A fix, and what of the diagnosis speaks for it."""

    fix: FixSpec
    treats: Collection[str]  # checks, by itself or by a fix within it
    treated: Sequence[Finding]  # that call for it
    causes: Sequence[Finding]  # of the check that explains the bottleneck, treated or not
    works_on: float | None  # share of the step that it saves at most, by what it touches

    @property
    def is_cure(self) -> bool:
        """Return whether it treats what explains the bottleneck."""
        return any(finding in self.causes for finding in self.treated)

    @property
    def largest(self) -> Finding | None:
        """Return the largest finding that it treats; None: none has a share.

        Findings overlap (waiting for data, and why), so that their sum says nothing.
        """
        costs = [finding for finding in self.treated if finding.share_of_step is not None]
        return max(costs, key=lambda finding: finding.share_of_step or 0.0, default=None)

    def largest_cause(self, unknown: float) -> float:
        """Return the share of the largest cause, where that is not known `unknown`."""
        shares = [cause.share_of_step or unknown for cause in self.causes]
        return max(shares, default=0.0)


@dataclass(frozen=True, kw_only=True)
class _Prospect:
    """What a fix could gain."""

    tier: _Tier
    share: float | None
    choice: Evidence
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
    wanted = [ident for ident in catalogue if fixes is None or ident in fixes]
    allowed = set(catalogue if fixes is None else fixes) - set(skip)
    ranked: list[tuple[tuple[float, ...], Candidate]] = []
    refused: list[Refused] = []
    for ident in wanted:
        fix = catalogue[ident]
        why = fact("skipped") if ident in skip else fix.refusal(recording)
        if why is None and not allow_training_changes:
            why = _needs_permission(fix, recording)
        if why is not None:
            refused.append(Refused(fixes=FixSet.of(ident), why=why))
            continue

        touched = fix.touches(recording)
        included = [catalogue[other] for other in fix.includes(recording)]
        treats = _checks_treated(fix, included)
        prospect = _prospect(fix, touched, treats, recording, diagnosis)
        too_little = _too_little(touched, prospect.share)
        # Who names a fix wants it measured, whatever it gains and whether or not it is called for.
        is_asked_for = fixes is not None
        offered_as_code = fix.offered_as_code(recording)
        waits_for_call = offered_as_code or (fix.needs_finding and not is_asked_for)
        settings: list[Settings] = []
        if too_little is not None and not is_asked_for:
            why = too_little
        elif waits_for_call and _is_uncalled(fix, treats, diagnosis):
            why = fact("no-finding-calls")
        elif offered_as_code:
            continue  # neither tried nor refused: the report offers it as code
        else:
            settings = fix.settings(recording)
        if not settings:
            why = why or fact("no-setting-worth-trying")
            refused.append(Refused(fixes=FixSet.of(ident), why=why))
            continue

        bound = bound_of(touched, recording.trace)
        most = bound.speedup if bound is not None else None
        ceiling = _speedup_without(prospect.share, most)
        if is_asked_for and too_little is not None:
            most = None
            ceiling = None
        tier, *order = _order(fix, prospect, ceiling, len(included), diagnosis)
        fix_sets = _with_company(ident, settings, fix, recording, allowed)
        for number, candidate in enumerate(_candidates_of(fix_sets, prospect, ceiling, most)):
            # A second setting waits until the next tier's first ones had their turn.
            rank = (tier + number, *order, len(ranked))
            ranked.append((rank, candidate))
    ranked.sort(key=lambda pair: pair[0])
    return [candidate for _, candidate in ranked], refused


def _candidates_of(
    fix_sets: Iterable[FixSet], prospect: _Prospect, ceiling: float | None, most: float | None
) -> Iterator[Candidate]:
    """Yield a candidate for each set; `most`: the bound of the speed-up by the fix alone."""
    for fix_set in fix_sets:
        # A fix that goes with it works elsewhere in the step.
        is_alone = fix_set.only is not None
        yield Candidate(
            fixes=fix_set,
            ceiling=ceiling,
            bound=most if is_alone else None,
            choice=prospect.choice,
            named=prospect.named,
        )


def _checks_treated(fix: FixSpec, included: Sequence[FixSpec]) -> set[str]:
    """Return the ids of the checks that a fix treats, by itself or by a fix within it."""
    treats = set(fix.treats)
    for other in included:
        treats.update(other.treats)
    return treats


def _needs_permission(fix: FixSpec, recording: Recording) -> Evidence | None:
    """Return why the user has to allow a fix, as a trial of it changes training; None: no need."""
    if fix.keeps_results != "changes training":
        return None
    # What is shown and never run is for the user to decide.
    if fix.training is None and fix.offered_as_code(recording):
        return None
    if recording.infers:
        return fact("for-programs-that-train")
    return fact("changes-training")


def _is_uncalled(fix: FixSpec, treats: Collection[str], diagnosis: Diagnosis) -> bool:
    """Return True if a fix treats checks, and no finding calls for it."""
    return bool(treats) and not any(
        _calls_for(finding, fix, treats) for finding in diagnosis.findings
    )


def _calls_for(finding: Finding, fix: FixSpec, treats: Collection[str]) -> bool:
    """Return True if a finding names a fix, or is of a check that the fix treats."""
    return fix.ident in finding.fixes or finding.check in treats


def _too_little(touched: Touches, share: float | None) -> Evidence | None:
    """Return why a fix has too little to work on; None: it may have enough."""
    if touched is not None and not touched:
        return fact("nothing-recorded-to-work-on")
    if share is not None and share < LEAST_SHARE:
        return fact("too-small-a-cost", share=share)
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
    case = _Case(
        fix=fix,
        treats=treats,
        treated=[finding for finding in diagnosis.findings if _calls_for(finding, fix, treats)],
        causes=[finding for finding in diagnosis.findings if finding.check == diagnosis.detail],
        works_on=None if touched is None else share_saved(touched),
    )
    treated_share = _treated_share(case, recording, diagnosis)
    shares = [share for share in (treated_share, case.works_on) if share is not None]
    share = min(shares, default=None)
    tier = _tier(case, treated_share, share)
    return _Prospect(
        tier=tier,
        share=share,
        choice=_choice(case),
        named=_named_for(case, tier, share),
    )


def _treated_share(case: _Case, recording: Recording, diagnosis: Diagnosis) -> float | None:
    """Return the share of the step that a fix could end by what it treats; None: not known."""
    if not case.treated:
        return _largest_phase(case.treats, recording)
    share = None if case.largest is None else case.largest.share_of_step
    return _share_of_cause(share, case.treats, recording, diagnosis) if case.is_cure else share


def _largest_phase(treats: Collection[str], recording: Recording) -> float | None:
    """Return the largest share that a check of these is about; None: one of them is not known."""
    shares = [_most_share(catalogue.checks().get(ident), recording) for ident in treats]
    known_shares = [share for share in shares if share is not None]
    return max(known_shares, default=None) if len(known_shares) == len(shares) else None


def _tier(case: _Case, treated_share: float | None, share: float | None) -> _Tier:
    """Return what a fix is for; `share`: what it could end, by what it treats and works on."""
    if case.is_cure:
        is_small_part = case.works_on is not None and case.works_on < _MAIN_SHARE
        ends_less = is_small_part and share != treated_share
        return _Tier.COST if ends_less else _Tier.BOTTLENECK
    if case.largest is None:
        return _Tier.SETTING if case.treated else _Tier.NOTHING_SEEN
    # Beside the tree's first yes a mistake, whose end costs no result and no set-up, may cost more.
    costs_more = (share or 0.0) > max(_MAIN_SHARE, case.largest_cause(unknown=0.0))
    return _Tier.BOTTLENECK if costs_more and _costs_nothing(case.fix) else _Tier.COST


def _choice(case: _Case) -> Evidence:
    """Return why a fix is tried."""
    if not case.treated:
        return fact("may-help")
    if case.largest is None:
        return fact("treats-findings", checks=[finding.check for finding in case.treated])
    check = catalogue.checks().get(case.largest.check)
    return fact(
        "treats-cost",
        check=case.largest.check,
        share=case.largest.share_of_step or 0.0,
        share_of=check.share_prefix if check else "",
    )


def _share_of_cause(
    share: float | None, treats: Collection[str], recording: Recording, diagnosis: Diagnosis
) -> float | None:
    """Return the share that a fix of the bottleneck's cause may take away."""
    # Of a setting only the branch is known; what treats the branch itself may end all of it.
    checks = [catalogue.checks().get(ident) for ident in treats]
    treats_branch = any(check is not None and check.question for check in checks)
    if share is not None and not (treats_branch and not recording.has_gpu):
        return share
    branch = getattr(recording.shares, diagnosis.bottleneck, None)
    return max((part for part in (share, branch) if part is not None), default=None)


def _named_for(case: _Case, tier: _Tier, share: float | None) -> str:
    """Return why a fix is named (`Candidate.named`): measured, a setting, a cost, or nothing."""
    if _is_cure_of_large_part(case, share):
        return "measured"
    if any(
        finding.severity == "high" and finding.share_of_step is None for finding in case.treated
    ):
        return "setting"
    if tier is _Tier.BOTTLENECK:
        return "cost"
    is_unexplained = case.largest_cause(unknown=1.0) < _MAIN_SHARE
    works_on_most = (case.works_on or 0.0) >= _MOST_OF_STEP
    return "cost" if is_unexplained and works_on_most else ""


def _is_cure_of_large_part(case: _Case, share: float | None) -> bool:
    """Return True if a fix is made for a cause that was measured as a good part of the step.

    It is tried whatever the bottleneck is. What treats a whole branch is no such cure, but where it
    is for a shape of code that was seen: nothing to set up, and the same results.
    """
    fix = case.fix
    checks = [catalogue.checks().get(ident) for ident in fix.treats]
    if not checks or fix.risk > 1 or (share or 0.0) < _MAIN_SHARE:
        return False
    shares = [
        finding.share_of_step or 0.0 for finding in case.treated if finding.check in fix.treats
    ]
    if max(shares, default=0.0) < _MAIN_SHARE:
        return False
    is_specific = all(check is not None and check.question is None for check in checks)
    return is_specific or _is_for_seen_shape(fix)


def _is_for_seen_shape(fix: FixSpec) -> bool:
    return fix.p_helps >= _SURE_HELP and _costs_nothing(fix)


def _costs_nothing(fix: FixSpec) -> bool:
    """Return True if a fix changes no result, and a trial of it needs no set-up."""
    return fix.risk == 0 and not fix.setup_s


def _most_share(check: CheckSpec | None, recording: Recording) -> float | None:
    share = phase_share(recording, *check.phases) if check and check.phases else None
    field = check.share_field if check and share is None else None
    return getattr(recording.shares, field) if field else share


def _speedup_without(share: float | None, most: float | None) -> float | None:
    """Return the speed-up where this share of the step is gone, and no more than the bound."""
    by_share = 1.0 / (1.0 - share) if share is not None and share < 1.0 else None
    speedups = [speedup for speedup in (by_share, most) if speedup is not None]
    return min(speedups, default=None)
