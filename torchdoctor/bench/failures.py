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
from torchdoctor.schema import Evidence, LaunchTiming, fact
from torchdoctor.schema.figures import counted

_MOST_CRASHES = 3  # where the other program had not come as far: perhaps it crashes too
_FEWEST_ALONE = 2  # arms that fail beside another launch and not alone: nothing can run twice


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An arm that cannot be measured; `kind`: as `LaunchTiming.ended`, or "late", "refused"."""

    name: str
    reason: str
    kind: str = "failed"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A pair that gave nothing, and may be tried again; with half a sentence."""

    reason: str
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
    apart: dict[str, str] = field(default_factory=dict)  # by arm, why it failed beside another
    # By arm, the reasons of what was forgiven.
    broke_down: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
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

    def remarks(self, name: str) -> list[str]:
        """Return what the row of an arm is to say of its launches."""
        remarks = [f"{why}; that pair is not counted" for why in self.broke_down[name]]
        if name in self.apart:
            remarks.append(f"started beside another launch it failed ({self.apart[name]})")
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
        reason = failure(timing, history.usable)
        if reason is None:
            history.usable += 1
            history.in_a_row = 0
            return None
        history.in_a_row += 1
        if arm.is_baseline and self.patience == 0:
            return self._out(arm, reason, timing, is_final=history.in_a_row > 1)
        return self._broke_down(arm, reason, timing)

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
            ended = next((launch.reason for launch in (timing, beside) if not launch.stopped), None)
            return self._set_apart(arm, ended or "its first block of steps did not end")
        self._ran_twice = True
        for side in arms:
            self._known[side.name].usable += 1
        return None

    def _judge(self, arm: LaunchSpec, timing: LaunchTiming, beside: LaunchTiming) -> Outcome | None:
        if (refused := self._refused(arm, timing)) is not None:
            return refused
        history = self._known[arm.name]
        reason = failure(timing, history.usable)
        if arm.is_baseline or (reason is None and not timing.late):
            return None
        went_on = max(self._baseline_went, beside.went) > timing.went
        if timing.late and (went_on if timing.blocks else not timing.stopped):
            return self._hung(arm, timing)
        if timing.blocks and timing.ended == "failed" and not timing.stopped:
            if timing.went >= self._own_end:
                return None  # so does the untouched program
            history.crashes += 1
            reason = reason or "The program failed."
            if went_on:
                return self._broke_down(arm, reason, timing)
            return self._out(arm, reason, timing, is_final=history.crashes >= _MOST_CRASHES)
        could_not = any(fix.state == "failed" for fix in timing.fixes)
        if not could_not and (timing.stopped or timing.late):
            return None  # it was ended because the other one failed
        return self._set_apart(arm, timing.reason or "no block of steps was measured")

    def _refused(self, arm: LaunchSpec, timing: LaunchTiming) -> Failed | None:
        reason = refusal([fix.id for fix in arm.fixes], timing)
        if reason is None:
            return None
        self._known[arm.name].out = True
        return Failed(name=arm.name, reason=reason, kind="refused")

    def _hung(self, arm: LaunchSpec, timing: LaunchTiming) -> Outcome:
        history = self._known[arm.name]
        stage = "a block of its steps" if timing.blocks else "its warm-up"
        history.hung += 1
        # Once, after pairs that ran, it may be the machine: what hangs will do so again.
        if not history.usable or history.hung > 1:
            reason = f"{stage.capitalize()} did not end, so it was given up."
            return self._broke_down(arm, reason, timing)
        self.broke_down[arm.name].append(f"{stage} did not end once")
        return Lost(reason=f"{stage} did not end")

    def _broke_down(self, arm: LaunchSpec, reason: str, timing: LaunchTiming) -> Outcome:
        history = self._known[arm.name]
        history.failures += 1
        is_final = history.failures > self.patience
        if not is_final and timing.blocks:
            self.broke_down[arm.name].append(reason)
        return self._out(arm, reason, timing, is_final=is_final)

    def _out(self, arm: LaunchSpec, reason: str, timing: LaunchTiming, is_final: bool) -> Outcome:
        if not is_final:
            return Lost(reason=reason)
        self._known[arm.name].out = True
        return Failed(name=arm.name, reason=reason, kind="late" if timing.late else timing.ended)

    def _set_apart(self, arm: LaunchSpec, why: str) -> Lost:
        """Launch an arm by itself from here on; its row says what became of it beside another."""
        history = self._known[arm.name]
        if not arm.is_baseline and history.apart_since is None:
            history.apart_since = history.usable
            self.apart[arm.name] = why.rstrip(".")
        return Lost(reason=why)


def refusal(fixes: Iterable[str], timing: LaunchTiming) -> str | None:
    """Return why a launch did not have all these fixes applied, or None."""
    for fix in fixes:
        reasons = {applied.state: applied.reason for applied in timing.fixes if applied.fix == fix}
        if "refused" in reasons:
            return reasons["refused"] or f"{fix} refused to be applied."
        if usable(timing) and not {"applied", "failed"} & set(reasons):
            return reasons.get("pending") or f"{fix} found nothing to apply to."
    return None


def failure(timing: LaunchTiming, usable_before: int = 0) -> str | None:
    """Return why a launch cannot be used, or None; `usable_before`: launches that were fine."""
    for applied in timing.fixes:
        if applied.state == "failed":
            return f"{applied.fix} could not be applied: {applied.reason or 'no reason given'}"
    if usable(timing):
        return None
    reason = timing.reason or "The program failed."
    if timing.ended in MEASURED:
        reason = "No step was measured."
    if usable_before:
        before = counted(usable_before, "launch", "launches")
        reason = f"{reason.rstrip('.')}, after {before} without a failure."
    return reason
