"""What is known of a watched run as a whole: where its time went, what changed, what to try."""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor import __version__
from torchdoctor.schema import Bound, Interval, Location, RankTime
from torchdoctor.schema.figures import relative, seconds
from torchdoctor.schema.students_t import binomial_quantile
from torchdoctor.watch import means as tables
from torchdoctor.watch.causes import PHASE_NAMES, Change, cause_of
from torchdoctor.watch.changes import MEAN_S
from torchdoctor.watch.followed import Alert, read_alerts
from torchdoctor.watch.inside import layout
from torchdoctor.watch.ranks import Ranks, ranks_of, trained
from torchdoctor.watch.recording import PHASES, Process, Start, Steps, WatchedRun
from torchdoctor.watch.remedies import remedies

_STRETCHES = 240  # of the whole run
_PERIODS = 6
_SLOWEST = 6
_HOUR_S = 3600.0
_DRIFT = 1.05
_OWN = 0.25  # of the model's work could be gained, where as much of the rest could be
_NO_CALLS = " Nor was a model called often enough: torchdoctor.step() marks the steps by hand."
_NOTABLE = 0.03  # of the training, that a change must have cost
_FEWEST = 6  # blocks without hooks: below, no interval of a median reaches 95 %
SILENT_S = 40.0  # without a sign of life: a run that did not end was killed


