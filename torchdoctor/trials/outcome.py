"""Turns launches into rows of the report: speed-up, verdict, training, memory, cost."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from torchdoctor.advice.wording import SourcePatch
from torchdoctor.bench.pair_times import seconds_per_sample
from torchdoctor.schema import Evidence as Fact
from torchdoctor.schema import (
    FixSet,
    Interval,
    LaunchTiming,
    OpenProof,
    PatchTrial,
    Recommendation,
    RecommendedFix,
    RejectedPatch,
    Trial,
    TriedCeiling,
    fact,
    within,
)
from torchdoctor.schema.trials import NOT_WORTH_ITS_TIME, OUT_OF_TIME
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.beliefs import Members
from torchdoctor.trials.claims import LogInterval, claim_interval
from torchdoctor.trials.evidence import Evidence, Measured
from torchdoctor.trials.log import NO_TIME
from torchdoctor.trials.patches import Patches
from torchdoctor.trials.search_policy import SearchPolicy
from torchdoctor.trials.thresholds import ADDS, WORTH

SAME_TRAINING = ("identical", "within-rounding", "within-seed-noise", "same-decisions", "corrected")
_DEAR_S = 10.0  # of a first launch beyond the others: worth a word
_NARROW = 0.1  # log: an interval that reaches further does not show "no difference"
_SAME = 0.9  # probability that a difference counts as none
_BOUND_KNOWN_TO = 0.05  # log: phases were timed in another launch than the trials
_REST_KNOWN_TO = math.log(3.0)  # cores that slept through a wait compute so much slower after it


@dataclass(frozen=True, kw_only=True)
class TrialResults:
    """The results of all trials; valid at whatever moment they ended."""

    trials: list[Trial]  # a row for each candidate, in the order given, then for each set measured
    noise_floor: Interval | None  # the A/A candidate's interval; None below two rounds
    recommendation: Recommendation  # its fixes without edits
    baselines: list[LaunchTiming] = field(default_factory=list)
    # Per sample, or per step, of each baseline.
    launches_s: list[float] = field(default_factory=list)
    measured: str | None = None  # "side by side" or "in turns", None where no pairs were launched
    decided_by: str = "median"  # "mean" or "median" of the steps
    per_step: bool = False
    doubts: list[Fact] = field(default_factory=list)
    stopped: str = "time"  # `Ending.reason`
    lacked_s: float | None = None  # where nothing was tried: of the cheapest proof
    interrupted: bool = False
    launches: int = 0  # how many were started and ended
    source_patch: SourcePatch | None = None  # makes the recommended fixes permanent
    ceilings: list[TriedCeiling] = field(default_factory=list)  # no candidates


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """The changes of results that the user allowed to recommend."""

    training: bool = False  # fixes of risk 3
    outputs: bool = False  # outputs and decisions of a program that infers


def results_may_stay(measured: Measured, allowed: Allowed) -> bool:
    """Return True if results stay the same enough to recommend an arm."""
    numerics = measured.numerics
    risk = measured.arm.facts.risk
    if numerics.harmful:
        return False
    if risk == 3:
        return allowed.training
    if numerics.classification == "not-comparable":
        # Nothing speaks against the fix, and it promises the very same numbers.
        return risk == 0 and not numerics.needs_seeds and not measured.arm.facts.doubted
    if numerics.of_outputs and numerics.classification == "changed":
        return allowed.outputs
    return numerics.classification in SAME_TRAINING


class Judgement:
    """Verdicts on all arms, candidates and sets, by what is known now."""

    def __init__(
        self,
        evidence: Evidence,
        measured: Mapping[Members, Measured],
        policy: SearchPolicy,
        patches: Patches,
        allowed: Allowed,
    ) -> None:
        self.policy = policy
        self.allowed = allowed
        self._evidence = evidence
        self._patches = patches
        self.noise_floor = compare.interval(evidence.noise())
        self.measured = measured
        self.intervals = {members: self._interval(members) for members in measured}
        self.verdicts = {members: self._verdict(members) for members in measured}

    def _interval(self, members: Members) -> Interval | None:
        measured = self.measured[members]
        if not measured.differences or not measured.arm.alive:
            return None
        of_pairs = self.policy.proof.interval(members)
        interval = of_pairs or self.policy.proof.interval_of_blocks(members)
        return None if interval is None else as_speedup(interval)

    def _verdict(self, members: Members) -> str:
        measured = self.measured[members]
        interval = self.intervals[members]
        if not measured.arm.alive:
            return "refused" if measured.arm.refused else "failed"
        if interval is None:
            return "unclear"
        if interval.high < 1:
            return "slower"
        if interval.low > 1:
            # Of many intervals some are far off by chance, so the prior has to agree.
            likely = all(self.policy.beliefs.p_helps(name) >= ADDS for name in members)
            if not likely and len(members) == 1:
                return "unclear"
            return "faster" if self.policy.proof.holds(members) else "looks-faster"
        delta = math.log1p(compare.delta(self.noise_floor))
        most = max(-math.log(interval.low), math.log(interval.high))
        [name, *further] = members
        alone = not further and self.policy.beliefs.p_within(name, delta) >= _SAME
        return "same" if most <= delta or (alone and most <= _NARROW) else "unclear"

    def recommended(self) -> Members | None:
        """Return the best set that may be claimed and trains the same."""
        for claim in self.policy.claims:
            if results_may_stay(self.measured[claim.members], self.allowed):
                return claim.members
        return None

    def at_most(self, members: Members) -> float | None:
        """Return what the parts explain that fixes touch, if all of the interval is above it.

        What was measured counts. Shares of several may overlap. Where little else is left of a
        step, that gets faster too: 13.6x was measured of a step that waits for seven eighths of
        its time.
        """
        candidates = [self.measured[frozenset([name])].arm.candidate for name in members]
        bounds = [candidate.bound if candidate else None for candidate in candidates]
        share = sum(1.0 if bound is None else 1.0 - 1.0 / bound for bound in bounds)
        interval = self.intervals[members]
        if share >= 1 or interval is None:
            return None
        known_to = _BOUND_KNOWN_TO + _REST_KNOWN_TO * share**3
        explained = 1.0 / (1.0 - share)
        return explained if interval.low > explained * math.exp(known_to) else None

    def results(self, ended: Fact | None) -> TrialResults:
        """Return all rows and the recommendation; `ended`: why the search ended early, or None."""
        evidence = self._evidence
        by = self._evidence.decided_by()
        seconds = evidence.estimator(by).seconds
        rows = {
            members: self._row(members, ended)
            for members, measured in self.measured.items()
            if len(members) == 1 or measured.differences or not measured.arm.alive
        }
        return TrialResults(
            trials=list(rows.values()),
            noise_floor=self.noise_floor,
            recommendation=self._recommendation(rows),
            source_patch=self._source_patch(),
            baselines=evidence.baselines,
            launches_s=[s for t in evidence.baselines if (s := seconds(t)) is not None],
            measured=evidence.measured_how(),
            decided_by=by,
            per_step=evidence.per_step,
            doubts=self._doubts(),
        )

    def _row(self, members: Members, ended: Fact | None) -> Trial:
        measured = self.measured[members]
        verdict = self.verdicts[members]
        arm = measured.arm
        timings = measured.arm.timings
        untouched = self._evidence.baselines
        memory, change = self._memory(measured)
        setup_s = _setup(timings, untouched)
        return Trial(
            fixes=arm.fixes,
            speedup=self.intervals[members],
            at_most=self.at_most(members),
            verdict=verdict,
            numerics=measured.numerics.classification,
            numerics_why=measured.numerics.why,
            decisions=measured.numerics.decisions,
            risk=arm.facts.risk,
            peak_memory_bytes=None if memory is None else round(memory),
            memory_change_bytes=None if change is None else round(change),
            memory_growths=[fixed / before for before, fixed in measured.memory],
            cost_s=arm.cost_s,
            why=self._why(members, ended),
            pairs=len(measured.differences),
            pair_speedups=[math.exp(difference) for difference in measured.differences],
            patched=measured.patched > 0,
            cut_off_pairs=arm.cut_off_pairs,
            on_busy_machine=arm.on_busy_machine,
            setup_s=setup_s,
            details=_details(arm),
            break_even_steps=_break_even(measured, setup_s, untouched)
            if verdict == "faster"
            else None,
            median_speedup=compare.estimate(measured.other) if arm.alive else None,
            **self._belief(members, ended),
        )

    def _memory(self, measured: Measured) -> tuple[float | None, float | None]:
        """Return the peak memory with an arm in bytes, and its change: of its pairs, if any."""
        if measured.memory:  # which are those of its patch too
            changes = [fixed - untouched for untouched, fixed in measured.memory]
            return _median(fixed for _, fixed in measured.memory), _median(changes)
        timings = measured.arm.timings
        fixed = _median(timing.peak_memory_bytes for timing in timings)
        untouched = _median(
            timing.peak_memory_bytes
            for timing in self._evidence.baselines
            if any(timing.gpu_memory == other.gpu_memory for other in timings)
        )
        return fixed, None if fixed is None or untouched is None else fixed - untouched

    def _belief(self, members: Members, ended: Fact | None) -> dict[str, Any]:
        """Return what is believed of an arm by everything that was measured."""
        measured = self.measured[members]
        beliefs = self.policy.beliefs
        arm = measured.arm
        if not arm.alive:
            return {"choice": fact("refused") if arm.refused else fact("failed")}
        choice = fact("members-gain") if arm.candidate is None else arm.candidate.choice
        if arm.further:
            choice = fact("further-value")
        return {
            "p_helps": beliefs.p_helps(*members) if len(members) == 1 else None,
            "expected": math.exp(beliefs.mean_gain(members)),
            "upper_bound": math.exp(beliefs.quantile(members, 0.95)),
            "choice": choice if measured.differences else self._why_not_measured(members, ended),
        }

    def _why(self, members: Members, ended: Fact | None) -> list[Fact]:
        """Return what explains a verdict: why an arm was not measured, or is not recommended."""
        measured = self.measured[members]
        arm = measured.arm
        out = arm.refused or arm.failed
        if out is not None:
            return [out]
        facts = self._of_pairs(members, ended)
        if measured.by == "pairs" and self.policy.beliefs.blocks(members):
            facts.append(fact("blocks-count-too"))
        verdict = self.verdicts[members]
        bound = self.at_most(members)
        if verdict in ("faster", "looks-faster", "unclear") and bound is not None:
            facts.append(fact("beyond-its-part", bound=bound))
        if verdict == "faster" and measured.gain < math.log1p(WORTH):
            facts.append(fact("gains-little", worth=WORTH))
        return [*facts, *self._of_results(measured), *arm.remarks]

    def _of_pairs(self, members: Members, ended: Fact | None) -> list[Fact]:
        """Return what the pairs of an arm lack."""
        measured = self.measured[members]
        pairs = len(measured.differences)
        if pairs == 0:
            return [self._why_not_measured(members, ended), *self._what_it_takes(measured.arm)]
        if measured.by == "blocks":
            return [fact("blocks-only", pairs=pairs)]
        if pairs == 1:
            return [fact("one-pair")]
        if 0 < measured.patched < pairs:
            return [fact("pairs-at-run-time", pairs=pairs - measured.patched)]
        return []

    def _of_results(self, measured: Measured) -> list[Fact]:
        """Return why an arm that gains is not recommended for what it does to results."""
        if measured.gain <= 0:
            return []
        numerics = measured.numerics
        facts = measured.arm.facts
        unproven = facts.risk > 0 or facts.doubted
        doubted = unproven and numerics.classification == "not-comparable"
        changed = numerics.classification == "changed" and facts.risk < 3
        if changed and not results_may_stay(measured, self.allowed):
            return [fact("outputs-changed" if numerics.of_outputs else "results-changed")]
        if numerics.needs_seeds or doubted:
            return [fact("results-unknown")]
        return []

    def _why_not_measured(self, members: Members, ended: Fact | None) -> Fact:
        measured = self.measured[members]
        if measured.arm.timings and measured.arm.facts.risk == 3:
            return fact("batch-size-unknown")
        lacks_time = self.policy.lacks_time(members)
        why = fact(OUT_OF_TIME if lacks_time else NOT_WORTH_ITS_TIME)
        return why if ended is None or ended == NO_TIME else ended

    def _what_it_takes(self, arm: Arm) -> list[Fact]:
        """Return what the first launch of an arm that was not measured is thought to take."""
        once_s = self.policy.prices.once_s.get(arm.key, 0.0)
        return [] if once_s < _DEAR_S else [fact("long-first-launch", once_s=once_s)]

    def _source_patch(self) -> SourcePatch | None:
        """Return the patch that is handed out: that of the recommended set, which ran."""
        members = self.recommended()
        return None if members is None else self._patches.source(members)

    def _recommendation(self, rows: Mapping[Members, Trial]) -> Recommendation:
        """Return the best set that was measured as a whole; its edits are left open."""
        rejected = [self._rejected(patch) for patch in self._patches.rejected]
        members = self.recommended()
        if members is None:
            return Recommendation(rejected_patches=rejected, open_proof=self._open_proof())
        row = rows[members]
        measured = self.measured[members]
        fixes = self._in_order(members)
        return Recommendation(
            fixes=[RecommendedFix(fix=fix, settings=values) for fix, values in fixes.items()],
            speedup=row.speedup,
            at_most=row.at_most,
            numerics=row.numerics,
            numerics_why=row.numerics_why,
            peak_memory_bytes=row.peak_memory_bytes,
            pairs=row.pairs,
            handed_out="patch" if measured.patched else "by-hand",
            patch_trial=self._patch_trial(members) if measured.patched else None,
            rejected_patches=rejected,
            open_proof=self._open_proof(),
        )

    def _in_order(self, members: Members) -> FixSet:
        """Return the fixes of a set, what gains most first."""
        beliefs = self.policy.beliefs
        ranked = sorted(members, key=lambda name: -beliefs.mean_gain(frozenset([name])))
        order = [fix for name in ranked for fix in self.measured[frozenset([name])].arm.fixes]
        return self.measured[members].arm.fixes.ordered_by(order)

    def _patch_trial(self, members: Members) -> PatchTrial:
        measured = self.measured[members]
        return PatchTrial(
            speedup=self.intervals[members],
            numerics=measured.numerics.classification,
            numerics_why=measured.numerics.why,
            pairs=measured.patched,
        )

    def _rejected(self, members: Members) -> RejectedPatch:
        """Return a rejected patch with what was measured of it."""
        rejected = self._patches.rejected[members]
        logs = self.policy.results.patched.get(members, ())
        if not logs:
            return rejected
        interval = as_speedup(claim_interval(logs, self.policy.beliefs.sigma_log(members)))
        return replace(rejected, speedup=interval, pairs=len(logs))

    def _open_proof(self) -> OpenProof | None:
        """Return the best set that looks faster than what is recommended, and lacks pairs."""
        claimed = max([0.0, *(claim.gain for claim in self.policy.claims)])
        for claim in self.policy.open_claims:
            measured = self.measured[claim.members]
            same = results_may_stay(measured, self.allowed)
            if same and claim.gain > claimed + WORTH:
                return OpenProof(
                    fixes=self._in_order(claim.members),
                    speedup=self.intervals[claim.members],
                    pairs=claim.pairs,
                    further_pairs=claim.further_pairs,
                    seconds=self.policy.proof_s(claim.members),
                )
        return None

    def _doubts(self) -> list[Fact]:
        """Return what weakens the recommendation."""
        members = self.recommended()
        best = self.measured[members] if members else None
        if best is None or best.numerics.classification != "not-comparable":
            return []
        why = within(best.numerics.why)
        return [fact("results-unchecked", fixes=best.arm.label, why=why)]


def as_speedup(interval: LogInterval) -> Interval:
    """Return an interval of log speed-ups as speed-ups."""
    low, middle, high = map(math.exp, (interval.low, interval.estimate, interval.high))
    return Interval(estimate=middle, low=low, high=high)


def _details(arm: Arm) -> dict[str, Any]:
    """Return the details of a single fix by its first launch: later ones find a warm cache."""
    noted = [applied for timing in arm.timings[:1] for applied in timing.fixes]
    return dict(noted[0].details) if len(arm.fixes) == 1 and len(noted) == 1 else {}


def _setup(timings: Sequence[LaunchTiming], untouched: Sequence[LaunchTiming]) -> float | None:
    """Return the one-time seconds beyond the untouched program's, by the first launch alone."""
    ours = next((t.setup_s for t in timings), None)
    theirs = _median(t.setup_s for t in untouched)
    return None if ours is None or theirs is None else max(0.0, ours - theirs)


def _break_even(
    measured: Measured, setup_s: float | None, untouched: Sequence[LaunchTiming]
) -> int | None:
    """Return the steps, of the untouched program's size, that win the one-time cost back."""
    step_s = _median(seconds_per_sample(t, "mean", per_step=True) for t in untouched)
    if setup_s is None or step_s is None or measured.gain <= 0:
        return None
    return math.ceil(setup_s / (step_s * -math.expm1(-measured.gain)))


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return median(numbers) if numbers else None
