"""Joins the logs of ranks and nodes on one clock: who waits for whom, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.queries.ranks import latest
from torchdoctor.reports.watched_facts import with_sentence
from torchdoctor.schema import Environment, Finding, RankTime, Recording, Workload, fact
from torchdoctor.schema.watched import ExplainedFact
from torchdoctor.watch.causes import Change, lag_cause
from torchdoctor.watch.followed import ENOUGH
from torchdoctor.watch.means import level_of, means, stretches
from torchdoctor.watch.recording import PHASES, ProcessLog, Steps, WatchedRun

_BLOCKS, _BLOCK = 10, 200  # stretches of successive steps that are compared, and steps in each
_PAGE = 1 << 14  # rows of the slowest rank and of some others, to tell the cause by
_SOME = 4
_COMPUTE = ("forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """What the logs of all ranks say together."""

    times: list[RankTime]
    waiting: float = 0.0  # mean share of the step that the others wait for the slowest
    slowest: ExplainedFact | None = None  # which rank is behind, and why; None: none is
    rank: int | None = None  # that rank


def trained(run: WatchedRun) -> list[ProcessLog]:
    """Return the log of each rank: of its last process, where it was started again.

    Where any process trains, those that infer are its helpers.
    """
    logs = [log for log in run.processes if len(log.steps)] or run.processes
    logs = [log for log in logs if not log.process.infers] or logs
    return list({log.process.rank: log for log in logs}.values())


def ranks_of(run: WatchedRun) -> Ranks:
    """Return who waits for whom, from about 2,000 steps; empty where one process trained."""
    logs = [log for log in trained(run) if log.process.rank is not None and len(log.steps)]
    wanted = _wanted(logs)
    if len(logs) < 2 or not len(wanted):
        return Ranks(times=[])
    parts = [_rows_of(log, wanted) for log in logs]
    exchanged = np.array([part.exchanged_ns for part in parts])  # (ranks, steps)
    entry = np.array([part.entry_ns for part in parts])
    hosts = [log.process.host for log in logs]
    offsets = _offsets_ns(exchanged, hosts)
    entry += offsets[:, None]
    is_complete = np.isfinite(entry).all(axis=0)
    waits_s = (entry[:, is_complete].max(axis=0) - entry[:, is_complete]) / 1e9
    lasts = np.bincount(entry[:, is_complete].argmax(axis=0), minlength=len(logs))
    times = []
    for at, (log, part) in enumerate(zip(logs, parts, strict=True)):
        phases = dict(zip(PHASES, part.phases_s.mean(axis=0).tolist(), strict=True))
        exchange = (
            np.nanmean((part.exchanged_ns - part.entry_ns) / 1e9) if is_complete.any() else 0.0
        )
        whole_s = sum(phases.values()) - phases["evaluation"] - phases["checkpoint"]
        levels = {**phases, "step_s": whole_s, "exchange": float(exchange)}
        wait_s = float(waits_s[at].mean()) if is_complete.any() else None
        time = rank_time(log.process.rank or 0, log.stem, levels, wait_s)
        times.append(
            replace(
                time,
                last_share=float(lasts[at] / is_complete.sum()) if is_complete.any() else None,
                clock_offset_s=float(offsets[at] - offsets[0]) / -1e9,
            )
        )
    return _behind(run, logs, times)


def rank_time(rank: int, path: str, levels: Mapping[str, float], wait_s: float | None) -> RankTime:
    """Return where the step of a rank goes, by means of its phases and of its exchange."""
    exchange_s = float(np.nan_to_num(levels["exchange"]))
    return RankTime(
        rank=rank,
        path=path,
        step_s=levels["step_s"],
        kernel_s=max(sum(levels[phase] for phase in _COMPUTE) - exchange_s, 0.0),
        communication_exposed_s=exchange_s,
        data_loader_s=levels["wait"],
        wait_s=wait_s,
    )


def imbalance(times: list[RankTime]) -> Finding | None:
    """Return what the check of ranks finds; None: they are even."""
    from torchdoctor.advice import catalogue  # hundreds of files: only where there are ranks

    nothing_else = Recording(
        workload=Workload(command=[], cwd=""), environment=Environment(), ranks=times
    )
    findings = catalogue.check_for_watch("uneven-ranks").findings(nothing_else)
    return findings[0] if findings else None


def _wanted(logs: list[ProcessLog]) -> NDArray[np.int64]:
    """Return the numbers of the steps that are compared: some blocks of those of all ranks."""
    if not logs:
        return np.zeros(0, np.int64)
    first = max(int(log.steps.rows["step"][0]) for log in logs)
    last = min(int(log.steps.rows["step"][-1]) for log in logs)
    starts = np.linspace(first, max(last - _BLOCK, first), _BLOCKS).astype(np.int64)
    wanted = np.unique((starts[:, None] + np.arange(_BLOCK)).ravel())
    return wanted[wanted <= last]


def _rows_of(log: ProcessLog, wanted: NDArray[np.int64]) -> Steps:
    """Return the rows of these steps; the nearest, where steps were lost or thinned."""
    rows = log.steps.rows
    places = wanted - int(rows["step"][0])
    if places[-1] >= len(rows) or (rows["step"][places] != wanted).any():
        places = np.minimum(np.searchsorted(rows["step"], wanted), len(rows) - 1)
    return Steps(rows=np.array(rows[places]))


def _offsets_ns(exchanged: NDArray[np.float64], hosts: list[str]) -> NDArray[np.float64]:
    """Return what brings each rank's clock to the first host's: an exchange ends for all at once.

    Ranks of one host share its clock.
    """
    offsets = np.zeros(len(hosts))
    if not np.isfinite(exchanged).any(axis=1).all():
        return offsets
    host_of = np.array(hosts)
    first = np.nanmedian(exchanged[host_of == hosts[0]], axis=0)
    for host in dict.fromkeys(hosts):
        ours = host_of == host
        offsets[ours] = np.nanmedian(first - np.nanmedian(exchanged[ours], axis=0))
    return offsets


def _behind(run: WatchedRun, logs: list[ProcessLog], times: list[RankTime]) -> Ranks:
    """Return the ranks with the slowest named, where the others wait for it."""
    slowest = latest(times)
    rest = [time for time in times if time is not slowest]
    shares = [
        max((time.wait_s or 0.0) - (slowest.wait_s or 0.0), 0.0) / time.step_s for time in rest
    ]
    waiting = float(np.mean(shares))
    finding = imbalance(times)
    if finding is None:
        return Ranks(times=times, waiting=waiting)
    by_rank = {log.process.rank: log for log in logs}
    some = sorted(rest, key=lambda time: -(time.wait_s or 0.0))[:_SOME]
    tables = [_levels(run, by_rank[time.rank]) for time in (slowest, *some)]
    usual = {name: float(np.median([table[name] for table in tables[1:]])) for name in tables[0]}
    _, why = lag_cause(Change(usual, tables[0]))
    process = by_rank[slowest.rank].process
    wait = fact("ranks-wait", share=waiting, rank=slowest.rank, host=process.host)
    behind = ExplainedFact(
        fact=wait, why=why, finding=finding, unit=process.unit, program=process.kind
    )
    return Ranks(times=times, waiting=waiting, slowest=with_sentence(behind), rank=slowest.rank)


def _levels(run: WatchedRun, log: ProcessLog) -> dict[str, float]:
    rows = log.steps.rows[-_PAGE:]
    steps = Steps(rows=rows)
    span_s = float(steps.total_s.sum())
    machine = run.machines.get(log.process.host, np.zeros(0))
    return level_of(means(steps, log.sensors, machine, stretches(steps, span_s / (3 * ENOUGH))))
