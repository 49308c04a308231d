"""What is known of a watched run as a whole: where its time went, what changed, what to try."""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from torchdoctor.reports.watched_facts import with_sentence
from torchdoctor.schema import Evidence, Interval, Location, fact
from torchdoctor.schema.figures import relative
from torchdoctor.schema.students_t import binomial_quantile
from torchdoctor.schema.watched import (
    Alert,
    ExplainedFact,
    OverlappingCalls,
    Period,
    SlowStep,
    WatchSummary,
)
from torchdoctor.watch import means as tables
from torchdoctor.watch.causes import Change, cause_of
from torchdoctor.watch.changes import MEAN_S
from torchdoctor.watch.followed import read_alerts
from torchdoctor.watch.inside import layout
from torchdoctor.watch.ranks import Ranks, ranks_of, trained
from torchdoctor.watch.recording import PHASES, Process, ProcessLog, Start, Steps, WatchedRun
from torchdoctor.watch.remedies import remedies

_STRETCHES = 240  # of the whole run
_PERIODS = 6
_SLOWEST = 6
_HOUR_S = 3600.0
_DRIFT = 1.05
_OWN = 0.25  # of the model's work could be gained, where as much of the rest could be
_NOTABLE = 0.03  # of the training, that a change must have cost
_FEWEST = 6  # blocks without hooks: below, no interval of a median reaches 95 %
SILENT_S = 40.0  # without a sign of life: a run that did not end was killed


def _periods(table: NDArray[np.void], offset_s: float) -> list[Period]:
    return [_period(part, offset_s) for part in np.array_split(table, _PERIODS) if len(part)]


def _first_start(run: WatchedRun) -> Start:
    nothing = Start(host="", pid=0, command=[], cwd="")
    return min(run.starts, key=lambda start: start.start_unix_ns, default=nothing)


def summary_of(run: WatchedRun, now_s: float | None = None) -> WatchSummary:
    """Return what is known of a run so far; `now_s`: Unix time."""
    start = _first_start(run)
    status, ending, until_s = standing(run, time.time() if now_s is None else now_s)
    logs = trained(run)
    about = {
        "folder": str(run.folder.parent),
        "command": start.command or (logs[0].process.argv if logs else []),
        "cwd": start.cwd,
        "hosts": sorted({start.host for start in run.starts} | {log.process.host for log in logs}),
        "started_unix_s": start.start_unix_ns / 1e9,
        "elapsed_s": max(until_s - start.start_unix_ns / 1e9, 0.0),
        "alerts": read_alerts(run.folder),
    }
    log = next((log for log in logs if len(log.steps)), None)
    if log is None:
        why = logs[0].process.probe_failed if logs else None
        none = fact("no-step-watched", reason=why) if why else fact("no-step")
        return WatchSummary(status="no step", ending=[ending, none], **about)  # type: ignore[arg-type]
    steps = tables.comparable(log.steps)
    offset_s = (log.process.start_unix_ns - log.process.start_ns) / 1e9
    table = _table(run, log, steps)
    phases = _phases(log.steps, steps)
    training_s = sum(phases.values()) - phases["evaluation"] - phases["checkpoint"]
    ranks = ranks_of(run)
    best_of_s = min(_HOUR_S, training_s / 6)
    drift, drift_cause = _drift(table, log.process)
    result = {
        "steps": int(log.steps.step[-1]),
        "program": log.process.kind,
        "unit": log.process.unit,
        "step": log.process.step,
        "location": log.process.location,
        "training_s": training_s,
        "median_step_s": steps.median_s() if len(steps) else None,
        "best_step_s": _best(steps, best_of_s),
        "best_of_s": best_of_s,
        "phases_s": phases,
        "periods": _periods(table, offset_s),
        "slowest": _slowest(steps, offset_s),
        "own_cost": own_cost(log.steps),
        "drift": drift,
        "drift_cause": drift_cause,
        "evaluations": int((log.steps.rows["evaluation"] > 0).sum()),
        "checkpoints": int((log.steps.rows["checkpoint"] > 0).sum()),
        "ranks": ranks.times,
        "rank_waiting": ranks.waiting if ranks.times else None,
        "slow_rank": ranks.slowest,
    }
    largest = _largest(phases, ranks)
    slower = _changed(about["alerts"], table, training_s)  # type: ignore[arg-type]
    cause = slower or _costliest(largest, phases, ranks, log.process.location)
    may_help = remedies(start, log.process, phases, int(log.steps.step[-1]), largest)
    folder = "" if ranks.times else str(run.folder.parent)
    trying = _command(start, may_help.fixes, folder)
    advice = {"trying": trying, "at_most": may_help.most if trying else None, "cause": cause}
    endings = [ending, *_given_up(log.process, steps=int(log.steps.step[-1])), *_lost(log.steps)]
    summary = WatchSummary(status=status, ending=endings, **advice, **about, **result)  # type: ignore[arg-type]
    return _of_overlapping(summary, log.process)


