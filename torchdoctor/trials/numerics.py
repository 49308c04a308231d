"""Compares a candidate's losses with the untouched program's: did training change? Pure.

By small training loops (tests/trials/training_runs.py), another order of summation gives relative
differences of 1e-7 that grow slowly, bfloat16 1e-5 to 1e-3 that stay, another rate 4e-4 and more.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from torchdoctor.schema import (
    AlteredDecision,
    ComparedDecisions,
    Evidence,
    LaunchTiming,
    Recording,
    fact,
    within,
)
from torchdoctor.trials.samples import Preparation, SampleComparison, compare_samples

CLASSES = (
    "identical",
    "within-rounding",
    "within-seed-noise",
    "same-decisions",
    "corrected",
    "not-comparable",
    "changed",
)

FEWEST_LOSSES = 8
EARLY = 8  # first losses, in which a difference must look like rounding
ROUNDING = 1e-5  # relative difference of the first loss in float32
LOW_PRECISION = 1e-2  # the same for bfloat16, float16 and TF32
FEWEST_OUTPUTS = 3
_EXAMPLES = 3  # of decisions that are other ones
OUTPUTS_ROUNDING, OUTPUTS_LOW_PRECISION = 1e-4, 3e-2  # relative difference of an output's figure
DECISIONS = 1e-3  # of them may be other ones, after a change of precision alone
PARTED = 1e-4  # relative: the losses after the first update differ by more than rounding does
BACKWARDS = 0.25  # relative difference of backwards per step
DRIFT_SHARE = 0.05  # of the loss's own movement
DRIFT_NOISE = 0.5  # of the standard error of a block's mean
FARTHEST = 5.0  # standard deviations of one block
FARTHEST_TREND = 3.5  # of the mean over the last half


@dataclass(frozen=True)
class Numerics:
    """The verdict on training."""

    classification: str  # one of CLASSES
    why: Evidence  # what it rests on
    harmful: bool = False  # data corrupted or loss not finite; never to be recommended
    needs_seeds: bool = False  # two launches with other seeds would decide
    of_outputs: bool = False  # of a program that infers
    decisions: ComparedDecisions | None = None  # what its models decided


@dataclass(frozen=True, kw_only=True)
class Untouched:
    """The launches of the untouched program, which a candidate is compared with."""

    baselines: Sequence[LaunchTiming]  # launches with the same seed as the candidate's
    seeds: Sequence[LaunchTiming] = field(default_factory=list)  # launches with other seeds
    warmup_steps: int = 0  # iterations before the measured window
    backwards_per_step: float = 1.0  # backwards of an iteration; block means cover whole iterations
    low_precision: bool = False  # the program itself computes in bfloat16, float16 or TF32
    infers: bool = False  # its "losses" are figures of its outputs
    corrects: bool = False  # the candidate is to change outputs that are wrong


def trains_in_low_precision(recording: Recording) -> bool:
    """Return True if the untouched program computes in bfloat16, float16 or TF32."""
    main = recording.main
    low = any(d in ("bfloat16", "float16", "half") for m in main.models for d in m.dtypes)
    autocast = any(m.autocast_forwards for m in main.models)
    flags = main.flags
    convolutions = any(m.conv2d for m in main.models)
    tf32 = bool(flags.matmul_tf32) or (convolutions and flags.cudnn_tf32 is not False)
    return low or autocast or (recording.has_gpu and tf32)


def compare_training(
    trials: Sequence[LaunchTiming],
    untouched: Untouched,
    keeps: str = "within rounding",
    how: Preparation = Preparation(),  # noqa: B008 - frozen
) -> Numerics:
    """Classify a candidate by its worst launch; `keeps`: the promise of the fix."""
    verdicts = [_compare_launch(trial, untouched, keeps, how) for trial in trials]
    if not verdicts:
        return Numerics("not-comparable", fact("no-launch-compared"))
    return max(verdicts, key=lambda each: (CLASSES.index(each.classification), each.harmful))


def _compare_launch(
    trial: LaunchTiming, untouched: Untouched, keeps: str, how: Preparation
) -> Numerics:
    if untouched.infers:
        return compare_outputs(trial, untouched, keeps)
    samples = compare_samples(
        trial.fingerprints,
        [b.fingerprints for b in untouched.baselines],
        [s.fingerprints for s in untouched.seeds],
        how,
    )
    if samples.state in ("corrupt", "stateful"):
        return Numerics("changed", fact("data-changed", data=_data(samples)), harmful=True)
    if broken := _not_finite(trial, untouched):
        return Numerics("changed", broken, harmful=True)
    if other := _other_backwards(trial, untouched):
        return Numerics("changed", other)
    baselines = [_column(b.losses) for b in untouched.baselines]
    ours, baselines = _common(_column(trial.losses), [b for b in baselines if len(b)])
    if not baselines or len(ours) < FEWEST_LOSSES:
        losses = len(ours) if baselines else 0
        return Numerics(
            "not-comparable",
            fact("too-few-losses", losses=losses, fewest=FEWEST_LOSSES)
            if losses
            else fact("no-losses-of-both", fewest=FEWEST_LOSSES),
        )
    if all(np.array_equal(ours, b) for b in baselines):
        return Numerics(
            "identical", fact("losses-identical", losses=len(ours), data=_data(samples))
        )
    return _beyond_identical(ours, baselines, untouched, keeps, samples)


def _beyond_identical(
    ours: np.ndarray,
    baselines: list[np.ndarray],
    untouched: Untouched,
    keeps: str,
    samples: SampleComparison,
) -> Numerics:
    low = untouched.low_precision or keeps == "lower precision"
    first_allowed = LOW_PRECISION if low else ROUNDING
    nearest = min(baselines, key=lambda b: float(np.abs(b - ours).max()))
    apart = _relative(ours, nearest)
    run_to_run = _run_to_run(baselines)
    in_place = samples.state in ("same", "unknown")
    # Every update carries the rounding differences of float32 on; those of low precision are made
    # anew in every step and do not grow.
    growth = (1.0 + np.arange(EARLY)) ** (0.5 if low else 1.0)
    allowed = np.maximum(first_allowed * growth, 3.0 * run_to_run[:EARLY])
    early = apart[:EARLY]
    length = block_length(len(ours), untouched.backwards_per_step)
    if in_place and bool((early <= allowed).all()) and drift(ours, nearest, length) <= 1.0:
        return _like_two_runs(early, first_allowed * growth, low, _data(samples))
    chaotic = bool(run_to_run[1:EARLY].max() > PARTED)
    agrees_then_parts = early[0] <= ROUNDING < PARTED < early[1]
    if in_place and agrees_then_parts and not low and not chaotic:
        return Numerics(
            "changed",
            fact("update-differs", apart=float(early[1]), data=_data(samples)),
        )
    return _against_seeds(ours, baselines, untouched, samples)


def _like_two_runs(
    early: np.ndarray, rounding: np.ndarray, low: bool, data: dict[str, Any] | None
) -> Numerics:
    apart = float(early.max())
    if bool((early <= rounding).all()):
        if not apart:
            return Numerics(
                "within-rounding", fact("first-losses-identical", first=EARLY, data=data)
            )
        why = fact(
            "losses-apart-by-precision" if low else "losses-apart-by-rounding",
            first=EARLY,
            apart=apart,
            data=data,
        )
        return Numerics("within-rounding", why)
    close = apart <= LOW_PRECISION
    return Numerics(
        "within-rounding" if close else "within-seed-noise",
        fact("losses-apart-as-two-runs", first=EARLY, apart=apart, data=data),
    )


def _against_seeds(
    ours: np.ndarray, baselines: list[np.ndarray], untouched: Untouched, samples: SampleComparison
) -> Numerics:
    different: list[np.ndarray] = []  # equal runs of one seed are one run
    for run in [*baselines, *(_column(s.losses) for s in untouched.seeds)]:
        if len(run) >= FEWEST_LOSSES and not any(
            np.allclose(run[:EARLY], d[:EARLY], 1e-4) for d in different
        ):
            different.append(run)
    ours, runs = _common(ours, different)
    enough = len(ours) >= 2 * FEWEST_LOSSES
    if len(runs) < 3 or not enough:
        data = _data(samples)
        why = fact("too-few-losses-for-noise", data=data)
        if enough and untouched.seeds:
            why = fact("other-seeds-alike", data=data)
        elif enough:
            why = fact("other-seeds-not-launched", data=data)
        return Numerics("not-comparable", why, needs_seeds=enough)
    length = block_length(len(ours), untouched.backwards_per_step)
    outside = outside_envelope(ours, runs, length)
    if outside is not None:
        values = {**outside.values, "data": _data(samples)}
        return Numerics("changed", replace(outside, values=values))
    return Numerics(
        "within-seed-noise",
        fact("losses-within-seeds", runs=len(runs), data=_data(samples)),
    )


def _data(samples: SampleComparison) -> dict[str, Any] | None:
    return None if samples.why is None else within(samples.why)


def _column(losses: Sequence[float | None]) -> np.ndarray:
    """Return losses as float64 up to the first that is not finite; NaN for a backward without."""
    column = np.array([np.nan if loss is None else loss for loss in losses], dtype=np.float64)
    bad = [i for i, loss in enumerate(losses) if loss is not None and not np.isfinite(loss)]
    return column[: bad[0]] if bad else column


def _common(ours: np.ndarray, runs: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    if not runs:
        return ours, runs
    length = min(len(ours), *(len(run) for run in runs))
    table = np.stack([ours[:length], *(run[:length] for run in runs)])
    table = table[:, ~np.isnan(table).any(axis=0)]
    return table[0], list(table[1:])


def _relative(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    # A loss that crosses zero has no relative difference, so the early losses give the scale.
    scale = np.maximum(np.abs(right), np.median(np.abs(right[:EARLY])))
    relative: np.ndarray = np.abs(left - right) / np.maximum(scale, np.finfo(np.float64).tiny)
    return relative


def _run_to_run(baselines: list[np.ndarray]) -> np.ndarray:
    """Return the largest relative difference so far between two runs with the same seed."""
    largest = np.zeros(len(baselines[0]))
    for other in baselines[1:]:
        largest = np.maximum(largest, _relative(other, baselines[0]))
    return np.maximum.accumulate(largest)


def compare_outputs(trial: LaunchTiming, untouched: Untouched, keeps: str) -> Numerics:
    """Compare what the models of a program that infers gave: figures of outputs, and decisions."""
    decisions = _compared_decisions(trial, untouched)
    figures = _compare_figures(trial, untouched, keeps, decisions)
    return replace(figures, of_outputs=True, decisions=decisions)


def _compare_figures(
    trial: LaunchTiming, untouched: Untouched, keeps: str, decisions: ComparedDecisions | None
) -> Numerics:
    baselines = [_column(b.losses) for b in untouched.baselines]
    ours, baselines = _common(_column(trial.losses), [b for b in baselines if len(b)])
    if not baselines or len(ours) < FEWEST_OUTPUTS:
        outputs = len(ours) if baselines else 0
        return Numerics(
            "not-comparable",
            fact("too-few-outputs", outputs=outputs, fewest=FEWEST_OUTPUTS)
            if outputs
            else fact("no-outputs-of-both", fewest=FEWEST_OUTPUTS),
        )
    if all(np.array_equal(ours, b) for b in baselines):
        return Numerics("identical", fact("outputs-identical", outputs=len(ours)))
    apart = min((_relative(ours, b) for b in baselines), key=lambda each: float(each.max()))
    rounds = keeps == "lower precision"
    low = untouched.low_precision or rounds
    run_to_run = float(_run_to_run(baselines).max())
    farthest = float(apart.max())
    of_float32 = max(OUTPUTS_ROUNDING, 3.0 * run_to_run)
    allowed = max(OUTPUTS_LOW_PRECISION, of_float32) if low else of_float32

    def told(ident: str) -> Evidence:
        agree = _agreeing(decisions) if decisions else None
        return fact(ident, outputs=len(ours), apart=farthest, decisions=agree)

    if farthest > allowed and untouched.corrects:
        return Numerics("corrected", told("outputs-corrected"))
    decides_alike = decisions is None or decisions.decided - decisions.same <= (
        DECISIONS * decisions.decided
    )
    # Fewer digits move every figure; what is decided tells whether that matters.
    if rounds and farthest > of_float32 and decisions is not None and decides_alike:
        return Numerics("same-decisions", told("outputs-apart"))
    if farthest > allowed:
        return Numerics("changed", told("outputs-differ"))
    # A program in low precision has rounded its own decisions: those with more digits are no worse.
    is_rounder = rounds or not untouched.low_precision
    if decisions is not None and not decides_alike and is_rounder:
        return Numerics("changed", _altered(decisions))
    by = "outputs-apart-by-precision" if low else "outputs-apart-by-rounding"
    return Numerics("within-rounding", told(by))


def _agreeing(decisions: ComparedDecisions) -> dict[str, Any]:
    """Return how many decisions are the same as a value of another fact."""
    if decisions.same == decisions.decided:
        return within(fact("decisions-same", decided=decisions.decided))
    return within(
        fact(
            "decisions-partly-same",
            same=decisions.same,
            decided=decisions.decided,
            examples=_examples(decisions),
        )
    )


def _altered(decisions: ComparedDecisions) -> Evidence:
    return fact(
        "decisions-altered",
        altered=decisions.decided - decisions.same,
        decided=decisions.decided,
        examples=_examples(decisions),
    )


def _examples(decisions: ComparedDecisions) -> list[dict[str, Any]]:
    return [asdict(example) for example in decisions.examples]


def _compared_decisions(trial: LaunchTiming, untouched: Untouched) -> ComparedDecisions | None:
    """Compare decisions with the nearest baseline's; None: there are none of both.

    Those are left out in which two runs of the untouched program differ.
    """
    runs = [each.decisions for each in untouched.baselines if each.decisions]
    if not runs or not trial.decisions:
        return None
    compared = [_apart(trial.decisions, run) for run in runs]
    apart, decided = min(compared, key=lambda each: len(each[0]) / max(each[1], 1))
    if not decided:
        return None
    runs_apart = max((len(_apart(run, runs[0])[0]) for run in runs[1:]), default=0)
    same = decided - max(len(apart) - runs_apart, 0)
    examples = apart[:_EXAMPLES] if same < decided else []
    return ComparedDecisions(decided=decided, same=same, share=same / decided, examples=examples)


def _apart(
    ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> tuple[list[AlteredDecision], int]:
    """Return the decisions that differ, and how many both made."""
    apart = list[AlteredDecision]()
    decided = 0
    for number, both in enumerate(zip(ours, theirs, strict=False), 1):
        for after, before in itertools.zip_longest(*both):
            decided += 1
            if after != before:
                apart.append(AlteredDecision(output=number, before=before, after=after))
    return apart, decided


def _not_finite(trial: LaunchTiming, untouched: Untouched) -> Evidence | None:
    losses = trial.losses
    bad = next(
        (i for i, loss in enumerate(losses) if loss is not None and not np.isfinite(loss)), None
    )
    if bad is None:
        return None
    for baseline in untouched.baselines:
        theirs = [loss for loss in baseline.losses[: bad + 1] if loss is not None]
        if theirs and not np.isfinite(theirs).all():
            return None  # the untouched program's own loss is broken by then
    # As text: JSON has no number for it.
    return fact("loss-turned-not-finite", number=bad + 1, loss=str(trial.losses[bad]))


def _other_backwards(trial: LaunchTiming, untouched: Untouched) -> Evidence | None:
    def per_step(timing: LaunchTiming) -> float:
        steps = timing.iterations or untouched.warmup_steps + len(timing.step_s)
        return len(timing.losses) / steps

    theirs = [per_step(b) for b in untouched.baselines if b.losses and b.step_s]
    if not theirs or not trial.step_s:
        return None
    ours = per_step(trial)
    low = min(theirs)
    high = max(theirs)
    if low * (1 - BACKWARDS) <= ours <= high * (1 + BACKWARDS):
        return None
    return fact("other-backwards", backwards=ours, untouched=low)


def block_length(losses: int, backwards_per_step: float = 1.0) -> int:
    """Return the losses in a block: about six blocks of whole iterations, at least four losses."""
    step = max(1, round(backwards_per_step))
    return max(4, step * max(1, losses // 6 // step))


def block_means(losses: np.ndarray, length: int) -> np.ndarray:
    """Return the mean loss of each whole block, shape (blocks,); at least one block."""
    blocks = max(1, len(losses) // length)
    return np.array([part.mean() for part in np.array_split(losses[: blocks * length], blocks)])


def block_error(losses: np.ndarray, length: int) -> np.ndarray:
    """Return the standard error of each block's mean by the losses' scatter, shape (blocks,)."""
    blocks = max(1, len(losses) // length)
    parts = np.array_split(losses[: blocks * length], blocks)
    # Neighbours' differences leave the trend out.
    return np.array([np.sqrt((np.diff(p) ** 2).mean() / 2 / len(p)) for p in parts])


def drift(ours: np.ndarray, theirs: np.ndarray, length: int) -> float:
    """Return how far two runs on the same batches drift apart; rounding may reach 1."""
    apart = np.abs(block_means(ours - theirs, length))
    means = block_means(theirs, length)
    allowed = DRIFT_SHARE * np.ptp(means) + DRIFT_NOISE * block_error(theirs, length)
    return float(np.where(apart > 0, apart / np.maximum(allowed, 1e-300), 0.0).max())


def outside_envelope(ours: np.ndarray, runs: Sequence[np.ndarray], length: int) -> Evidence | None:
    """Return where a run leaves the band that others span; None: it does not.

    `runs`: three or more with different seeds, as long as `ours`; `length`: losses in a block.
    """
    means = np.stack([block_means(run, length) for run in runs])
    centre = means.mean(axis=0)
    error = np.sqrt(np.mean([block_error(run, length) ** 2 for run in runs], axis=0))
    error = np.maximum(error, 1e-12 + 1e-6 * np.abs(centre))
    # Few runs know the spread of one block badly; all blocks together know how many times the
    # batch noise it is.
    between = means.var(axis=0, ddof=1)
    ratio = np.sqrt(max(1.0, float(np.mean(between / error**2))))
    spread = np.maximum(np.sqrt((between + (ratio * error) ** 2) / 2), ratio * error)
    of_centre = np.sqrt(1.0 + 1.0 / len(runs))
    distances = (block_means(ours, length) - centre) / (spread * of_centre)
    worst = int(np.abs(distances).argmax())
    trend = float(distances[len(distances) // 2 :].mean())
    if abs(distances[worst]) > FARTHEST:
        begin = worst * length
        apart = float(distances[worst])
        return fact(
            "losses-above" if apart > 0 else "losses-below",
            first=begin + 1,
            last=begin + length,
            deviations=abs(apart),
            runs=len(runs),
        )
    if abs(trend) > FARTHEST_TREND:
        ident = "later-losses-above" if trend > 0 else "later-losses-below"
        return fact(ident, deviations=abs(trend), runs=len(runs))
    return None
