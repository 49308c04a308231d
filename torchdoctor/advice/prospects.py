"""What a fix could gain, by the share of the step that it works on (Amdahl)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torchdoctor.advice import catalogue
from torchdoctor.facts.beside_training import given_back_share, least_step_s
from torchdoctor.words import Diagnosis, Finding, Recording, StepStatistics

_MOST_SHARE = 0.99  # keeps a ceiling finite
_MAIN_SHARE = 0.2  # a phase below this is not what treats a bottleneck


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
class Prospect:
    """What a fix could gain.

    Tiers: 0 treats the bottleneck, 1 another finding with a share, 2 one without, 3 none.
    """

    tier: int
    share: float | None
    reason: str
    bound: float | None = None  # share of the step that it works on: it cannot remove more


def prospect_of(
    ident: str,
    module: FixModule,
    treats: Collection[str],
    recording: Recording,
    diagnosis: Diagnosis,
) -> Prospect:
    """What a fix could gain of this program, by what it treats and the phases that it works on."""
    return _capped(_by_findings(ident, treats, recording, diagnosis), module, recording)


def ceiling(prospect: Prospect, module: FixModule, recording: Recording) -> float | None:
    """`Candidate.ceiling`; what is prepared elsewhere still needs the CPUs."""
    elsewhere = getattr(module, "PREPARES_ELSEWHERE", False)
    least_s = least_step_s(recording) if elsewhere else None
    if least_s is None or prospect.share is None or recording.steps is None:
        return _speedup_without(prospect.share)
    left = least_s / recording.steps.mean_s if recording.steps.mean_s > 0 else 0.0
    return _speedup_without(min(prospect.share, max(1.0 - left, 0.0)))


def bound(
    prospect: Prospect, module: FixModule, settings: dict[str, Any], recording: Recording
) -> float | None:
    """`Candidate.bound`; a loader that needs its workers less also leaves CPUs to the training."""
    if prospect.bound is None:
        return None
    by_loader = "data_wait_s" in getattr(module, "PHASES", ())
    left = given_back_share(recording, settings) if by_loader else 0.0
    return _speedup_without(prospect.bound + left)


def share_of(finding: Finding) -> float:
    """Of the step; 0.0 of a finding without one."""
    return finding.share_of_step or 0.0


def _by_findings(
    ident: str, treats: Collection[str], recording: Recording, diagnosis: Diagnosis
) -> Prospect:
    found = [f for f in diagnosis.findings if f.check in treats or ident in f.fixes]
    known = [f for f in found if f.share_of_step is not None]
    if known:
        # Findings overlap (waiting for data, and why): the largest, not the sum.
        largest = max(known, key=share_of)
        check = catalogue.checks().get(largest.check)
        treats_bottleneck = diagnosis.detail in {f.check for f in found}
        return Prospect(
            tier=0 if treats_bottleneck else 1,
            share=share_of(largest),
            reason=f"treats {largest.check}, {check.share_prefix if check else ''}"
            f"{100 * share_of(largest):.0f} % of the step",
        )
    if found:
        checks = ", ".join(f.check for f in found)
        tier = 0 if diagnosis.detail in {f.check for f in found} else 2
        return Prospect(tier=tier, share=None, reason=f"treats {checks}")
    most = _most_share(sorted(treats), recording)
    return Prospect(tier=3, share=most, reason="no finding points to it, but it may help")


def _capped(prospect: Prospect, module: FixModule, recording: Recording) -> Prospect:
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


def _speedup_without(share: float | None) -> float | None:
    """By Amdahl: the speed-up where this share of the step is gone."""
    return None if share is None else 1.0 / (1.0 - min(share, _MOST_SHARE))


def _works_on_s(module: FixModule, recording: Recording, steps: StepStatistics) -> float | None:
    """Seconds of a step that a fix works on; None: it says nothing of it."""
    phases: tuple[str, ...] = getattr(module, "PHASES", ())
    found = [sum(getattr(steps, phase) for phase in phases)] if phases else []
    if hasattr(module, "works_on_s"):
        own = module.works_on_s(recording)
        found += [] if own is None else [own]
    return min(found, default=None)


def _most_share(checks: Iterable[str], recording: Recording) -> float | None:
    """Most that a fix of these checks could remove by the phases measured; None: not known."""
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
