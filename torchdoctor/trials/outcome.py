"""Launches that ran become rows of the report: speed-up, verdict, training, memory, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from torchdoctor.pairs.pair_times import seconds_per_sample
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm, label
from torchdoctor.trials.bounds import beyond_belief, bound_of, doubt
from torchdoctor.trials.evidence import Evidence, Measured, exceeds
from torchdoctor.trials.schedule import (
    CONFIRM_PAIRS,
    FEWEST_PAIRS,
    NO_TIME,
    WORTH,
    hopeless,
    p_of_looks,
)
from torchdoctor.words import (
    Interval,
    LaunchTiming,
    PatchTrial,
    Recommendation,
    RecommendedFix,
    Trial,
    TriedCeiling,
)

SAME_TRAINING = ("identical", "within-rounding", "within-seed-noise")


@dataclass(frozen=True, kw_only=True)
class TrialResults:
    """All that the trials found; valid at whatever moment they ended.

    Attributes:
        trials: one for each candidate, in the order given, then one for each stack measured.
        noise_floor: the A/A candidate's interval; None below two rounds.
        recommendation: its fixes without edits.
        launches_s: deciding time of each baseline launch, per sample (per step if `per_step`).
        measured: "side by side" or "in turns", None where no pairs were launched.
        decided_by: "mean" or "median" of the steps.
        launches: how many were started and ended.
        ceilings: what taking costs away gave at most; no candidates.
    """

    trials: list[Trial]
    noise_floor: Interval | None
    recommendation: Recommendation
    baselines: list[LaunchTiming] = field(default_factory=list)
    launches_s: list[float] = field(default_factory=list)
    measured: str | None = None
    decided_by: str = "median"
    per_step: bool = False
    doubts: list[str] = field(default_factory=list)
    interrupted: bool = False
    launches: int = 0
    patch: PatchTrial | None = None
    ceilings: list[TriedCeiling] = field(default_factory=list)


def training_is_the_same(one: Measured, allow_training_changes: bool) -> bool:
    """Whether what it does to training allows to recommend it."""
    numerics, risk = one.numerics, one.arm.facts.risk
    if numerics.harmful:
        return False
    if risk == 3:
        return allow_training_changes
    if numerics.classification == "not-comparable":
        # Nothing speaks against it, and its own promise is a strong one.
        return risk < 2 and not numerics.needs_seeds and not one.arm.facts.doubted
    return numerics.classification in SAME_TRAINING


class Judgement:
    """Verdicts on all arms by what is known now.

    Args:
        evidence: the log.
        arms: candidates and stacks.
        allow_training_changes: fixes of risk 3 may be recommended.
    """

    def __init__(
        self, evidence: Evidence, arms: Sequence[Arm], allow_training_changes: bool
    ) -> None:
        self.allow_training_changes = allow_training_changes
        self.noise_floor = compare.interval(evidence.noise())
        self.measured = [evidence.measured(arm) for arm in arms]
        confirmed = [one for one in self.measured if one.phase == "confirm" and one.arm.alive]
        self.confirmed = len(confirmed)
        adjusted = compare.holm([p_of_looks(one.differences, one.looked) for one in confirmed])
        corrected = {one.arm.key: p for one, p in zip(confirmed, adjusted, strict=True)}
        delta = compare.delta(self.noise_floor)
        self.verdicts = {
            one.arm.key: one.verdict(delta, corrected.get(one.arm.key))
            if one.arm.alive
            else ("refused" if one.arm.refused else "failed")
            for one in self.measured
        }
        self.not_believed = [
            one for one in self.measured if beyond_belief(one, self.verdicts[one.arm.key])
        ]
        self.verdicts.update({one.arm.key: "unclear" for one in self.not_believed})

    def of(self, arm: Arm) -> Measured:
        """What was measured of one arm."""
        return next(one for one in self.measured if one.arm is arm)

    def faster(self) -> list[Measured]:
        """Faster on fresh pairs by an amount worth an edit, most gain first."""
        least, noise = math.log1p(WORTH), self.noise_floor
        if noise is not None and compare.excludes_one(noise):
            least = max(least, abs(math.log(noise.estimate)))
        found = [
            one
            for one in self.measured
            if self.verdicts[one.arm.key] == "faster"
            and one.phase in ("confirm", "stack")
            and one.gain >= least
        ]
        return sorted(found, key=lambda one: one.gain, reverse=True)

    def recommendable(self) -> list[Measured]:
        """Those of the faster ones that train the same, and that no other set has replaced."""
        faster = [one for one in self.faster() if not one.arm.superseded]
        return [one for one in faster if training_is_the_same(one, self.allow_training_changes)]

    def at_most(self, one: Measured) -> float | None:
        """The most that its fixes can gain by what they work on, where it came out above that."""
        bound = bound_of(one, self.measured)
        return bound if exceeds(one.gain, bound) else None


def trial(
    one: Measured, verdict: str, baseline: Arm, why: str | None, at_most: float | None
) -> Trial:
    """One row of the report.

    Args:
        one: what was measured.
        verdict: as `verdicts` says.
        baseline: the untouched program.
        why: what keeps it from being recommended or explains the verdict.
        at_most: `Trial.at_most`.
    """
    arm, timings, untouched = one.arm, one.arm.timings, baseline.timings
    speedup = compare.estimate(one.differences, one.looked)
    memory = _median(t.peak_memory_bytes for t in timings)
    memory_before = _median(
        t.peak_memory_bytes for t in untouched if any(t.gpu_memory == o.gpu_memory for o in timings)
    )
    setup_s = _setup(timings, untouched)
    if arm.candidate is not None and not arm.candidate.also:
        fix, settings = arm.candidate.fix, dict(arm.candidate.settings)
    else:
        fix = " + ".join(name for name, _ in arm.fixes)
        settings = dict(arm.fixes)
    return Trial(
        fix=fix,
        settings=settings,
        speedup=speedup if arm.alive else None,
        at_most=at_most if arm.alive else None,
        verdict=verdict,
        numerics=one.numerics.classification,
        numerics_reason=one.numerics.reason,
        risk=arm.facts.risk,
        peak_memory_bytes=None if memory is None else round(memory),
        memory_change_bytes=None
        if memory is None or memory_before is None
        else round(memory - memory_before),
        cost_s=arm.cost_s,
        reason=arm.refused or arm.failed or why,
        pairs=len(one.differences),
        setup_s=setup_s,
        details=_details(arm),
        break_even_steps=_break_even(one, setup_s, untouched) if verdict == "faster" else None,
        median_speedup=compare.estimate(one.other, one.other_looked) if arm.alive else None,
    )


def reason(
    one: Measured, verdict: str, confirmed: int, ended: str | None, others_tried: bool = True
) -> str | None:
    """A sentence that a verdict needs: what was not tried, not confirmed, or stands against it.

    Args:
        one: what was measured.
        verdict: of it.
        confirmed: how many candidates were confirmed together.
        ended: why the trials ended early (`NO_TIME`, "interrupted"), None: they did not.
        others_tried: whether anything was compared at all.
    """
    pairs = len(one.differences)
    parts = []
    if pairs == 0 and one.arm.timings and one.arm.facts.risk == 3:
        parts.append("not judged: it may change the batch, and batches have no known size")
    elif pairs == 0:
        others = "others came first, and the budget has no room for all (--budget)"
        nobody = "the budget has no room for a pair of launches (--budget)"
        parts.append(f"not tried: {ended or (others if others_tried else nobody)}")
    elif pairs == 1:
        when = "confirmed once only" if one.phase == "confirm" else "screened only: 1 pair"
        parts.append(when)
    elif one.phase == "screen":
        parts.append(f"screened only: {pairs} pairs")
    elif one.phase == "switch":
        parts.append(f"screened only: {pairs} pairs of blocks within one launch")
    elif pairs < FEWEST_PAIRS:
        dropped = "it did not look faster, so others had the time"
        lost = one.arm.alive and hopeless(one.differences, CONFIRM_PAIRS)
        parts.append(f"only {pairs} pairs: {dropped if lost else ended or NO_TIME}")
    alone = one.verdict()
    if one.phase == "confirm" and verdict not in (alone, "same") and alone in ("faster", "slower"):
        parts.append(f"{alone} alone, not after Holm's correction for {confirmed} candidates")
    if verdict in ("faster", "unclear") and one.beyond_bound:
        parts.append(f"more than the time that it works on allows ({one.bound:.2f}x)")
    if verdict == "unclear" and beyond_belief(one, alone) and alone == "slower":
        parts.append("it lost more than all that it works on takes")
    if verdict == "faster" and one.gain < math.log1p(WORTH):
        parts.append(f"gains less than {WORTH:.0%}")
    changed = one.numerics.classification == "changed" and one.arm.facts.risk < 3
    if changed and one.gain > 0:
        parts.append("training changed: not recommended")
    elif verdict == "faster" and _training_unknown(one):
        parts.append("whether training changed is not known: not recommended")
    return "; ".join([*parts, *one.arm.remarks]) or None


def _training_unknown(one: Measured) -> bool:
    numerics = one.numerics
    doubted = one.arm.facts.doubted and numerics.classification == "not-comparable"
    return numerics.needs_seeds or doubted


def recommendation(judgement: Judgement, baseline: Arm) -> Recommendation:
    """The fastest set that was measured as a whole on fresh pairs; its edits are left open."""
    found = judgement.recommendable()
    if not found:
        return Recommendation()
    best = found[0]
    row = trial(best, "faster", baseline, None, judgement.at_most(best))
    return Recommendation(
        fixes=[RecommendedFix(fix=fix, settings=values) for fix, values in best.arm.fixes],
        speedup=row.speedup,
        at_most=row.at_most,
        numerics=row.numerics,
        numerics_reason=row.numerics_reason,
        peak_memory_bytes=row.peak_memory_bytes,
        pairs=row.pairs,
    )


def results(
    evidence: Evidence,
    judgement: Judgement,
    *,
    baseline: Arm,
    launches: int,
    ended: str | None,
    doubts: Sequence[str],
    interrupted: bool,
    patch: PatchTrial | None = None,
    ceilings: Sequence[TriedCeiling] = (),
) -> TrialResults:
    """Everything, as records. `ended` says why the trials ended early, as in `reason`."""
    by, noise, doubts = evidence.decided_by(), judgement.noise_floor, list(doubts)
    seconds = evidence.estimator(by).seconds
    doubts += _doubts_of(judgement)
    rows, tried = [], any(one.differences for one in judgement.measured)
    for one in judgement.measured:
        verdict = judgement.verdicts[one.arm.key]
        why = reason(one, verdict, judgement.confirmed, ended, tried)
        rows.append(trial(one, verdict, baseline, why, judgement.at_most(one)))
    return TrialResults(
        trials=rows,
        noise_floor=noise,
        recommendation=recommendation(judgement, baseline),
        baselines=evidence.baselines,
        launches_s=[s for t in evidence.baselines if (s := seconds(t)) is not None],
        measured=evidence.measured_how(),
        decided_by=by,
        per_step=evidence.per_step,
        doubts=doubts,
        interrupted=interrupted,
        launches=launches,
        patch=patch,
        ceilings=list(ceilings),
    )


def _details(arm: Arm) -> dict[str, Any]:
    """Of a fix alone, in its first launch: those after it find what it compiled in the cache."""
    noted = [one for timing in arm.timings[:1] for one in timing.fixes]
    return dict(noted[0].details) if len(arm.fixes) == 1 and len(noted) == 1 else {}


def _setup(timings: Sequence[LaunchTiming], untouched: Sequence[LaunchTiming]) -> float | None:
    """One-time cost beyond the untouched program's, in seconds: of the first launch.

    Those after it find what it compiled in the cache.
    """
    ours = next((t.setup_s for t in timings), None)
    theirs = _median(t.setup_s for t in untouched)
    return None if ours is None or theirs is None else max(0.0, ours - theirs)


def _break_even(
    one: Measured, setup_s: float | None, untouched: Sequence[LaunchTiming]
) -> int | None:
    """Steps of the untouched program's size after which the one-time cost is won back."""
    step_s = _median(seconds_per_sample(t, "mean", per_step=True) for t in untouched)
    if setup_s is None or step_s is None or one.gain <= 0:
        return None
    return math.ceil(setup_s / (step_s * -math.expm1(-one.gain)))


