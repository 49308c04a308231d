"""Decides what a launch that went wrong means for its arm, for `run` and `gate`.

- A fix that was not applied is refused.
- An arm that fails before its first block beside another launch, or runs out of memory there, is
  launched by itself from then on: a fixed port or a lock may be the reason.
- An arm that fails or hangs after blocks, where the other program went on, has broken down; else
  the pair is repeated. What was measured before the untouched program's own failure counts.
- The untouched program may fail by itself once; twice in a row it cannot be measured.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchdoctor.bench.pair_times import MEASURED, usable
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.schema import (
    AppliedFix,
    Evidence,
    LaunchTiming,
    fact,
    within,
)

# Facts of a launch that failed for its fix.
NOT_APPLIED = ("could-not-apply", "could-not-apply-silently")
_MOST_CRASHES = 3  # where the other program had not come as far: perhaps it crashes too
_FEWEST_ALONE = 2  # arms that fail beside another launch and not alone: nothing can run twice


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An arm that cannot be measured; `kind`: as `LaunchTiming.ended`, or "late", "refused"."""

    name: str
    why: Evidence
    kind: str = "failed"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A pair that gave nothing, and may be tried again."""

    why: Evidence
    cut_off: bool = False  # by the end of the budget


Outcome = Failed | Lost


@dataclass
class _History:
    """What became of the launches of one arm."""

    usable: int = 0
    failures: int = 0
    in_a_row: int = 0
    crashes: int = 0
    hung: int = 0
    apart_since: int | None = None  # usable launches when it was set apart
    out: bool = False


@dataclass
class Failures:
    """Remembers how launches ended, and says what becomes of their arms."""

    patience: int = 0  # failures of an arm that are forgiven
    # By arm, why it failed beside another.
    apart: dict[str, Evidence] = field(default_factory=dict)
    # By arm, the reasons of what was forgiven.
    broke_down: dict[str, list[Evidence]] = field(default_factory=lambda: defaultdict(list))
    works_twice: bool = True  # the program was not seen to run by itself alone
    _ran_twice: bool = False
    # Iterations that the untouched program did, and after which it failed by itself.
    _baseline_went: int = 0
    _own_end: float = math.inf
    _known: dict[str, _History] = field(default_factory=lambda: defaultdict(_History))

    @property
    def doubts(self) -> list[Evidence]:
        """Return what the launches gave reason to doubt, for the report."""
        doubts = []
        if not self.works_twice:
            doubts.append(fact("never-beside-itself"))
        if not math.isinf(self._own_end):
            doubts.append(fact("untouched-failed", iterations=self._own_end))
        return doubts

    def remarks(self, name: str) -> list[Evidence]:
        """Return what the row of an arm is to say of its launches."""
        remarks = [fact("pair-not-counted", why=within(why)) for why in self.broke_down[name]]
        if name in self.apart:
            remarks.append(fact("failed-beside-another", why=within(self.apart[name])))
        return remarks

    def may_run_beside(self, *arms: LaunchSpec) -> bool:
        """Return True if these may be launched at once."""
        # Several fixes that are fine alone: not they fail, but a fixed port or a lock.
        apart = [history for history in self._known.values() if history.apart_since is not None]
        alone = sum(
            not history.out and history.usable > (history.apart_since or 0) for history in apart
        )
        if alone >= _FEWEST_ALONE and not self._ran_twice:
            self.works_twice = False
        return self.works_twice and all(self._known[arm.name].apart_since is None for arm in arms)

    def after_launch(self, arm: LaunchSpec, timing: LaunchTiming) -> Outcome | None:
        """Judge a launch that ran by itself; None: it counts."""
        if (refused := self._refused(arm, timing)) is not None:
            return refused
        history = self._known[arm.name]
        why = failure(timing, history.usable)
        if why is None:
            history.usable += 1
            history.in_a_row = 0
            return None
        history.in_a_row += 1
        if arm.is_baseline and self.patience == 0:
            return self._out(arm, why, timing, is_final=history.in_a_row > 1)
        return self._broke_down(arm, why, timing)

    def after_pair(
        self, arms: tuple[LaunchSpec, LaunchSpec], timings: tuple[LaunchTiming, LaunchTiming]
    ) -> Outcome | None:
        """Judge two launches side by side, of (against, arm); None: their blocks count."""
        against, arm = arms
        beside, timing = timings
        if against.is_baseline:
            self._baseline_went = max(self._baseline_went, beside.went)
            if beside.ended == "failed" and not beside.stopped and beside.blocks:
                self._own_end = min(self._own_end, beside.went)
        outcome = self._judge(arm, timing, beside) or self._judge(against, beside, timing)
        if outcome is not None:
            return outcome
        if not (timing.blocks and beside.blocks):
            ended = next((launch for launch in (timing, beside) if not launch.stopped), None)
            why = ended.why if ended is not None else None
            return self._set_apart(arm, why or fact("first-block-did-not-end"))
        self._ran_twice = True
        for side in arms:
            self._known[side.name].usable += 1
        return None

    def _judge(self, arm: LaunchSpec, timing: LaunchTiming, beside: LaunchTiming) -> Outcome | None:
        if (refused := self._refused(arm, timing)) is not None:
            return refused
        history = self._known[arm.name]
        why = failure(timing, history.usable)
        if arm.is_baseline or (why is None and not timing.late):
            return None
        went_on = max(self._baseline_went, beside.went) > timing.went
        if timing.late and (went_on if timing.blocks else not timing.stopped):
            return self._hung(arm, timing)
        if timing.blocks and timing.ended == "failed" and not timing.stopped:
            if timing.went >= self._own_end:
                return None  # so does the untouched program
            history.crashes += 1
            why = why or fact("program-failed")
            if went_on:
                return self._broke_down(arm, why, timing)
            return self._out(arm, why, timing, is_final=history.crashes >= _MOST_CRASHES)
        could_not = any(fix.state == "failed" for fix in timing.fixes)
        if not could_not and (timing.stopped or timing.late):
            return None  # it was ended because the other one failed
        return self._set_apart(arm, timing.why or fact("no-block-measured"))

    def _refused(self, arm: LaunchSpec, timing: LaunchTiming) -> Failed | None:
        why = refusal([fix.id for fix in arm.fixes], timing)
        if why is None:
            return None
        self._known[arm.name].out = True
        return Failed(name=arm.name, why=why, kind="refused")

    def _hung(self, arm: LaunchSpec, timing: LaunchTiming) -> Outcome:
        history = self._known[arm.name]
        history.hung += 1
        # Once, after pairs that ran, it may be the machine: what hangs will do so again.
        if not history.usable or history.hung > 1:
            why = fact("block-given-up") if timing.blocks else fact("warm-up-given-up")
            return self._broke_down(arm, why, timing)
        why = fact("block-hung-once") if timing.blocks else fact("warm-up-hung-once")
        self.broke_down[arm.name].append(why)
        return Lost(why=why)

    def _broke_down(self, arm: LaunchSpec, why: Evidence, timing: LaunchTiming) -> Outcome:
        history = self._known[arm.name]
        history.failures += 1
        is_final = history.failures > self.patience
        if not is_final and timing.blocks:
            self.broke_down[arm.name].append(why)
        return self._out(arm, why, timing, is_final=is_final)

    def _out(self, arm: LaunchSpec, why: Evidence, timing: LaunchTiming, is_final: bool) -> Outcome:
        if not is_final:
            return Lost(why=why)
        self._known[arm.name].out = True
        return Failed(name=arm.name, why=why, kind="late" if timing.late else timing.ended)

    def _set_apart(self, arm: LaunchSpec, why: Evidence) -> Lost:
        """Launch an arm by itself from here on; its row says what became of it beside another."""
        history = self._known[arm.name]
        if not arm.is_baseline and history.apart_since is None:
            history.apart_since = history.usable
            self.apart[arm.name] = why
        return Lost(why=why)


def refusal(fixes: Iterable[str], timing: LaunchTiming) -> Evidence | None:
    """Return why a launch did not have all these fixes applied, or None."""
    for fix in fixes:
        states = {applied.state: applied for applied in timing.fixes if applied.fix == fix}
        if "refused" in states:
            return why_refused(states["refused"])
        if usable(timing) and not {"applied", "failed"} & set(states):
            pending = states.get("pending")
            if pending is not None and pending.why is not None:
                return pending.why
            return fact("found-nothing", fix=fix)
    return None


def why_refused(applied: AppliedFix) -> Evidence:
    """Return why a fix refused to be applied, as it said itself in the user's process."""
    return applied.why or fact("refused-silently", fix=applied.fix)


def failure(timing: LaunchTiming, usable_before: int = 0) -> Evidence | None:
    """Return why a launch cannot be used, or None; `usable_before`: launches that were fine."""
    for applied in timing.fixes:
        if applied.state == "failed":
            if applied.why is None:
                return fact("could-not-apply-silently", fix=applied.fix)
            return fact("could-not-apply", fix=applied.fix, why=within(applied.why))
    if usable(timing):
        return None
    why = timing.why or fact("program-failed")
    if timing.ended in MEASURED:
        why = fact("no-step-measured")
    if usable_before:
        why = fact("failed-after-launches", why=within(why), launches=usable_before)
    return why
