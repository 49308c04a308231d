"""Which fixes deserve a trial, with which settings, in what order.

A fix cannot remove more than the share of the step that it treats (Amdahl). The one that could
gain most comes first, so that a search that is cut short has tried what matters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torchdoctor.errors import UsageError
from torchdoctor.records import (
    Candidate,
    Diagnosis,
    Finding,
    Recording,
    Refused,
    StepStatistics,
)
from torchdoctor.records.beside_training import least_step_s
from torchdoctor.records.lookup import SHARE_IS

LEAST_SHARE = 0.01  # of the step; a fix that could remove less is not tried
_MOST_SHARE = 0.99  # keeps a ceiling finite
_KNOWN_TO = 0.05  # logarithm of a ceiling: closer ones are equal, and the cheaper trial comes first
_MAIN_SHARE = 0.2  # a phase below this is not what treats a bottleneck

# Checks whose share cannot exceed a phase of the step, by fields of StepStatistics.
_PHASES = {
    **dict.fromkeys(
        ("data-wait", "loader-cpu-bound", "loader-io-bound", "worker-count", "slow-sample"),
        ("data_wait_s", "loader_start_s"),
    ),
    "slow-storage": ("data_wait_s", "loader_start_s", "before_forward_s"),
    **dict.fromkeys(("batch-transfer", "workers-respawned"), ("data_wait_s", "loader_start_s")),
    "single-tensor-optimizer": ("optimizer_s",),
    "optimizer-share": ("optimizer_s",),
    "gc-pauses": ("gc_s",),
}
# Checks that ask about one share of the trace.
_SHARES = {
    "memcpy-share": "memcpy",
    "pageable-copies": "memcpy",
    "copy-without-pinning": "memcpy",
    "communication-share": "communication",
}


class FixModule(Protocol):
    """The part of a fix file that is read here.

    Optional: `SETUP_S` (one-time cost); `PHASES` (fields of StepStatistics: all that it works on);
    `works_on_s(recording)`: the same in seconds of a step, where phases are too coarse, or None;
    `includes(recording)`: fixes that it applies as well. It treats what they treat, and goes before
    them: it can only give more. `together(settings, recording)`: `Candidate.also`.
    `ladder(recording)`: fields of `trials.ladder.Ladder`: a setting of which more values may be
    tried where the best of `settings` gains.
    `next_settings(tried, recording)`: its setting is searched (`trials.sizes`).
    `FILLS_IN_FIRST_EPOCH`: it gains from the second epoch on; trials warm up for one.
    `NEEDS_FINDING`: it is tried where a finding calls for it, or when it is named.
    `REORDERS`: it hands out the same batches in another order.
    `PREPARES_ELSEWHERE`: workers prepare the samples, each with a copy of the dataset that the
    untouched program does not have there. It gains no more than the CPUs leave to them.
    `BY_SECOND_LOADER`: in a running program it is switched by a second loader with its arguments.
    `UNTRIED_NEEDS`: checks, of which one must have found something for the fix to be offered where
    no run has tried it.
    `doubt(recording)`: a sentence on what may go wrong where it is used, or None. The report says
    it wherever it shows the fix, and shows it only where it was measured to train the same.
    `note(recording)`: what the report says of it whatever came out, or None.
    `WHEN = "by hand"`, or `by_hand(recording)`: it is offered as code and never run.
    `AIM = "training"`: advice that is not about speed; `COSTS`: what it may cost, in a sentence;
    `TRIAL`: how `trials.training_trials` tries it ("range test", "loss"); `untriable(recording)`:
    why no short run shows anything of it there, or None. For traces: `suits(trace)`: whether it
    makes sense there; `CAPABILITY`: least compute capability of a GPU; or `advice(recording)`: the
    code in place of the page's, None where the GPU that was recorded cannot do it.
    """

    TREATS: tuple[str, ...]
    KEEPS_RESULTS: str

    def refuses(self, recording: Recording) -> str | None:
        """Why it cannot apply, or None."""

    def settings(self, recording: Recording) -> list[dict[str, Any]]:
        """Values worth trying, most promising first."""


@dataclass(frozen=True, kw_only=True)
class _Prospect:
    """What a fix could gain.

    Tiers: 0 treats the bottleneck, 1 another finding with a share, 2 one without, 3 none.
    """

    tier: int
    share: float | None
    reason: str
    bound: float | None = None  # share of the step that it works on: it cannot remove more


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
        prospect = _capped(_prospect(ident, treats, recording, diagnosis), module, recording)
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
            ceiling=_speedup_without(_removable(prospect, module, recording)),
            bound=_speedup_without(prospect.bound),
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
            bound = None if also else one.bound
            setting = replace(one, settings=settings, also=also, bound=bound)
            ranked.append(((*rank, len(ranked)), setting))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])], refused


def _rank(tier: int, one: Candidate, cost_s: float, more: int, listed: int) -> tuple[float, ...]:
    """Least first: tier, possible gain, cost of its trial, who does more, who is made for it.

    A second setting waits until the next tier's first ones had their turn.
    """
    return (tier, -round(math.log(one.ceiling or 1.0) / _KNOWN_TO), cost_s, -more, listed)


def _is_larger_mistake(prospect: _Prospect, module: FixModule, diagnosis: Diagnosis) -> bool:
    """Whether it treats more than the bottleneck does, for nothing: the same results, no set-up.

    The tree takes the first branch that is high, and a mistake beside it may cost more.
    """
    bottleneck = max(
        (_share(f) for f in diagnosis.findings if f.check == diagnosis.detail), default=1
    )
    for_nothing = module.KEEPS_RESULTS == "exactly" and not getattr(module, "SETUP_S", 0.0)
    return for_nothing and prospect.tier == 1 and (prospect.share or 0.0) > bottleneck


def _speedup_without(share: float | None) -> float | None:
    """By Amdahl: the speed-up where this share of the step is gone."""
    return None if share is None else 1.0 / (1.0 - min(share, _MOST_SHARE))


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


def _pruned(prospect: _Prospect) -> str | None:
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


def _prospect(
    ident: str, treats: Collection[str], recording: Recording, diagnosis: Diagnosis
) -> _Prospect:
    found = [f for f in diagnosis.findings if f.check in treats or ident in f.fixes]
    known = [f for f in found if f.share_of_step is not None]
    if known:
        # Findings overlap (waiting for data, and why): the largest, not the sum.
        largest = max(known, key=_share)
        treats_bottleneck = diagnosis.detail in {f.check for f in found}
        return _Prospect(
            tier=0 if treats_bottleneck else 1,
            share=_share(largest),
            reason=f"treats {largest.check}, {SHARE_IS.get(largest.check, '')}"
            f"{100 * _share(largest):.0f} % of the step",
        )
    if found:
        checks = ", ".join(f.check for f in found)
        tier = 0 if diagnosis.detail in {f.check for f in found} else 2
        return _Prospect(tier=tier, share=None, reason=f"treats {checks}")
    bound = _bound(sorted(treats), recording)
    return _Prospect(tier=3, share=bound, reason="no finding points to it, but it may help")


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


def _capped(prospect: _Prospect, module: FixModule, recording: Recording) -> _Prospect:
    """A fix that works within some phases cannot gain more than they take.

    On a GPU the host's phases say little of the device's.
    """
    steps = recording.steps
    if recording.has_gpu or steps is None or steps.mean_s <= 0:
        return prospect
    most_s = _works_on_s(module, recording, steps)
    if most_s is None:
        return prospect
    most = most_s / steps.mean_s
    prospect = replace(prospect, bound=most)
    if prospect.share is not None and prospect.share <= most:
        return prospect
    tier = prospect.tier if most >= _MAIN_SHARE else max(prospect.tier, 1)
    return replace(prospect, share=most, tier=tier)


def _removable(prospect: _Prospect, module: FixModule, recording: Recording) -> float | None:
    """Share of the step that is gone at most; what is prepared elsewhere still needs the CPUs."""
    elsewhere = getattr(module, "PREPARES_ELSEWHERE", False)
    least_s = least_step_s(recording) if elsewhere else None
    if least_s is None or prospect.share is None or recording.steps is None:
        return prospect.share
    left = least_s / recording.steps.mean_s if recording.steps.mean_s > 0 else 0.0
    return min(prospect.share, max(1.0 - left, 0.0))


def _works_on_s(module: FixModule, recording: Recording, steps: StepStatistics) -> float | None:
    """Seconds of a step that a fix works on; None: it says nothing of it."""
    phases: tuple[str, ...] = getattr(module, "PHASES", ())
    found = [sum(getattr(steps, phase) for phase in phases)] if phases else []
    if hasattr(module, "works_on_s"):
        own = module.works_on_s(recording)
        found += [] if own is None else [own]
    return min(found, default=None)


def _share(finding: Finding) -> float:
    return finding.share_of_step or 0.0


def _bound(checks: Iterable[str], recording: Recording) -> float | None:
    """Most that a fix of these checks could remove by the phases measured; None: not known."""
    bounds: list[float] = []
    steps = recording.steps
    for check in checks:
        if check in _PHASES and steps is not None and steps.mean_s > 0:
            phases: tuple[str, ...] = _PHASES[check]
            bounds.append(sum(getattr(steps, phase) for phase in phases) / steps.mean_s)
        elif check in _SHARES and getattr(recording.shares, _SHARES[check]) is not None:
            bounds.append(getattr(recording.shares, _SHARES[check]))
        else:
            return None
    return max(bounds, default=None)
