"""Screening within one launch: fixes that are switched on and off, and ceilings.

A ceiling is a cost that is taken away, to bound what a fix for it can gain. Blocks of such a launch
hold for that launch alone: they choose which fixes fresh launches confirm, and alone confirm none.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from torchdoctor.advice import catalogue
from torchdoctor.bench.failures import why_refused
from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.schema import (
    FixSet,
    Interval,
    Recording,
    StepStatistics,
    SwitchedLaunch,
    TriedCeiling,
    fact,
    within,
)
from torchdoctor.trials import compare
from torchdoctor.trials.arm_specs import ABLATION, ArmSpecs
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.log import Log, Series

FEWEST_ROUNDS = 3
_FEWEST_PAIRS = 3  # pairs of blocks that judge an arm
_FAR_SLOWER = 2.0  # times the untouched step
_MOST_ATTEMPTS = 3  # launches, if ceilings end the program
_CEILINGS_SHARE = 0.1  # part of the budget that ceilings may cost
_NOTHING = 1.02  # an interval that ends below this is no gain
_SLOWER = 0.98  # an interval that ends below this: the replacement costs more than the cost itself
_OTHER_CONDITIONS = 0.6  # untouched blocks / observed step: below this they cannot be compared
_HIGH = 0.2  # share of the step from which a reader expects a gain
_DECIDED = ("gain", "hidden", "nothing")


@dataclass(frozen=True, kw_only=True)
class CeilingTrial:
    """A cost that is taken away, as an arm of a switching launch; `row`: before it was tried."""

    row: TriedCeiling
    fixes: FixSet

    def arm(self, specs: ArmSpecs) -> Arm:
        """Return the arm that takes turns with the fixes, and is never a candidate."""
        return Arm(key=ABLATION + self.row.ceiling, spec=specs.of(self.fixes))


def ceiling_trials(recording: Recording, bottleneck: str) -> list[CeilingTrial]:
    """Return the ceilings that apply, the bottleneck's branch first, then the largest share."""
    trials = []
    for ident, ceiling in catalogue.ceilings().items():
        values = ceiling.settings(recording)
        if values is None:
            continue
        row = TriedCeiling(
            ceiling=ident,
            branch=ceiling.branch_in(recording),
            removes=ceiling.removes,
            share=ceiling.share(recording),
            whole=ceiling.takes_all(recording),
        )
        trials.append(CeilingTrial(row=row, fixes=FixSet.of(ABLATION + ident, values)))
    return sorted(
        trials, key=lambda trial: (trial.row.branch != bottleneck, -(trial.row.share or 0.0))
    )


def abandon(
    launch: SwitchedLaunch, arms: Sequence[Arm], ceilings: Sequence[Arm], enough: int
) -> bool:
    """Give up arms that were refused, and ceilings that did not come off, each with its reason.

    With `enough` blocks an arm is judged even if the program ended after them. Return True if a
    ceiling ended the program: then the launch is worth repeating without it.
    """
    for arm, states in zip(arms, launch.arms, strict=False):
        states_of_no_use = ("refused", "failed") if arm in ceilings else ("refused",)
        lacking = next((state for state in states if state.state in states_of_no_use), None)
        if lacking is not None:
            arm.refused = why_refused(lacking) if lacking.why else fact("could-not-be-tried")
    if launch.failed_in is None:
        return False
    blocks = Counter(block.arm for block in launch.blocks)
    why = within(launch.why or fact("program-failed"))
    if launch.failed_in:
        guilty = [launch.failed_in]
        reason = fact("did-not-go-on", why=why)
        # Earlier blocks went through: the machine is slow, or the launch was long.
        slow = launch.ended == "timed-out" and blocks[launch.failed_in] > 0
    else:  # what a ceiling left behind may have ended the program
        guilty = [n for n in blocks if n]
        reason = fact("failed-after-it", why=why)
        slow = launch.ended == "timed-out"
    given_up = [arms[n - 1] for n in guilty if arms[n - 1] in ceilings and blocks[n] < enough]
    for arm in given_up if not slow else []:
        arm.refused = arm.refused or reason
    return bool(given_up) and not slow


def tried(
    ceilings: Sequence[tuple[CeilingTrial, Arm]],
    evidence: Evidence,
    launched: set[str] | None,
    conditions: float | None = None,
) -> list[TriedCeiling]:
    """Return the outcome of each ceiling.

    `launched`: keys of the arms that a launch was started with; None: there can be none.
    `conditions`: the untouched step in their blocks / the observed step.
    """
    outcomes = []
    for trial, arm in ceilings:
        differences = [] if arm.refused else evidence.differences(arm, "blocks")
        speedup = compare.interval(differences)
        verdict = _verdict(speedup, trial.row.share)
        why = arm.refused or fact("too-few-blocks") if speedup is None else None
        if conditions is not None and conditions < _OTHER_CONDITIONS and verdict in _DECIDED:
            verdict = "unclear"
            why = fact("other-conditions", times=conditions)
        if launched is None or arm.key not in launched:
            verdict = "not-tried"
            why = fact("blocks-not-comparable" if launched is None else "no-time-for-ceiling")
        pairs = len(differences) if speedup is not None else 0
        row = replace(trial.row, speedup=speedup, verdict=verdict, why=why, pairs=pairs)
        outcomes.append(row)
    return outcomes


