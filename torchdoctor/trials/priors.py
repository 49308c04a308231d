"""What the search believes of each candidate before anything was measured.

It follows from the candidate itself (its reason, and what its fix can gain at most), from facts of
the fix, and from ceilings, if these were tried.
"""

from collections.abc import Callable, Sequence

from torchdoctor.schema import Candidate, StepStatistics, TriedCeiling
from torchdoctor.trials import beliefs, ceilings
from torchdoctor.trials.arms import COMPETING, Arm, FixFacts, Ladder
from torchdoctor.trials.beliefs import Members

# Times the probability of the fix's file, if it does not treat what was diagnosed.
_BESIDE_THE_BOTTLENECK = 0.6
_LOWER_PRECISION = 0.4
_FURTHER_SETTING = 0.8  # times the probability: a value that the fix does not name
_SETTING_SEEN = 0.7  # a wrong setting that was seen: it gained in 8 of 9 programs
_UNKNOWN_CEILING = 1.5  # speed-up at most, where no share of the step is known
_PHASES = (
    "data_wait_s",
    "loader_start_s",
    "h2d_copy_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "other_s",
    "before_forward_s",
    "gc_s",
)


def prior_step(steps: StepStatistics | None) -> beliefs.Step:
    """Return the shares of the observed step; none are known where it was not observed."""
    if steps is None or steps.mean_s <= 0:
        return beliefs.Step()
    shares = {phase: max(getattr(steps, phase), 0.0) / steps.mean_s for phase in _PHASES}
    return beliefs.Step(shares=shares, competing=COMPETING)


def prior_arms(
    candidates: Sequence[Arm], tried: Sequence[TriedCeiling], can_switch: Callable[[Arm], bool]
) -> list[beliefs.Arm]:
    """Return what is believed of each candidate; `tried`: the outcomes of ceilings so far."""
    whole_ceilings = {ceiling.branch: ceiling for ceiling in tried if ceiling.whole}
    ladders = {arm.fixes.first: arm.facts.ladder for arm in candidates}
    return [
        _prior_arm(
            arm,
            ceiling=_ceiling_of(arm, whole_ceilings),
            ladder=_ladder_of(arm, ladders),
            plain=_plain_of(arm, candidates),
            switches=can_switch(arm),
        )
        for arm in candidates
    ]


def _ceiling_of(arm: Arm, by_branch: dict[str, TriedCeiling]) -> TriedCeiling | None:
    """Return the tried ceiling of all that an arm treats; None: it was not tried, or in parts."""
    if len(arm.facts.branches) != 1:
        return None
    [branch] = arm.facts.branches
    return by_branch.get(branch)


def _ladder_of(arm: Arm, ladders: dict[str, Ladder | None]) -> Ladder | None:
    """Return the ladder of an arm's first fix, or else of one that this applies as well."""
    for fix in (arm.fixes.first, *arm.facts.includes):
        ladder = ladders.get(fix)
        if ladder is not None:
            return ladder
    return None


def _plain_of(arm: Arm, candidates: Sequence[Arm]) -> Members:
    """Return the candidate of an arm's first fix without those that only go with it."""
    if arm.fixes.only is not None:
        return frozenset()
    first_alone = arm.fixes.limited_to([arm.fixes.first])
    return frozenset(other.key for other in candidates if other.fixes == first_alone)


def _prior_arm(
    arm: Arm, *, ceiling: TriedCeiling | None, ladder: Ladder | None, plain: Members, switches: bool
) -> beliefs.Arm:
    assert arm.candidate is not None
    facts = arm.facts
    first = arm.fixes.first
    setting = None if ladder is None else arm.fixes[first].get(ladder.setting)
    p_helps = _likely(arm.candidate, facts)
    most = _most(arm.candidate)
    if ceiling is not None:
        most, counting_part = ceilings.bounded(most, ceiling)
        p_helps *= counting_part
    if arm.further:
        p_helps *= _FURTHER_SETTING
    return beliefs.Arm(
        name=arm.key,
        fixes=facts.includes.union(arm.fixes),
        family=frozenset() if setting is None else facts.includes.union([first]),
        setting=float(setting or 0.0),
        phases=facts.phases,
        p_helps=p_helps,
        ceiling=max(most, 1.0),
        risk=facts.risk,
        owed=facts.corrects or (arm.candidate.named == "measured" and not arm.further),
        corrects=facts.corrects,
        switches=switches,
        once_s=arm.spec.setup_s,
        may_reseed=facts.how.elsewhere and facts.how.draws_random is True and facts.risk < 3,
        plain=plain,
    )


def _likely(candidate: Candidate, facts: FixFacts) -> float:
    """Return how likely a fix is to help, by what it is tried for."""
    if candidate.named == "setting":
        return max(facts.p_helps, _SETTING_SEEN)
    if candidate.named:
        return facts.p_helps
    lower_precision = facts.risk >= 2
    return facts.p_helps * (_LOWER_PRECISION if lower_precision else _BESIDE_THE_BOTTLENECK)


def _most(candidate: Candidate) -> float:
    """Return the speed-up that a candidate can have at most, by shares of the observed step."""
    most = candidate.ceiling or _UNKNOWN_CEILING
    return min(most, candidate.bound) if candidate.bound else most