def _median(values: object) -> float | None:
    known = [float(v) for v in values if v is not None]  # type: ignore[attr-defined]
    return median(known) if known else None


def _doubts_of(judgement: Judgement) -> list[str]:
    """What weakens the verdicts and the recommendation, one sentence each."""
    doubts, noise = [], judgement.noise_floor
    if noise is not None and compare.excludes_one(noise):
        doubts.append(
            f"The untouched program against itself came out at {noise.estimate:.3f}x "
            f"[{noise.low:.3f}, {noise.high:.3f}], which should hold 1: the machine was too noisy "
            f"to trust differences below {100 * compare.reach(noise):.1f} %."
        )
    best = next(iter(judgement.recommendable()), None)
    if best is not None and best.numerics.classification == "not-comparable":
        doubts.append(
            f"Whether {label(best.arm.fixes)} changes training could not be checked: "
            f"{best.numerics.reason}"
        )
    if best is not None and len(best.differences) < FEWEST_PAIRS:
        doubts.append(
            f"{label(best.arm.fixes)} is recommended from {len(best.differences)} pairs alone, for "
            "want of time: measure it again with more (--budget)."
        )
    unlikely = [*judgement.faster(), *judgement.not_believed]
    doubts += [said for one in unlikely if (said := doubt(one)) is not None]
    return doubts