def standing(run: WatchedRun, now_s: float) -> tuple[str, Evidence, float]:
    """Return if the run runs, ended or was killed; the fact of it; until when (Unix s)."""
    signs = [
        float(process.sensors["unix_ns"][-1]) / 1e9
        for process in run.processes
        if len(process.sensors)
    ]
    signs += [float(rows["unix_ns"][-1]) / 1e9 for rows in run.machines.values() if len(rows)]
    signs += [start.start_unix_ns / 1e9 for start in run.starts]
    last_s = max(signs, default=0.0)
    ends = [start.end_unix_ns for start in run.starts]
    if ends and all(ends):
        end_s = max(end for end in ends if end) / 1e9
        if any(start.exited is False for start in run.starts):
            return "killed", fact("program-broken-off", at_s=end_s), end_s
        return "ended", fact("program-ended", at_s=end_s), end_s
    if run.processes and all(process.process.exited for process in run.processes):
        return "ended", fact("program-ended", at_s=last_s), last_s
    if now_s - last_s > SILENT_S:
        return "killed", fact("run-silent", at_s=last_s), last_s
    return "running", fact("program-runs"), now_s


def _table(run: WatchedRun, log: ProcessLog, steps: Steps) -> NDArray[np.void]:
    """Return means over stretches of the whole run."""
    machine = run.machines.get(log.process.host, np.zeros(0))
    begins = tables.stretches(steps, max(MEAN_S, float(steps.total_s.sum()) / _STRETCHES))
    return tables.means(steps, log.sensors, machine, begins)


def _of_overlapping(summary: WatchSummary, process: Process) -> WatchSummary:
    """Return the summary of calls that overlap; else as it was.

    From one call's begin to the next one's is no call's time: what is told by it is left out. So
    are remedies, as `run` follows one thread's calls.
    """
    calls = process.overlapping
    if calls is None:
        return summary
    times = OverlappingCalls(
        calls=calls.calls,
        most_at_once=calls.most_at_once,
        per_s=summary.steps / max(summary.training_s, 1e-9),
        mean_s=calls.total_s / calls.calls,
        median_s=calls.quantile_s(0.5),
        p95_s=calls.quantile_s(0.95),
        longest_s=calls.longest_s,
    )
    return replace(
        summary,
        overlapping=times,
        median_step_s=None,
        best_step_s=None,
        periods=[],
        slowest=[],
        drift=None,
        drift_cause=None,
        trying="",
        at_most=None,
    )


def _given_up(process: Process, steps: int) -> list[Evidence]:
    """Return the fact that the watch removed itself, if it did."""
    why = process.probe_failed
    return [] if why is None else [fact("watch-removed-itself", steps=steps, error=why)]


def _lost(steps: Steps) -> list[Evidence]:
    """Return the fact that steps are missing in the log, if some are."""
    lost, lost_s = steps.lost()
    return [fact("steps-lost", lost=lost, seconds=lost_s)] if lost else []


def _phases(steps: Steps, plain: Steps) -> dict[str, float]:
    """Return the seconds of each phase; those without hooks or row are divided like the others."""
    phases = {phase: float(plain.rows[phase].sum(dtype=float)) for phase in PHASES}
    whole = float(steps.total_s.sum()) + steps.lost()[1]
    plain_s = float(plain.total_s.sum())
    if not plain_s:
        return {**phases, "other": whole}
    plain_s -= phases["evaluation"] + phases["checkpoint"]
    added = (whole - float(plain.total_s.sum())) / max(plain_s, 1e-9)
    pauses = ("evaluation", "checkpoint")
    return {
        phase: spent * (1.0 if phase in pauses else 1 + added) for phase, spent in phases.items()
    }


