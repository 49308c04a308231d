"""Name the cause of a slower program: by the part of the step that grew, and what grew with it.

The rules are asked from the top; a rule above explains what rules below it would also find. What a
check of `run` tells of the time after a change has no rule of its own: the check is asked. The
other rules compare with what was before, sometimes hours ago, which no recording of a run holds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchdoctor.schema import CheckSpec, Evidence, Finding, fact
from torchdoctor.watch.recording import PHASES, Process
from torchdoctor.watch.window import logged_phases, of_level

_MOST = 0.5  # of the added time: what explains the change
_COMPUTES = 0.3  # of the added wait for data: workers that are busy, or a process without a CPU
_STOPPED = 0.05  # seconds of each second more, for which a quota stops the threads
_AS_BEFORE = (0.95, 1.05)  # times the time of a sample


@dataclass(frozen=True)
class Change:
    """Medians of the columns of `means.MEANS` before and after a change; NaN: not measured."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    process: Process = field(default_factory=lambda: Process(host="", pid=0))

    def rise(self, name: str) -> float:
        """Return how much larger a column has become; 0 where it was not measured."""
        rise = self.after[name] - self.before[name]
        return rise if math.isfinite(rise) else 0.0

    def ratio(self, name: str) -> float:
        """Return how many times as large a column has become; 1 where it was not measured."""
        before = self.before[name]
        after = self.after[name]
        is_measured = math.isfinite(before) and math.isfinite(after) and before > 0
        return after / before if is_measured else 1.0

    def share(self, *names: str) -> float:
        """Return the share of the added time of a step that these phases have."""
        return sum(map(self.rise, names)) / max(self.rise("step_s"), 1e-12)

    def explains(self, ratio: float) -> bool:
        """Return whether work that grew by this ratio explains most of the change."""
        return math.log(max(ratio, 1e-9)) >= _MOST * math.log(max(self.ratio("step_s"), 1 + 1e-9))

    def fetch_cpu_share(self) -> float | None:
        """Return which part of the added wait for data is CPU time of the program; None: unknown.

        Without workers no other figure tells what a fetch computes.
        """
        before, after = (
            levels["tree_cpu_s"] * levels["step_s"] for levels in (self.before, self.after)
        )
        waits_s = self.rise("wait")
        if waits_s <= 0 or not math.isfinite(after - before):
            return None
        return min(max((after - before) / waits_s, 0.0), 1.0)

    def changed(self, ident: str, name: str, **values: Any) -> Evidence:
        """Return that a column has changed, as a fact."""
        return fact(ident, before=self.before[name], after=self.after[name], **values)

    def grown(self, ident: str, phase: str) -> Evidence:
        """Return that the time of a phase, or of the wait for ranks, has grown."""
        return fact(ident, phase=phase, before_s=self.before[phase], after_s=self.after[phase])


@dataclass(frozen=True)
class Cause:
    """What changed with the program: the check that tells it, or a name; the facts."""

    name: str
    why: Evidence | None
    finding: Finding | None = None


Rule = Callable[[Change], "Cause | None"]


def cause_of(change: Change) -> Cause:
    """Return the cause of a slower training."""
    return next(filter(None, (rule(change) for rule in RULES)), None) or _phase(change)


def _recompilation(change: Change) -> Cause | None:
    """Return that inputs bring new shapes more often: a first epoch does so at any time."""
    share = max(change.rise("recompiled"), change.rise("new_input"))
    if share < 0.02 or change.share("forward", "backward", "other") < _MOST:
        return None
    if change.rise("recompiled") < 0.02 and change.explains(change.ratio("elements")):
        return None  # larger inputs are enough to explain it
    return Cause("recompilation", fact("new-shapes", share=share))


def _batch(change: Change) -> Cause | None:
    """Return that batches have grown: no size is wrong by itself, so that no check can tell."""
    if not change.explains(change.ratio("samples")):
        return None
    each = change.ratio("step_s") / change.ratio("samples")
    low, high = _AS_BEFORE
    times = None if low < each < high else each
    return Cause("batch", change.changed("batches-grown", "samples", each=times))


def _sequences(change: Change) -> Cause | None:
    """Return that samples have grown: as with batches, only what they were before tells."""
    if not change.explains(change.ratio("elements") / change.ratio("samples")):
        return None
    return Cause("sequences", change.changed("inputs-grown", "elements"))


def _garbage(change: Change) -> Cause | None:
    return _found(change, ("gc",))


def _memory(change: Change) -> Cause | None:
    """Return that memory has become short: by rates that no recording of a run holds."""
    faults = change.rise("process_major_faults")
    rate = max(change.after["swap_in_bytes"], 0.0)
    swapped = change.rise("process_swapped_bytes") > 4e6 and faults > 5
    if swapped or change.rise("swap_in_bytes") > 256e3:
        return Cause("swapping", fact("swaps", mb_per_s=rate / 1e6 if rate > 1e5 else None))
    pressed = change.rise("memory_pressure_s") > 0.05 and faults > 5  # that of others is no cause
    if not pressed and faults < 50:
        return None
    return Cause("memory", fact("files-read-again"))