@dataclass(frozen=True, kw_only=True)
class Period:
    """A part of the run; `phases_s`: means of a step."""

    t_unix_s: float
    first_step: int
    last_step: int
    step_s: float
    samples_per_s: float | None
    phases_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SlowStep:
    """One of the slowest steps, with the phase that took the most more than usual."""

    step: int
    t_unix_s: float
    step_s: float
    cause: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A watched run; of several ranks, phases are those of the first that was logged."""

    schema_version: int = 1
    kind: str = "watched run"
    torchdoctor_version: str = __version__
    folder: str
    status: str  # "running", "ended", "killed", "no step"
    ending: str  # the same as a sentence
    command: list[str]
    cwd: str = ""
    hosts: list[str] = field(default_factory=list)
    started_unix_s: float = 0.0
    elapsed_s: float = 0.0
    steps: int = 0
    program: str = "training"  # or "inference"
    unit: str = "step"  # what a step is called: a batch or a call, where the program infers
    steps_found: str = ""
    location: Location | None = None  # of the loader or optimizer
    training_s: float = 0.0  # of all steps, without evaluation and checkpoints
    median_step_s: float | None = None
    best_step_s: float | None = None  # median of the best hour
    best_of_s: float = _HOUR_S  # how long that "hour" is: shorter in a short run
    phases_s: dict[str, float] = field(default_factory=dict)  # of the whole run
    periods: list[Period] = field(default_factory=list)
    slowest: list[SlowStep] = field(default_factory=list)
    drift: float | None = None  # a step of the last quarter, over one of the first
    drift_cause: str = ""
    evaluations: int = 0  # what they and the checkpoints took is among the phases
    checkpoints: int = 0
    ranks: list[RankTime] = field(default_factory=list)
    rank_waiting: float | None = None  # mean share of the step
    rank_sentence: str = ""
    alerts: list[Alert] = field(default_factory=list)
    cause: str = ""  # the cause in a sentence
    own_cost: Interval | None = None  # a step with torchdoctor's hooks, over one without
    trying: str = ""  # the command that would try remedies
    at_most: Bound | None = None  # of the fix with the largest bound; None: none is known


def summary_of(run: WatchedRun, now_s: float | None = None) -> Summary:
    """Return what is known of a run so far; `now_s`: Unix time."""
    nothing = Start(host="", pid=0, command=[], cwd="")
    start = min(run.starts, key=lambda x: x.start_unix_ns, default=nothing)
    status, ending, until_s = standing(run, time.time() if now_s is None else now_s)
    logs, began_s = trained(run), start.start_unix_ns / 1e9
    about = {
        "folder": str(run.folder.parent),
        "command": start.command or (logs[0].process.argv if logs else []),
        "cwd": start.cwd,
        "hosts": sorted({x.host for x in run.starts} | {x.process.host for x in logs}),
        "started_unix_s": began_s,
        "elapsed_s": max(until_s - began_s, 0.0),
        "alerts": read_alerts(run.folder),
    }
    log = next((log for log in logs if len(log.steps)), None)
    if log is None:
        why = logs[0].process.probe_failed if logs else None
        none = f" ({why})" if why else ""
        ending = f"{ending} No training step was seen{none}.{'' if why else _NO_CALLS}"
        return Summary(status="no step", ending=ending, **about)  # type: ignore[arg-type]
    steps = tables.comparable(log.steps)
    offset_s = (log.process.start_unix_ns - log.process.start_ns) / 1e9
    machine = run.machines.get(log.process.host, np.zeros(0))
    begins = tables.stretches(steps, max(MEAN_S, float(steps.total_s.sum()) / _STRETCHES))
    table = tables.means(steps, log.sensors, machine, begins)
    phases = _phases(log.steps, steps)
    training_s = sum(phases.values()) - phases["evaluation"] - phases["checkpoint"]
    ranks, best_of_s = ranks_of(run), min(_HOUR_S, training_s / 6)
    drift, drift_cause = _drift(table, log.process.unit)
    result = _found_in(log.process) | {
        "steps": int(log.steps.step[-1]),
        "training_s": training_s,
        "median_step_s": float(np.median(steps.step_s)) if len(steps) else None,
        "best_step_s": _best(steps, best_of_s),
        "best_of_s": best_of_s,
        "phases_s": phases,
        "periods": [
            _period(part, offset_s) for part in np.array_split(table, _PERIODS) if len(part)
        ],
        "slowest": _slowest(steps, offset_s),
        "own_cost": own_cost(log.steps),
        "drift": drift,
        "drift_cause": drift_cause,
        "evaluations": int((log.steps.rows["evaluation"] > 0).sum()),
        "checkpoints": int((log.steps.rows["checkpoint"] > 0).sum()),
        "ranks": ranks.times,
        "rank_waiting": ranks.waiting if ranks.times else None,
        "rank_sentence": ranks.sentence,
    }
    largest = _largest(phases, ranks)
    cause = ranks.sentence if largest == "rank" else _cause(largest, phases, log.process.location)
    cause = _changed(about["alerts"], table, training_s) or cause  # type: ignore[arg-type]
    may_help = remedies(start, log.process, phases, int(log.steps.step[-1]), largest)
    trying = _command(start, may_help.fixes, "" if ranks.times else about["folder"])  # type: ignore[arg-type]
    known = {"trying": trying, "at_most": may_help.most if trying else None, "cause": cause}
    return Summary(status=status, ending=ending, **known, **about, **result)  # type: ignore[arg-type]


def _found_in(process: Process) -> dict[str, Any]:
    names = ("unit", "steps_found", "location")
    return {"program": process.kind} | {name: getattr(process, name) for name in names}


def standing(run: WatchedRun, now_s: float) -> tuple[str, str, float]:
    """Return if the run runs, ended or was killed; a sentence that says so; until when (Unix s)."""
    signs = [float(x.sensors["unix_ns"][-1]) / 1e9 for x in run.processes if len(x.sensors)]
    signs += [float(rows["unix_ns"][-1]) / 1e9 for rows in run.machines.values() if len(rows)]
    signs += [x.start_unix_ns / 1e9 for x in run.starts]
    last_s = max(signs, default=0.0)

    def moment(unix_s: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))

    ends = [x.end_unix_ns for x in run.starts]
    if ends and all(ends):
        end_s = max(end for end in ends if end) / 1e9
        if any(x.exited is False for x in run.starts):
            why = "Ctrl-C, a signal or a crash"
            return "killed", f"{why} ended the program at {moment(end_s)}.", end_s
        return "ended", f"The program ended at {moment(end_s)}.", end_s
    if run.processes and all(x.process.exited for x in run.processes):
        return "ended", f"The program ended at {moment(last_s)}.", last_s
    if now_s - last_s > SILENT_S:
        sentence = f"The run was killed: its last sign of life is of {moment(last_s)}."
        return "killed", sentence, last_s
    return "running", "The program is running; this is what is known so far.", now_s


def _phases(steps: Steps, plain: Steps) -> dict[str, float]:
    """Return the seconds of each phase; those without hooks are divided like the others."""
    phases = {x: float(plain.rows[x].sum(dtype=float)) for x in PHASES}
    whole = float(steps.total_s.sum())
    known = float(plain.total_s.sum())
    if not known:
        return {**phases, "other": whole}
    known -= phases["evaluation"] + phases["checkpoint"]
    added = (whole - float(plain.total_s.sum())) / max(known, 1e-9)
    pauses = ("evaluation", "checkpoint")
    return {x: spent * (1.0 if x in pauses else 1 + added) for x, spent in phases.items()}


def _best(steps: Steps, length_s: float) -> float | None:
    """Return the lowest of the medians of successive stretches of so much training."""
    if not len(steps):
        return None
    hours = np.floor((np.cumsum(tables.training_s(steps)) - 1e-9) / max(length_s, 1e-9))
    cuts = np.flatnonzero(np.diff(hours) > 0) + 1
    parts = [x for x in np.split(steps.step_s, cuts) if len(x)]
    # The last stretch may be too short to tell.
    return min(float(np.median(x)) for x in parts[:-1] or parts)


def _period(part: NDArray[np.void], offset_s: float) -> Period:
    weights = part["steps"]

    def mean(name: str) -> float:
        return float(np.average(part[name], weights=weights))

    samples = mean("samples") / mean("step_s") if mean("step_s") > 0 else math.nan
    return Period(
        t_unix_s=float(part["begin_ns"][0]) / 1e9 + offset_s,
        first_step=int(part["first_step"][0]),
        last_step=int(part["last_step"][-1]),
        step_s=mean("step_s"),
        samples_per_s=samples if math.isfinite(samples) else None,
        phases_s={name: mean(name) for name in PHASES},
    )


def _slowest(steps: Steps, offset_s: float) -> list[SlowStep]:
    single = np.flatnonzero(steps.steps == 1)
    times = tables.training_s(steps)[single]
    if len(times) < 10:
        return []
    usual = np.median(steps.phases_s[single[:: max(len(single) // 20_000, 1)]], axis=0)
    usual[[layout.EVALUATION, layout.CHECKPOINT]] = math.inf  # no part of a training step
    slow = []
    for at in single[np.argsort(-times, kind="stable")[:_SLOWEST]]:
        phase = int(np.argmax(steps.phases_s[at] - usual))
        flags = int(steps.rows["flags"][at])
        long_s = float(steps.phases_s[at, phase])
        cause = f"{PHASE_NAMES[PHASES[phase]]}, {seconds(long_s)}"
        if flags & layout.RECOMPILED:
            cause = f"torch.compile compiled ({cause})"
        elif flags & layout.PASS_BEGAN:
            cause = f"a pass over the loader began ({cause})"
        at_s = float(steps.start_ns[at]) / 1e9
        step_s = float(tables.training_s(steps)[at])
        slow.append(
            SlowStep(step=int(steps.step[at]), t_unix_s=at_s + offset_s, step_s=step_s, cause=cause)
        )
    return slow


def _drift(table: NDArray[np.void], unit: str) -> tuple[float | None, str]:
    """Return how a step of the last quarter compares to one of the first, and why."""
    if len(table) < 8:
        return None, ""
    quarter = len(table) // 4
    ends = tables.level_of(table[:quarter]), tables.level_of(table[-quarter:])
    change = Change(*ends, unit=unit)
    ratio = change.ratio("step_s")
    return ratio, cause_of(change).clause if ratio >= _DRIFT else ""


def _largest(phases: dict[str, float], ranks: Ranks) -> str:
    """Return the phase that most could be gained from; little can be of the model's own work."""
    whole = max(sum(phases.values()), 1e-9)
    own = {"forward", "backward", "other"}
    shares = {x: s / whole * (_OWN if x in own else 1.0) for x, s in phases.items()}
    shares["rank"] = 0.0 if ranks.rank is None else ranks.waiting
    shares["backward"] -= _OWN * shares["rank"]  # where the wait for others lies
    return max(shares, key=lambda name: shares[name])


