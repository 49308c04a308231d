"""What was tried and how it came out: fixes, ceilings, advice on training, recommendations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from torchdoctor.schema.evidence import Evidence
from torchdoctor.schema.fix_sets import FixSet
from torchdoctor.schema.location import Location
from torchdoctor.schema.touched import Bound

# Facts of `Trial.choice`, where a fix was not measured.
NOT_WORTH_ITS_TIME = "not-worth-its-time"
OUT_OF_TIME = "out-of-time"
NO_TIME_LEFT = "no-time-left"  # as the search ended


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio and its 95 % interval; a speed-up above 1 is faster."""

    estimate: float  #: Time per sample before, divided by after: above 1 is faster.
    low: float  #: Lower end of the 95 % interval.
    high: float  #: Upper end of the 95 % interval.

    @property
    def inverse(self) -> "Interval":
        """Return the inverse ratio: a speed-up of 2 is half the time."""
        return Interval(estimate=1 / self.estimate, low=1 / self.high, high=1 / self.low)


@dataclass(frozen=True, kw_only=True)
class AlteredDecision:
    """What a model decided otherwise: another class or id in one row of an output."""

    output: int  #: Which output, counted from 1.
    before: int | None  #: The class or id of the untouched program; null: it gave none.
    after: int | None  #: The same with the fix.


@dataclass(frozen=True, kw_only=True)
class ComparedDecisions:
    """The classes or ids that models chose, with a fix against without it."""

    decided: int  #: Decisions of both that were compared.
    same: int  #: Those that are the same, or differ between untouched launches too.
    share: float  #: `same` of `decided`.
    examples: list[AlteredDecision] = field(default_factory=list)  #: The first that differ.


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A fix with the settings to try, in the order of what it could gain.

    fixes: the fix comes first; behind it those without which it may help nobody (loader workers,
    and fewer threads that would fight with them for the cores). named: it treats what was
    diagnosed, a "cost", or a wrong "setting" that was seen, or what was "measured" as a good
    part of the step, of whatever branch; "": none of these.
    """

    fixes: FixSet
    ceiling: float | None = None  # most that it can gain by Amdahl, as a speed-up
    bound: float | None = None  # by what it works on; the ceiling may be by a finding's share
    choice: Evidence | None = None  # why it is tried
    named: str = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A fix that was not tried, and why."""

    fixes: FixSet
    why: Evidence


