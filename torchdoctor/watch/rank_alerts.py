"""Tells of ranks that start late, die, hang, or lag behind the others."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from torchdoctor.schema import fact
from torchdoctor.schema.watched import Alert
from torchdoctor.watch.causes import Change, lag_cause
from torchdoctor.watch.followed import ENOUGH, Followed
from torchdoctor.watch.means import level_of
from torchdoctor.watch.ranks import imbalance, rank_time
from torchdoctor.watch.recording import PHASES

_QUIET_S = 30.0  # without a heartbeat, after which a process is taken for dead
_LATE_S = 30.0
_PATIENCE_S = (120.0, 45.0)  # without a step: one process, several ranks
_LAG = 0.15  # of a step
_MOST_NAMED = 5  # ranks that have not started


def rank_alerts(processes: Sequence[Followed], now_s: float) -> list[Alert]:
    """Return what is to be told of the ranks now; the same at each call while it lasts."""
    # A program may start a rank again, after a crash or for its next training.
    last = {
        process.stem if process.process.rank is None else process.process.rank: process
        for process in processes
    }.values()
    first = {
        process.process.rank: process
        for process in processes[::-1]
        if process.process.rank is not None
    }.values()
    running = [
        process for process in last if not process.process.exited and process.sign is not None
    ]
    alive = [process for process in running if now_s - _sign_s(process) < _QUIET_S]
    if not alive:  # the whole run has ended, or is read from a copy
        return []
    ranks = [
        process
        for process in running
        if process.process.rank is not None and (process.process.world_size or 1) > 1
    ]
    return [
        *_late([*first][::-1], now_s),
        *(_dead(rank) for rank in ranks if rank not in alive),
        *_hangs([process for process in alive if process.last_step], now_s),
        *_lags([process for process in alive if process in ranks]),
    ]


def _sign_s(followed: Followed) -> float:
    return float(followed.sign["unix_ns"]) / 1e9 if followed.sign is not None else -math.inf


def _dead(followed: Followed) -> Alert:
    dead = fact("rank-dead", sign_s=_sign_s(followed))
    return followed.alert("dead", dead, float(followed.sign["t_ns"]))  # type: ignore[index]


def _late(ranks: Sequence[Followed], now_s: float) -> Iterator[Alert]:
    if len(ranks) < 2:
        return
    usual_s = float(np.median([rank.unix_s(rank.process.start_ns) for rank in ranks]))
    for followed in ranks:
        late_s = followed.unix_s(followed.process.start_ns) - usual_s
        if late_s > _LATE_S:
            late = fact("rank-late", late_s=late_s, host=followed.process.host)
            yield followed.alert("late", late, followed.process.start_ns, 0)
    world = max(rank.process.world_size or 1 for rank in ranks)
    missing = sorted(set(range(world)) - {rank.process.rank for rank in ranks})
    if missing and now_s - usual_s > 2 * _LATE_S and not any(rank.last_step for rank in ranks):
        never = fact(
            "ranks-missing",
            missing=len(missing),
            world=world,
            ranks=missing[:_MOST_NAMED],
            more=len(missing) - _MOST_NAMED if len(missing) > _MOST_NAMED else None,
            passed_s=now_s - usual_s,
        )
        alert = ranks[0].alert("late", never, ranks[0].process.start_ns, 0)
        yield replace(alert, cause="missing")


def _hangs(alive: Sequence[Followed], now_s: float) -> Iterator[Alert]:
    if not alive:
        return
    several = len(alive) > 1
    at_s = max(followed.unix_s(followed.last_ns) for followed in alive)
    usual_s = max(
        float(np.median(followed.table["step_s"])) if len(followed.table) else 0.0
        for followed in alive
    )
    longest_s = max(followed.longest_s for followed in alive)
    phases = [PHASES[int(followed.sign["phase"])] for followed in alive]  # type: ignore[index]
    patience_s = max(_PATIENCE_S[several], 20 * usual_s, 3 * longest_s)
    if now_s - at_s < patience_s or {"evaluation", "checkpoint"} & set(phases):
        return
    # The culprit is behind, or does something else than the others.
    at = min(range(len(alive)), key=lambda i: (alive[i].last_step, phases.count(phases[i])))
    process = alive[at].process
    hangs = fact(
        "rank-hangs" if several else "process-hangs",
        passed_s=now_s - at_s,
        phase=phases[at],
        pid=process.pid,
        host=process.host,
    )
    yield alive[at].alert("hangs", hangs, alive[at].last_ns)


def _lags(ranks: Sequence[Followed]) -> Iterator[Alert]:
    """Tell of a rank that the others have waited for from the beginning."""
    lengths = [len(rank.table) for rank in ranks]  # what comes later is told as a change
    if len(ranks) < 2 or min(lengths) < ENOUGH or max(lengths) > 2 * ENOUGH:
        return
    recent = [rank.table[-ENOUGH:] for rank in ranks]
    waits = np.array([np.nan_to_num(np.median(rows["exchange"])) for rows in recent])
    step_s = float(np.median([np.median(rows["step_s"]) for rows in recent]))
    at = int(np.argmin(waits))
    lag = float(np.median(np.delete(waits, at))) - waits[at]
    if lag < _LAG * step_s:
        return
    rest = np.concatenate([rows for number, rows in enumerate(recent) if number != at])
    cause, why = lag_cause(Change(level_of(rest), level_of(recent[at])))
    levels = [level_of(rows) for rows in recent]
    times = [
        rank_time(followed.process.rank or 0, followed.stem, level, wait_s=float(wait_s))
        for followed, level, wait_s in zip(ranks, levels, waits, strict=True)
    ]
    process = ranks[at].process
    first = recent[at][0]
    lags = fact("rank-lags", share=lag / step_s, host=process.host, pid=process.pid)
    alert = ranks[at].alert("lags", lags, first["begin_ns"], first["first_step"])
    yield replace(alert, cause=cause, why=why, finding=imbalance(times))