def _changed(alerts: list[Alert], table: NDArray[np.void], training_s: float) -> str:
    """Return the alert of the change that cost most, where it cost a notable part of the run."""
    costs: dict[Alert | None, float] = {None: _NOTABLE * training_s}
    for alert in alerts if len(table) else ():
        before = table["step_s"][table["last_step"] < alert.step]
        after = table[table["first_step"] >= alert.step]
        if alert.kind == "slower" and len(before) and len(after):
            added_s = float(np.median(after["step_s"]) - np.median(before))
            costs[alert] = added_s * float(after["steps"].sum())
    costliest = max(costs, key=lambda alert: costs[alert])
    return "" if costliest is None else costliest.sentence


def _cause(largest: str, phases: dict[str, float], place: Location | None) -> str:
    share = 100 * phases[largest] / max(sum(phases.values()), 1e-9)
    name = PHASE_NAMES[largest]
    line = f" ({PurePath(place.file).name}:{place.line})" if place and largest == "wait" else ""
    most = phases[largest] == max(phases.values())
    first = "The largest cost is" if most else "Most may be saved in"
    return f"{first} {name}{line}: {share:.0f} % of the time."


def _command(start: Start, fixes: Sequence[str], folder: str) -> str:
    """Return the command that tries these fixes; `folder`: of the run, where it can be used."""
    command = start.command
    if not command:
        return ""
    chosen = f" --fixes {','.join(fixes)}" if fixes and len(fixes) <= 6 else ""
    chosen += f" --from {shlex.quote(relative(folder, start.cwd))}" if folder else ""
    python = PurePath(command[0]).name.startswith("python")
    script = "".join(command[1:2])
    plain = python and script.endswith(".py")
    words = shlex.join(command[1:]) if plain else f"-- {shlex.join(command)}"
    return f"torchdoctor run{chosen} {words}"


