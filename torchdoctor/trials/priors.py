"""Tells the search policy of candidates before anything was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchdoctor.trials import beliefs
from torchdoctor.trials.arms import Arm, FixFacts
from torchdoctor.trials.samples import Preparation
from torchdoctor.words import StepStatistics

# Times the probability of the fix's file, if it does not treat the named bottleneck.
_BESIDE_THE_BOTTLENECK, _LOWER_PRECISION = 0.6, 0.4
_FURTHER_SETTING = 0.8  # times the probability: a value that the fix does not name
_UNKNOWN_CEILING = 1.5  # speed-up at most, where no share of the step is known
# Of these phases the best fix alone counts: workers and a cache both end the same wait.
_COMPETING = frozenset({"data_wait_s", "loader_start_s"})
_PHASES = (
    *("data_wait_s", "loader_start_s", "h2d_copy_s", "forward_s", "backward_s"),
    *("optimizer_s", "other_s", "before_forward_s", "gc_s"),
)


def believed_step(steps: StepStatistics | None) -> beliefs.Step:
    """Return the share of each phase of the observed step."""
    if steps is None or steps.mean_s <= 0:
        return beliefs.Step()
    shares = {phase: max(getattr(steps, phase), 0.0) / steps.mean_s for phase in _PHASES}
    return beliefs.Step(shares=shares, competing=_COMPETING)


def believed_arm(arm: Arm) -> beliefs.Arm:
    """Return what is known of a candidate before anything was measured."""
    assert arm.candidate is not None
    facts, candidate = arm.facts, arm.candidate
    p_helps = facts.p_helps
    if not candidate.main:
        p_helps *= _LOWER_PRECISION if facts.risk >= 2 else _BESIDE_THE_BOTTLENECK
    setting = facts.ladder.setting if facts.ladder is not None else None
    value = arm.fixes[0][1].get(setting) if setting is not None else None
    company = [fix for fix, _ in arm.fixes]
    ceiling = min(candidate.ceiling or _UNKNOWN_CEILING, candidate.bound or float("inf"))
    return beliefs.Arm(
        name=arm.key,
        fixes=frozenset(company) | facts.includes,
        family=" + ".join(company) if value is not None else "",
        setting=value,
        phases=facts.phases,
        p_helps=p_helps * (_FURTHER_SETTING if arm.further else 1.0),
        ceiling=max(ceiling, 1.0),
        risk=facts.risk,
        switches=facts.switches,
        once_s=facts.setup_s,
        may_reseed=facts.how.elsewhere and facts.how.draws_random is True and facts.risk < 3,
    )


def with_further_settings(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms and, after those of each fix with a ladder, more values of its setting."""
    extended = list(arms)
    for fix in dict.fromkeys(arm.fixes[0][0] for arm in arms):
        alike = [arm for arm in arms if [name for name, _ in arm.fixes] == [fix]]
        ladder = alike[0].facts.ladder if alike else None
        if ladder is None:
            continue
        last, settings = alike[-1], alike[-1].fixes[0][1]
        named = [int(arm.fixes[0][1][ladder.setting]) for arm in alike]
        for value in ladder.further(named):
            key = f"{last.key}-{value}"
            values = {**settings, ladder.setting: value}
            more = last.with_settings(key, values, further=True)
            extended.insert(extended.index(last) + 1, more)
    return extended


def facts_together(facts: Iterable[FixFacts]) -> FixFacts:
    """Return the facts of fixes that are switched on together: the riskiest's promise."""
    known = list(facts)
    riskiest = max(known, key=lambda each: each.risk)
    return replace(
        riskiest,
        setup_s=sum(each.setup_s for each in known),
        includes=frozenset().union(*(each.includes for each in known)),
        phases=known[0].phases,
        switches=all(each.switches for each in known),
        how=Preparation.together(each.how for each in known),
        doubted=any(each.doubted for each in known),
        p_helps=known[0].p_helps,
    )


def together(members: Sequence[Arm], key: str, setup_s: float) -> Arm:
    """Return the arm of a set: each fix once, as the first member has it."""
    fixes = {fix: settings for arm in reversed(members) for fix, settings in reversed(arm.fixes)}
    ordered = [
        (fix, fixes[fix]) for fix in dict.fromkeys(f for arm in members for f, _ in arm.fixes)
    ]
    facts = facts_together(arm.facts for arm in members)
    return Arm(key=key, fixes=ordered, facts=replace(facts, setup_s=setup_s))