def _quota(change: Change) -> Cause | None:
    """Return what the check of quotas finds, where it stops the program more than before."""
    if change.rise("throttled_s") < _STOPPED:
        return None
    check = _check_for("cpu-quota")
    findings = check.findings(of_level(change.process, change.after))
    return Cause(check.ident, _largest_growth(change), findings[0]) if findings else None


def _clocks(change: Change) -> Cause | None:
    """Return that a clock has fallen: what is low for a processor, only its own past tells."""
    if change.ratio("gpu_clock_mhz") < 0.93 and change.after["gpu_throttle"] > 0:
        return Cause("clocks", change.changed("gpu-clock-fallen", "gpu_clock_mhz"))
    # Idle cores are slow cores: the clock counts only where as much was computed as before.
    busy = change.ratio("busy_s") > 0.9 and change.share("wait", "exchange") < _MOST
    if change.ratio("cpu_mhz") < 0.85 and busy:
        return Cause("clocks", change.changed("cpu-clock-fallen", "cpu_mhz"))
    return None


def _check_for(question: str) -> CheckSpec:
    from torchdoctor.advice import catalogue  # hundreds of files, which a steady run does not need

    return catalogue.check_for_watch(question)


def _gpu_shared(change: Change) -> Cause | None:
    """Return what the check of other programs finds, where one has come to the GPU."""
    if change.rise("gpu_others") < 0.5:
        return None
    check = _check_for("other-programs")
    findings = check.findings(of_level(change.process, change.after))
    of_device = [finding for finding in findings if finding.evidence[0].fact == "device"]
    if not of_device:
        return None
    return Cause(check.ident, _largest_growth(change), of_device[0])


def _cpu_shared(change: Change) -> Cause | None:
    """Return that others took CPUs which this program needs: less than the check calls much."""
    full = change.after["busy_s"] > 0.85 * change.after["cpus"]
    waits = change.rise("process_queued_s") > 0.05 or change.rise("cpu_pressure_s") > 0.1
    workers = change.after["tree_cpu_s"] - change.after["process_cpu_s"]
    lost_s = (workers + change.after["process_queued_s"]) * change.after["step_s"]
    asleep = change.share("wait") >= _MOST and lost_s < _COMPUTES * change.rise("wait")
    if change.rise("others_cpus") < 0.25 or asleep or not (full or waits):
        return None
    before, after = (max(levels["others_cpus"], 0.0) for levels in (change.before, change.after))
    return Cause(
        _check_for("other-programs").ident, fact("cpus-shared", before=before, after=after)
    )


def _exchange(change: Change) -> Cause | None:
    if change.share("exchange") < _MOST:
        return None
    return Cause("rank", change.grown("waits-for-ranks", "exchange"))


def _measured(change: Change) -> Cause | None:
    return _found(change, PHASES)


def _phase(change: Change) -> Cause:
    """Return the phase that grew most, where nothing that was measured explains it."""
    name = max(PHASES, key=change.rise)
    return Cause(name, change.grown("nothing-else", name))


RULES: tuple[Rule, ...] = (
    _recompilation,
    _batch,
    _sequences,
    _garbage,
    _memory,
    _quota,
    _clocks,
    _gpu_shared,
    _cpu_shared,
    _exchange,
    _measured,
)


def _largest_growth(change: Change) -> Evidence:
    return change.grown("phase-grown", max(PHASES, key=change.rise))


def _found(change: Change, phases: Sequence[str]) -> Cause | None:
    """Return what a check finds after the change in phases that most of the added time lies in."""
    findings = [
        finding
        for finding, logged in _findings(change)
        if set(logged) <= set(phases) and change.share(*logged) >= _MOST
    ]
    if not findings:
        return None
    finding = findings[0]
    return Cause(finding.check, _largest_growth(change), finding)


def _findings(change: Change) -> list[tuple[Finding, list[str]]]:
    """Return what the checks of phases find after the change, the most specific first."""
    from torchdoctor.advice import catalogue
    from torchdoctor.advice.diagnosis import diagnose

    checks = {ident: check for ident, check in catalogue.checks().items() if check.phases}
    after = of_level(change.process, change.after, change.fetch_cpu_share())
    findings = diagnose(after, checks).findings
    findings.sort(key=lambda finding: checks[finding.check].question is not None)
    return [(finding, logged_phases(checks[finding.check].phases)) for finding in findings]


def lag_cause(change: Change) -> tuple[str, Evidence | None]:
    """Return why a rank is behind: data, host, clocks, batch or computation, and the fact of it.

    `change` is from the other ranks to this one. What it takes longer in, the check says.
    """
    rises = {name: change.rise(name) for name in PHASES if name not in ("evaluation", "checkpoint")}
    rises["backward"] -= change.rise("exchange")  # which the wait for others is part of
    if max(rises, key=lambda name: rises[name]) == "wait":
        return "data", None
    if change.rise("process_queued_s") > 0.05:
        return "host", fact("waits-for-cpu", share=change.after["process_queued_s"])
    if change.ratio("gpu_clock_mhz") < 0.95 or change.ratio("cpu_mhz") < 0.9:
        return "clocks", fact("clock-lower")
    if change.ratio("samples") > 1.05 or change.ratio("elements") > 1.05:
        return "batch", fact("batches-larger")
    return "computation", None