def own_cost(steps: Steps) -> Interval | None:
    """Return a step with the hooks, divided by one without; None: too few blocks for that.

    Each block is compared with the rows beside it, as many seconds before and behind. The median
    counts, as an evaluation may fall into a block, with the interval of its order statistics.
    """
    ends_ns = steps.start_ns + (steps.total_s * 1e9).astype(np.int64)
    ratios = []
    for block in np.flatnonzero(steps.has(layout.PROBE_OFF)):
        length_ns = int(steps.total_s[block] * 1e9)
        first = np.searchsorted(steps.start_ns, steps.start_ns[block] - length_ns)
        last = np.searchsorted(ends_ns, ends_ns[block] + length_ns, side="right")
        beside = np.arange(first, last)
        beside = beside[steps.plain[beside]]
        if min(np.sum(beside < block), np.sum(beside > block)) > 0:
            mean_s = steps.total_s[beside].sum() / steps.steps[beside].sum()
            ratios.append(mean_s / steps.step_s[block])
    if len(ratios) < _FEWEST:
        return None
    ratios.sort()
    rank = binomial_quantile(0.025, len(ratios), 0.5)
    low = ratios[max(rank - 1, 0)]
    high = ratios[min(len(ratios) - rank, len(ratios) - 1)]
    return Interval(low=float(low), estimate=float(np.median(ratios)), high=float(high))