@dataclass(frozen=True, kw_only=True)
class RefusedFixes:
    """Fixes that one and the same reason rules out; in Python each is a row of `trials`."""

    reason: str | None  #: Why none of them can apply here, in words.
    why: list[Evidence] = field(default_factory=list)  #: The same as data.
    risk: int = 0  #: As that of a trial.
    fixes: list[str] = field(default_factory=list)  #: Their ids.


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fix (or the A/A candidate, or a whole stack) against the baseline."""

    fixes: FixSet  #: The settings of each fix that was switched on, by its id.
    speedup: Interval | None = None  #: Against the untouched program; null: not measured.
    at_most: float | None = None  #: What its part explains, if all of speedup is above it.
    #: faster: proven, by three pairs, or by two whose interval begins at 1.5. looks-faster: the
    #: interval lies above 1, and pairs are missing. slower: it lies below 1.
    verdict: Annotated[
        str, "faster", "looks-faster", "slower", "same", "unclear", "failed", "refused"
    ] = "unclear"
    #: Other programs held more than a quarter of the processors during most of its measurements.
    on_busy_machine: bool = False
    patched: bool = False  #: Measured with the source edited, not with fixes applied at run time.
    numerics: Annotated[  #: Whether training stayed the same, by losses and samples.
        str,
        "identical",
        "within-rounding",
        "within-seed-noise",
        "same-decisions",
        "corrected",
        "changed",
        "not-comparable",
    ] = "not-comparable"
    numerics_reason: str | None = None  #: What that judgement rests on, in words.
    numerics_why: Evidence | None = None  #: The same as data.
    decisions: ComparedDecisions | None = None  #: Of a program that infers; null: none were kept.
    risk: int = 0  #: 0 same result, 1 rounding or order, 2 lower precision, 3 changes training.
    peak_memory_bytes: int | None = None  #: Memory at its highest, with the fix.
    memory_change_bytes: int | None = None  #: The same, less that of the untouched program.
    memory_growths: list[float] = field(default_factory=list)  #: Of each pair: with / without it.
    cost_s: float = 0.0  #: Time that its launches took.
    reason: str | None = None  #: Why it was refused, failed or stayed unclear, in words.
    why: list[Evidence] = field(default_factory=list)  #: The same as data.
    pairs: int = 0  #: Launches with the fix that were compared with one of the untouched program.
    pair_speedups: list[float] = field(default_factory=list)  #: Of each pair, in their order.
    cut_off_pairs: int = 0  #: Pairs that the end of the budget cut off; they say nothing of it.
    setup_s: float | None = None  #: One-time cost, such as compilation.
    #: Noted in the first launch; torch-compile: compile_s, graphs, breaks, recompiles,
    #: recompile_reasons, gave_up, passes, compiled_at; mixed-precision: skipped_steps, scale.
    details: dict[str, Any] = field(default_factory=dict)
    break_even_steps: int | None = None  #: Steps after which the one-time cost has paid for itself.
    median_speedup: Interval | None = None  #: By whichever of mean and median does not decide.
    p_helps: float | None = None  #: Probability that it gains anything, by all that was measured.
    expected: float | None = None  #: Expected speed-up, by all that was measured and its record.
    upper_bound: float | None = None  #: The speed-up that it exceeds with a probability of 5 %.
    because: str | None = None  #: Why it was measured, or was not, in a few words.
    choice: Evidence | None = None  #: The same as data.

    @property
    def lacked_time(self) -> bool:
        """Return True if it was not measured, as the time ran out."""
        return self.choice is not None and self.choice.fact == OUT_OF_TIME

    @property
    def not_worth_its_time(self) -> bool:
        """Return True if it was not measured, as it promised too little for the time it takes."""
        return self.choice is not None and self.choice.fact == NOT_WORTH_ITS_TIME


@dataclass(frozen=True, kw_only=True)
class RecommendedFix:
    """One fix to make permanent: a verified edit, or what to change as code."""

    fix: str  #: Id of the fix.
    settings: dict[str, Any] = field(default_factory=dict)  #: The values to use.
    edit: str | None = None  #: Unified diff, where the edit could be made and verified.
    folder: str | None = None  #: What the edit's names are relative to; null: where it was started.
    instruction: str | None = None  #: Otherwise what to change, as code.
    location: Location | None = None  #: Where in the source.
    aim: str = "speed"  #: speed, or training: advice on training itself, which is not about speed.
    warning: str | None = None  #: What advice on training may cost.
    also_changes: list[str] = field(default_factory=list)  #: Sentences: what else the edit changes.
    #: recommended; or beside the set: confirmed, undecided, together, untried, offered.
    standing: str = "recommended"
    bound: Bound | None = None  #: The most that it can gain by itself; null: not known.

    @property
    def as_set(self) -> FixSet:
        """Return it as a set of one fix."""
        return FixSet.of(self.fix, self.settings)


def set_of(fixes: Sequence[RecommendedFix]) -> FixSet:
    """Return the set of these fixes, in their order."""
    return FixSet((fix.fix, fix.settings) for fix in fixes)


@dataclass(frozen=True, kw_only=True)
class PatchTrial:
    """The patched source, run without any fix of ours, against the untouched program."""

    speedup: Interval | None = None  #: Against the untouched program; null: not measured.
    numerics: str | None = None  #: Whether training stayed the same.
    numerics_reason: str | None = None  #: What that rests on, in words.
    numerics_why: Evidence | None = None  #: The same as data.
    pairs: int = 0  #: Pairs of launches behind the interval.
    reason: str | None = None  #: Why it was not measured, or failed, in words.
    why: Evidence | None = None  #: The same as data.


@dataclass(frozen=True, kw_only=True)
class RejectedPatch:
    """Source edits of a set of fixes that are not handed out as tried ones."""

    fixes: FixSet  #: The settings of each fix of the set, by its id.
    #: lacks-edit: a fix has no edit; not-tried: the edited program could not be launched here;
    #: failed: it ended with an error.
    problem: Annotated[str, "lacks-edit", "not-tried", "failed", "changes-training", "slower"]
    detail: str | None = None  #: The error, the fix without an edit, or how training changed.
    why: Evidence | None = None  #: The same as data.
    speedup: Interval | None = None  #: Edited against untouched; null: no pair ended.
    pairs: int = 0  #: Pairs of launches behind it.


@dataclass(frozen=True, kw_only=True)
class OpenProof:
    """The best set that looks faster, and what its proof still needs."""

    fixes: FixSet  #: The settings of each fix of the set, by its id.
    speedup: Interval | None = None  #: By the pairs so far.
    pairs: int = 0  #: Pairs of launches so far.
    further_pairs: int = 0  #: Pairs that are missing.
    seconds: float | None = None  #: How long they take; null: not known.


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The fixes worth applying, in order, measured all together."""

    fixes: list[RecommendedFix] = field(default_factory=list)  #: In the order to apply them.
    speedup: Interval | None = None  #: All together, against the untouched program.
    at_most: float | None = None  #: What their part explains, if all of speedup is above it.
    numerics: str | None = None  #: Whether training stayed the same with all of them.
    numerics_reason: str | None = None  #: What that judgement rests on, in words.
    numerics_why: Evidence | None = None  #: The same as data.
    peak_memory_bytes: int | None = None  #: Memory at its highest with all of them.
    pairs: int = 0  #: Pairs of launches behind the speed-up.
    patch: str | None = None  #: Unified diff of the program's source for `git apply`.
    patch_folder: str | None = None  #: The folder that the patch's names are relative to.
    patch_fixes: list[str] = field(default_factory=list)  #: Fixes that the patch makes permanent.
    patch_trial: PatchTrial | None = None  #: Patched against untouched; null: there is no patch.
    #: patch: `speedup` is that of the patch, which ran; by-hand: of fixes applied at run time.
    handed_out: Annotated[str | None, "patch", "by-hand"] = None
    rejected_patches: list[RejectedPatch] = field(default_factory=list)  #: Tried, not handed out.
    open_proof: OpenProof | None = None  #: What looks faster beside it; null: nothing does.
    also_offered: list[RecommendedFix] = field(default_factory=list)  #: Fixes beside the set.


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What fixing one branch of the tree could give at most; see `replay_ceilings`."""

    speedup: Interval  #: Without the cost; by replay, low and high are no 95 % interval.
    source: Annotated[str, "experiment", "replay"] = "experiment"  #: By trying, or by a model.


@dataclass(frozen=True, kw_only=True)
class TriedCeiling:
    """A cost that was removed for real, in blocks of a launch that was thrown away."""

    ceiling: str  #: Its id.
    branch: str  #: Branch of the tree that the cost belongs to.
    removes: str  #: What was taken away, as in "without ...".
    share: float | None = None  #: Of the step, as far as it was observed; null: not known.
    speedup: Interval | None = None  #: Without it, in the same launch; null: no figures.
    verdict: Annotated[  #: gain: above 1; hidden: a high share gives nothing; nothing: a low one.
        str, "gain", "hidden", "nothing", "slower", "unclear", "abandoned", "not-tried"
    ] = "abandoned"
    whole: bool = True  #: Whether it is the whole cost of its branch, or a part.
    reason: str | None = None  #: Why it was abandoned, not tried, or unclear, in words.
    why: Evidence | None = None  #: The same as data.
    pairs: int = 0  #: Pairs of blocks that the interval rests on.

    @property
    def decided(self) -> bool:
        """Return True if its figures say what its cost is worth."""
        return self.speedup is not None and self.verdict not in ("unclear", "slower")


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Launches with and without a fix, over the same samples, in pairs with the same seed."""

    steps: int  #: Iterations of the shortest launch.
    pairs: int  #: Launches with and without it, with the same seed.
    without: float | None = None  #: Mean loss of the last third, untouched; null: not finite.
    with_fix: float | None = None  #: The same with it.
    difference: float | None = None  #: With minus without, mean of the pairs.
    low: float | None = None  #: Lower end of its 95 % t interval; null: below two pairs.
    high: float | None = None  #: Upper end.
    seeds_spread: float | None = None  #: How far seeds set untouched losses apart; null: one seed.
    step_speedup: Interval | None = None  #: Time of a step without it over that with it.


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """Advice on training in short launches; see docs/decisions/training.md."""

    fix: str  #: Id of the fix.
    verdict: Annotated[  #: better, worse: beyond what other seeds do; shows-nothing: cannot tell.
        str,
        "better",
        "worse",
        "no-difference",
        "shows-nothing",
        "not-decided",
        "failed",
        "not-tried",
    ]
    sentence: str = ""  #: What came out, or why nothing did.
    why: list[Evidence] = field(default_factory=list)  #: The same as data.
    settings: dict[str, Any] = field(default_factory=dict)  #: The values that were tried.
    comparison: LossComparison | None = None  #: null: no complete pair.
    launches: int = 0  #: Launches with it; those of the untouched program serve all.
    cost_s: float = 0.0  #: Wall time of its launches.
    details: dict[str, Any] = field(default_factory=dict)  #: What the fix noted in its last launch.