def _best(steps: Steps, length_s: float) -> float | None:
    """Return the lowest of the medians of successive stretches of so much training."""
    if not len(steps):
        return None
    hours = np.floor((np.cumsum(tables.training_s(steps)) - 1e-9) / max(length_s, 1e-9))
    cuts = np.flatnonzero(np.diff(hours) > 0) + 1
    parts = [Steps(rows=stretch) for stretch in np.split(steps.rows, cuts) if len(stretch)]
    # The last stretch may be too short to tell.
    return min(part.median_s() for part in parts[:-1] or parts)


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
    # Of all rows: where steps share them only those are single that were slow.
    usual = np.median(steps.phases_s[:: max(len(steps) // 20_000, 1)], axis=0)
    usual[[layout.EVALUATION, layout.CHECKPOINT]] = math.inf  # no part of a training step
    slow = []
    for at in single[np.argsort(-times, kind="stable")[:_SLOWEST]]:
        phase = int(np.argmax(steps.phases_s[at] - usual))
        flags = int(steps.rows["flags"][at])
        slow.append(
            SlowStep(
                step=int(steps.step[at]),
                t_unix_s=float(steps.start_ns[at]) / 1e9 + offset_s,
                step_s=float(tables.training_s(steps)[at]),
                phase=PHASES[phase],
                phase_s=float(steps.phases_s[at, phase]),
                recompiled=bool(flags & layout.RECOMPILED),
                pass_began=bool(flags & layout.PASS_BEGAN),
            )
        )
    return slow


def _drift(table: NDArray[np.void], process: Process) -> tuple[float | None, Evidence | None]:
    """Return how a step of the last quarter compares to one of the first, and why."""
    if len(table) < 8:
        return None, None
    quarter = len(table) // 4
    change = Change(tables.level_of(table[:quarter]), tables.level_of(table[-quarter:]), process)
    ratio = change.ratio("step_s")
    return ratio, cause_of(change).why if ratio >= _DRIFT else None


def _largest(phases: dict[str, float], ranks: Ranks) -> str:
    """Return the phase that most could be gained from; little can be of the model's own work."""
    whole = max(sum(phases.values()), 1e-9)
    own_phases = {"forward", "backward", "other"}
    shares = {
        phase: s / whole * (_OWN if phase in own_phases else 1.0) for phase, s in phases.items()
    }
    shares["rank"] = 0.0 if ranks.rank is None else ranks.waiting
    shares["backward"] -= _OWN * shares["rank"]  # where the wait for others lies
    return max(shares, key=lambda name: shares[name])


def _changed(alerts: list[Alert], table: NDArray[np.void], training_s: float) -> Alert | None:
    """Return the alert of the change that cost most, where it cost a notable part of the run."""
    costliest = None
    most_s = _NOTABLE * training_s
    for alert in alerts if len(table) else ():
        before = table["step_s"][table["last_step"] < alert.step]
        after = table[table["first_step"] >= alert.step]
        if alert.kind == "slower" and len(before) and len(after):
            added_s = float(np.median(after["step_s"]) - np.median(before))
            cost_s = added_s * float(after["steps"].sum())
            if cost_s > most_s:
                costliest = alert
                most_s = cost_s
    return costliest


def _costliest(
    largest: str, phases: dict[str, float], ranks: Ranks, place: Location | None
) -> ExplainedFact | None:
    """Return the rank or phase that most may be saved in, with the line of its loader."""
    if largest == "rank":
        return ranks.slowest
    most = phases[largest] == max(phases.values())
    cost = fact(
        "largest-cost" if most else "most-to-save",
        phase=largest,
        share=phases[largest] / max(sum(phases.values()), 1e-9),
        location=place if largest == "wait" else None,
    )
    return with_sentence(ExplainedFact(fact=cost))


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