def bounded(ceiling: float, tried: TriedCeiling) -> tuple[float, float]:
    """Return the most that a fix can gain, and the part of the cost that counts (1 at most).

    The share of the step promised `ceiling`; by the experiment the cost may count for more, or be
    hidden behind other work.
    """
    if tried.speedup is None or tried.verdict == "slower" or tried.why is not None:
        return ceiling, 1.0  # it shows nothing of this step
    removable = 1.0 - 1.0 / max(tried.speedup.high, 1.0)
    share = tried.share or removable or 1.0
    most = 1.0 / (1.0 - removable * min((1.0 - 1.0 / ceiling) / share, 1.0))
    return most if tried.decided else min(most, ceiling), min(removable / share, 1.0)


def conditions(switched: Sequence[Series], steps: StepStatistics | None) -> float | None:
    """Return the untouched step in blocks of one launch / the observed step; None: not known.

    The median step within a block would mislead: a program that does not wait for its GPU is ahead
    of it, and the last step of the block makes up for that. So blocks count by their mean steps.
    """
    typical = fmean if steps is not None and steps.two_modes else median
    times = [
        fmean(block.step_s) for each in switched for block in each.of(BASELINE) if block.step_s
    ]
    if steps is None or not times:
        return None
    observed_s = steps.mean_s if steps.two_modes else steps.median_s
    return typical(times) / observed_s if observed_s > 0 else None


def _verdict(speedup: Interval | None, share: float | None) -> str:
    if speedup is None:
        return "abandoned"
    if speedup.high < _SLOWER:
        return "slower"
    if speedup.high < _NOTHING:
        return "hidden" if (share or 0.0) >= _HIGH else "nothing"
    return "gain" if speedup.low > 1.0 else "unclear"


def switch_arms(log: Log, arms: Sequence[Arm], ceilings: Sequence[Arm], rounds: int) -> None:
    """Compare these arms, and as many ceilings as cost a tenth of the budget, within one launch.

    A launch that a ceiling brings to its end is repeated without that ceiling.
    """
    for _ in range(_MOST_ATTEMPTS):
        undecided = [arm for arm in arms if not _is_decided(log, arm)]
        alive = [arm for arm in ceilings if not _is_decided(log, arm)]
        chosen = affordable_ceilings(log, undecided, alive, rounds)
        turns = [*undecided, *chosen]
        if not turns or not _repeat(log, turns, chosen, rounds):
            return


def switch_s(log: Log, arms: Sequence[Arm], rounds: int) -> float:
    """Return the seconds of a launch in which these arms take turns; infinite: none has room."""
    return log.engine.expected_switch_s([arm.spec for arm in arms], rounds)


def affordable_ceilings(
    log: Log, arms: Sequence[Arm], ceilings: Sequence[Arm], rounds: int = FEWEST_ROUNDS
) -> list[Arm]:
    """Return the ceilings, from the first, that cost a tenth of the whole budget at most."""
    most_s = min(_CEILINGS_SHARE * (log.budget.seconds or math.inf), log.budget.left())
    without_s = switch_s(log, arms, rounds) if arms else 0.0
    for count in range(len(ceilings), 0, -1):
        with_s = switch_s(log, [*arms, *ceilings[:count]], rounds)
        if not math.isinf(with_s) and with_s - without_s <= most_s:
            return list(ceilings[:count])
    return []


def _repeat(log: Log, turns: Sequence[Arm], ceilings: Sequence[Arm], rounds: int) -> bool:
    """Launch once; return True if another launch without some ceiling makes sense."""
    launch = log.switch(turns, rounds)
    broken = abandon(launch, turns, ceilings, _FEWEST_PAIRS)
    applied = [[state.state == "applied" for state in states] for states in launch.arms]
    kept = {0, *(n for n, states in enumerate(applied, 1) if states and all(states))}
    blocks = [block for block in launch.blocks if block.arm in kept]
    log.switched.append(Series(keys=[BASELINE, *(arm.key for arm in turns)], blocks=blocks))
    return broken


def _is_decided(log: Log, arm: Arm) -> bool:
    blocks = [block for series in log.switched for block in series.of(arm.key)]
    if arm.refused or len(blocks) >= _FEWEST_PAIRS:
        return True
    # A block that takes twice as long decides alone: a launch would take twice as long as well.
    plain = [
        seconds
        for series in log.switched
        for block in series.of(BASELINE)
        for seconds in block.step_s
    ]
    slower = _FAR_SLOWER * median(plain) if plain else math.inf
    return bool(blocks) and all(median(block.step_s) > slower for block in blocks)
