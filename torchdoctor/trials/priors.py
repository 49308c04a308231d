"""Tells the search policy of candidates before anything was measured."""

from __future__ import annotations

from torchdoctor.trials import beliefs
from torchdoctor.trials.arms import Arm
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


def believed_arm(arm: Arm, switches: bool) -> beliefs.Arm:
    """Return what is known of a candidate before anything was measured."""
    assert arm.candidate is not None
    facts, candidate = arm.facts, arm.candidate
    p_helps = facts.p_helps
    if not candidate.main:
        p_helps *= _LOWER_PRECISION if facts.risk >= 2 else _BESIDE_THE_BOTTLENECK
    setting = facts.ladder.setting if facts.ladder is not None else None
    value = arm.fixes[0][1].get(setting) if setting is not None else None
    ceiling = min(candidate.ceiling or _UNKNOWN_CEILING, candidate.bound or float("inf"))
    return beliefs.Arm(
        name=arm.key,
        fixes=frozenset(arm.ids) | facts.includes,
        family=" + ".join(arm.ids) if value is not None else "",
        setting=value,
        phases=facts.phases,
        p_helps=p_helps * (_FURTHER_SETTING if arm.further else 1.0),
        ceiling=max(ceiling, 1.0),
        risk=facts.risk,
        switches=switches,
        once_s=arm.spec.setup_s,
        may_reseed=facts.how.elsewhere and facts.how.draws_random is True and facts.risk < 3,
    )
