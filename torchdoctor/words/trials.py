"""What was tried and how it came out: fixes, ceilings, advice on training, recommendations."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from torchdoctor.words.program import Location


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
class Candidate:
    """A fix with the settings to try, in the order of what it could gain.

    also: fixes by id, with their settings, that go with it because one without the other may
    help nobody (loader workers, and fewer threads that would fight with them for the cores).
    main: it treats what the diagnosis named.
    """

    fix: str
    settings: dict[str, Any] = field(default_factory=dict)
    also: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceiling: float | None = None  # most that it can gain by Amdahl, as a speed-up
    # What the time of the step that it works on allows; the ceiling may be a finding's share.
    bound: float | None = None
    reason: str = ""  # why it is tried
    main: bool = False


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A fix that was not tried, and why."""

    fix: str
    reason: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fix (or the A/A candidate, or a whole stack) against the baseline."""

    fix: str  #: Id of the fix.
    settings: dict[str, Any] = field(default_factory=dict)  #: The values it was tried with.
    #: Against the untouched program; null where it could not be measured.
    speedup: Interval | None = None
    #: Where the estimate lies above it: the most that the time of the step which the fix works
    #: on allows, as a speed-up; the rest is not the fix's. null: it does not, or that time is
    #: not known.
    at_most: float | None = None
    #: faster or slower: the 95 % interval excludes 1, and a few pairs do not stand against the
    #: time of the step that the fix works on; same: no difference worth the name; unclear: too
    #: few data; failed; refused.
    verdict: Annotated[str, "faster", "slower", "same", "unclear", "failed", "refused"] = "unclear"
    #: Whether training stayed the same, judged by the losses and the samples.
    numerics: Annotated[
        str, "identical", "within-rounding", "within-seed-noise", "changed", "not-comparable"
    ] = "not-comparable"
    numerics_reason: str | None = None  #: What that judgement rests on.
    risk: int = 0  #: 0 same result, 1 rounding or order, 2 lower precision, 3 changes training.
    peak_memory_bytes: int | None = None  #: Memory at its highest, with the fix.
    memory_change_bytes: int | None = None  #: The same, less that of the untouched program.
    cost_s: float = 0.0  #: Time that its launches took.
    reason: str | None = None  #: Why it was refused, failed or stayed unclear.
    pairs: int = 0  #: Launches with the fix that were compared with one of the untouched program.
    setup_s: float | None = None  #: One-time cost, such as compilation.
    #: What a fix alone noted in its first launch. torch-compile: `compile_s`, `graphs`, `breaks`
    #: and `recompile_reasons` with file and line, `recompiles`, `gave_up`, `compiled_at` (of its
    #: `passes`, the backward passes after which there was more). mixed-precision in float16:
    #: `skipped_steps`, `scale`.
    details: dict[str, Any] = field(default_factory=dict)
    break_even_steps: int | None = None  #: Steps after which the one-time cost has paid for itself.
    #: Speed-up by the other of mean and median step; `speedup` holds the one that decides.
    median_speedup: Interval | None = None
    p_helps: float | None = None  #: Probability that it gains anything, by all that was measured.


@dataclass(frozen=True, kw_only=True)
class RecommendedFix:
    """One fix to make permanent: a verified edit, or what to change as code."""

    fix: str  #: Id of the fix.
    settings: dict[str, Any] = field(default_factory=dict)  #: The values to use.
    edit: str | None = None  #: Unified diff, where the edit could be made and verified.
    #: The folder that the edit's names are relative to; null: the one that the program was
    #: started in.
    folder: str | None = None
    instruction: str | None = None  #: Otherwise what to change, as code.
    location: Location | None = None  #: Where in the source.
    aim: str = "speed"  #: speed, or training: advice on training itself, which is not about speed.
    warning: str | None = None  #: What advice on training may cost.
    #: What else its edit changes, one sentence each: other loaders that read the option whose
    #: default it changes.
    also_changes: list[str] = field(default_factory=list)
    #: recommended; or beside the set: confirmed by itself, undecided by its trial, undecided
    #: together with the other one (together), untried for want of time, offered where no run can
    #: try it.
    standing: str = "recommended"


@dataclass(frozen=True, kw_only=True)
class PatchTrial:
    """The patched source, run without any fix of ours, against the untouched program."""

    speedup: Interval | None = None  #: Against the untouched program; null: not measured.
    numerics: str | None = None  #: Whether training stayed the same.
    numerics_reason: str | None = None  #: What that rests on.
    pairs: int = 0  #: Pairs of launches behind the interval.
    reason: str | None = None  #: Why it was not measured, or failed.


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The fixes worth applying, in order, measured all together."""

    fixes: list[RecommendedFix] = field(default_factory=list)  #: In the order to apply them.
    #: All of them together, measured against the untouched program.
    speedup: Interval | None = None
    #: Where the estimate lies above it: the most that the time of the step which they work on
    #: allows, as a speed-up. null: it does not, or that time is not known.
    at_most: float | None = None
    numerics: str | None = None  #: Whether training stayed the same with all of them.
    numerics_reason: str | None = None  #: What that judgement rests on.
    peak_memory_bytes: int | None = None  #: Memory at its highest with all of them.
    pairs: int = 0  #: Pairs of launches behind the speed-up.
    #: One unified diff of the program's own source for `git apply`, in `patch_folder`.
    patch: str | None = None
    patch_folder: str | None = None  #: The folder that the patch's names are relative to.
    #: Ids of the fixes that the patch makes permanent.
    patch_fixes: list[str] = field(default_factory=list)
    #: The patched program against the untouched one; null: there is no patch.
    patch_trial: PatchTrial | None = None
    #: Fixes beside the set: confirmed by themselves, undecided or untried where nothing was
    #: confirmed, or such as no run can try.
    also_offered: list[RecommendedFix] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What fixing one branch of the tree could give at most; see `replay_ceilings`."""

    #: Speed-up with the branch's cost taken away altogether. By replay, low and high are no 95 %
    #: interval: low allows for the replay's error, high also for waits of unknown cause.
    speedup: Interval
    #: experiment: measured; replay: a model, from the dependencies in the trace.
    source: Annotated[str, "experiment", "replay"] = "experiment"


@dataclass(frozen=True, kw_only=True)
class TriedCeiling:
    """A cost that was removed for real, in blocks of a launch that was thrown away.

    If it is the `whole` cost of its branch, `Report.ceilings` has the same figure.
    """

    ceiling: str  #: Its id.
    branch: str  #: Branch of the tree that the cost belongs to.
    removes: str  #: What was taken away, as in "without ...".
    #: Share of the step that it takes by what was observed; null: not known.
    share: float | None = None
    #: Without it, against the untouched program in the same launch; null: it did not come to
    #: figures.
    speedup: Interval | None = None
    #: gain: the interval is above 1; hidden: a high share that gives nothing; nothing: a low
    #: one; slower: it took longer without it, which says nothing; unclear; abandoned; not-tried.
    verdict: Annotated[
        str, "gain", "hidden", "nothing", "slower", "unclear", "abandoned", "not-tried"
    ] = "abandoned"
    whole: bool = True  #: Whether it is the whole cost of its branch, or a part.
    #: Why it was abandoned, not tried, or unclear in spite of its figures.
    reason: str | None = None
    pairs: int = 0  #: Pairs of blocks that the interval rests on.

    @property
    def decided(self) -> bool:
        """Return True if its figures say what its cost is worth."""
        return self.speedup is not None and self.verdict not in ("unclear", "slower")


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The loss while the learning rate rose from step to step; rates as the program writes them.

    The curve ends where losses are no longer finite.
    """

    own_rate: float  #: The program's own learning rate.
    lowest_rate: float  #: The first rate that was tried.
    highest_rate: float  #: The last one.
    steps: int  #: Rates tried, one optimizer step each.
    launches: int = 1  #: Launches with different seeds; the more cautious rates of them are given.
    #: The rate at which the loss falls fastest; null: it falls at none.
    steepest_rate: float | None = None
    #: The rate at which it stops falling; null: it falls at none.
    lowest_loss_rate: float | None = None
    #: The rate at which it has begun to diverge; null: at none that was tried.
    diverged_rate: float | None = None
    #: Highest rate for a schedule: a tenth of `lowest_loss_rate`; null: the test does not show
    #: one.
    max_rate: float | None = None
    rates: list[float] = field(default_factory=list)  #: Of the smoothed curve of the first launch.
    losses: list[float] = field(default_factory=list)  #: The smoothed loss at each of `rates`.


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Launches with and without a fix, over the same samples, in pairs with the same seed."""

    steps: int  #: Iterations of the shortest launch.
    pairs: int  #: Launches with and without it, with the same seed.
    #: Mean loss over the last third of the untouched launches; null: not finite.
    without: float | None = None
    with_fix: float | None = None  #: The same with it.
    difference: float | None = None  #: With minus without, mean of the pairs.
    low: float | None = None  #: Lower end of its 95 % t interval; null: below two pairs.
    high: float | None = None  #: Upper end.
    #: How far the untouched program's losses lie apart by the seed alone; null: one seed.
    seeds_spread: float | None = None
    step_speedup: Interval | None = None  #: Time of a step without it over that with it.


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """Advice on training in short launches; see docs/decisions/training.md."""

    fix: str  #: Id of the fix.
    #: A learning-rate range test, or losses with and without it.
    kind: Annotated[str, "range test", "loss"]
    #: found: a rate; better, worse: the loss differs by more than other seeds make it;
    #: no-difference; shows-nothing: the launches cannot tell; not-decided: the budget ended
    #: during one of its launches; failed; not-tried.
    verdict: Annotated[
        str,
        "found",
        "better",
        "worse",
        "no-difference",
        "shows-nothing",
        "not-decided",
        "failed",
        "not-tried",
    ]
    sentence: str  #: What came out, or why nothing did.
    settings: dict[str, Any] = field(default_factory=dict)  #: The values that were tried.
    range_test: RangeTest | None = None  #: null: another kind, or it gave nothing.
    #: null: another kind, or no pair of launches was complete.
    comparison: LossComparison | None = None
    launches: int = 0  #: Launches with it; those of the untouched program serve all.
    cost_s: float = 0.0  #: Wall time of its launches.
    details: dict[str, Any] = field(default_factory=dict)  #: What the fix noted in its last launch.
