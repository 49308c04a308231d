"""Tells of ranks that start late, die, hang, or lag behind the others."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from torchdoctor.schema.figures import counted, duration, percent
from torchdoctor.watch.causes import PHASE_NAMES, Change, lag_clause
from torchdoctor.watch.followed import ENOUGH, Alert, Followed, clock
from torchdoctor.watch.means import level_of
from torchdoctor.watch.recording import PHASES

_QUIET_S = 30.0  # without a heartbeat, after which a process is taken for dead
_LATE_S = 30.0
_PATIENCE_S = (120.0, 45.0)  # without a step: one process, several ranks
_LAG = 0.15  # of a step


def rank_alerts(processes: Sequence[Followed], now_s: float) -> list[Alert]:
    """Return what is to be told of the ranks now; the same at each call while it lasts."""
    # A program may start a rank again, after a crash or for its next training.
    last = {x.stem if x.process.rank is None else x.process.rank: x for x in processes}.values()
    first = {x.process.rank: x for x in processes[::-1] if x.process.rank is not None}.values()
    running = [x for x in last if not x.process.exited and x.sign is not None]
    alive = [x for x in running if now_s - _sign_s(x) < _QUIET_S]
    if not alive:  # the whole run has ended, or is read from a copy
        return []
    ranks = [x for x in running if x.process.rank is not None and (x.process.world_size or 1) > 1]
    return [
        *_late([*first][::-1], now_s),
        *(_dead(x, alive) for x in ranks if x not in alive),
        *_hangs([x for x in alive if x.last_step], now_s),
        *_lags([x for x in alive if x in ranks]),
    ]


def _sign_s(followed: Followed) -> float:
    return float(followed.sign["unix_ns"]) / 1e9 if followed.sign is not None else -math.inf


def _dead(followed: Followed, alive: Sequence[Followed]) -> Alert:
    waiting = ", and the others wait for it" if alive else ""
    at = f"{followed.process.unit} {followed.last_step:,}"
    text = (
        f"Rank {followed.process.rank} has given no sign of life since {clock(_sign_s(followed))} "
        f"({at}): it was killed or has crashed{waiting}. Look at its "
        "output, and in the kernel's log (dmesg) for lack of memory."
    )
    return followed.alert("dead", text, float(followed.sign["t_ns"]))  # type: ignore[index]


def _late(ranks: Sequence[Followed], now_s: float) -> Iterator[Alert]:
    if len(ranks) < 2:
        return
    usual_s = float(np.median([x.unix_s(x.process.start_ns) for x in ranks]))
    for followed in ranks:
        late_s = followed.unix_s(followed.process.start_ns) - usual_s
        if late_s > _LATE_S:
            text = (
                f"Rank {followed.process.rank} started {duration(late_s)} after the others, at "
                f"{clock(usual_s + late_s)}. Look at what {followed.process.host} does before then."
            )
            yield followed.alert("late", text, followed.process.start_ns, 0)
    world = max(x.process.world_size or 1 for x in ranks)
    missing = sorted(set(range(world)) - {x.process.rank for x in ranks})
    if missing and now_s - usual_s > 2 * _LATE_S and not any(x.last_step for x in ranks):
        names = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        text = (
            f"{counted(len(missing), 'rank')} of {world} ({names}) have not started "
            f"{duration(now_s - usual_s)} after the others. Look at their nodes, and at what the "
            "launcher prints."
        )
        yield ranks[0].alert("late", text, ranks[0].process.start_ns, 0, "missing")


def _hangs(alive: Sequence[Followed], now_s: float) -> Iterator[Alert]:
    if not alive:
        return
    several = len(alive) > 1
    at_s = max(x.unix_s(x.last_ns) for x in alive)
    usual_s = max(float(np.median(x.table["step_s"])) if len(x.table) else 0.0 for x in alive)
    longest_s = max(x.longest_s for x in alive)
    phases = [PHASES[int(x.sign["phase"])] for x in alive]  # type: ignore[index]
    patience_s = max(_PATIENCE_S[several], 20 * usual_s, 3 * longest_s)
    if now_s - at_s < patience_s or {"evaluation", "checkpoint"} & set(phases):
        return
    # The culprit is behind, or does something else than the others.
    at = min(range(len(alive)), key=lambda i: (alive[i].last_step, phases.count(phases[i])))
    process = alive[at].process
    name = f"rank {process.rank}" if several else "the process"
    text = (
        f"No {process.unit} has ended for {duration(now_s - at_s)}, since {{since}}: {name} is in "
        f"{PHASE_NAMES[phases[at]]}{', and the others wait for it' if several else ''}. "
        f"`py-spy dump --pid {process.pid}` on {process.host} tells the line."
    )
    yield alive[at].alert("hangs", text, alive[at].last_ns)


def _lags(ranks: Sequence[Followed]) -> Iterator[Alert]:
    """Tell of a rank that the others have waited for from the beginning."""
    lengths = [len(x.table) for x in ranks]  # what comes later is told as a change
    if len(ranks) < 2 or min(lengths) < ENOUGH or max(lengths) > 2 * ENOUGH:
        return
    recent = [x.table[-ENOUGH:] for x in ranks]
    waits = np.array([np.nan_to_num(np.median(rows["exchange"])) for rows in recent])
    step_s = float(np.median([np.median(rows["step_s"]) for rows in recent]))
    at = int(np.argmin(waits))
    lag = float(np.median(np.delete(waits, at))) - waits[at]
    if lag < _LAG * step_s:
        return
    rest = np.concatenate([rows for number, rows in enumerate(recent) if number != at])
    cause, clause = lag_clause(Change(level_of(rest), level_of(recent[at])))
    process = ranks[at].process
    first = recent[at][0]
    text = (
        f"Rank {process.rank} lags: since {{since}} the others wait {percent(lag / step_s)} of "
        f"each step for it: {clause}. Look at {process.host}, process {process.pid}."
    )
    yield ranks[at].alert("lags", text, first["begin_ns"], first["first_step"], cause)
