"""What a watched run tells `run` of the same program, which then observes hardly anything anew."""

import shlex
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.machine.environment import usable_cpus
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.steps import settled_after
from torchdoctor.schema import Evidence, StepStatistics, Workload, fact, secret_values
from torchdoctor.schema.report import TWO_MODES
from torchdoctor.watch.means import comparable
from torchdoctor.watch.ranks import trained
from torchdoctor.watch.recording import PHASES, Start, Steps, WatchedRun
from torchdoctor.watch.window import FIELDS

_ENOUGH_S = 1.0  # of training, for what a watched run does not hold: settings, stacks, files
_FEWEST = 100  # steps of the watched run
_OTHER_TIMES = 1.5  # a step now against one then, either way


def shortened(
    run: WatchedRun, program: Workload, observe: Callable[..., Observation]
) -> Observation:
    """Return a short observation with the steps of a watched run, or a whole one of its own.

    `observe` takes the seconds of training that are enough, or nothing. The last doubt says what
    comes from the watched run, or what is not as it was then.
    """
    folder = str(run.folder.parent)
    short = None
    differs = next(_differences(run, program), None)
    if differs is None:
        short = observe(_ENOUGH_S)
        differs = next(_differences(run, program, short), None)
    if short is None or differs is not None:
        whole = observe()
        doubts = [] if differs is None else [fact(differs.fact, folder=folder, **differs.values)]
        return replace(whole, doubts=[*whole.doubts, *doubts])
    steps = _statistics(comparable(trained(run)[0].steps), short.steps)
    anew = short.steps.total_steps_seen
    doubt = fact("watched-run-used", folder=folder, steps=steps.steps, anew=anew)
    return replace(short, steps=steps, doubts=[*short.doubts, doubt])


def _differences(
    run: WatchedRun, now: Workload, short: Observation | None = None
) -> Iterator[Evidence]:
    """Yield what is not as it was; `short`: None before the program is started."""
    logs = trained(run)
    steps = comparable(logs[0].steps).each() if len(logs) == len(run.starts) == 1 else None
    if steps is None or len(steps) < _FEWEST:
        yield fact("watched-run-too-little", fewest=_FEWEST)
        return
    then = run.starts[0]
    process = logs[0].process
    settings: list[tuple[str, object, object]] = [
        ("machine was", then.host, socket.gethostname()),
        ("program was", _typed(then), _typed(now)),
    ]
    for rows in run.machines.values():
        settings += [("CPUs were", float(cpus), usable_cpus()) for cpus in rows["cpus"][-1:]]
    files = [now.script] if now.script is not None else []
    if short is not None:
        main = short.processes[0]
        boundary = short.steps.boundary
        files += main.sources
        settings.append(("torch was", process.torch, main.torch))
        settings.append(("steps were told by the", process.step_kind, boundary.kind))
        for loader in main.loaders if boundary.kind == "loader" else ():
            if loader.ident == boundary.ident:
                settings.append(("batch size was", process.batch_size, loader.batch_size))
                settings.append(("workers were", process.num_workers, loader.num_workers))
    for name, old, new in settings:
        if old != new:
            yield fact("watched-run-differs", name=name, then=str(old), now=str(new))
    for path in filter(Path.is_file, map(Path, files)):
        if path.stat().st_mtime_ns > then.start_unix_ns:
            yield fact("watched-run-file-changed", path=str(path))
    if short is not None:
        old_s = steps.median_s()
        new_s = short.steps.median_s
        if not 1 / _OTHER_TIMES <= new_s / old_s <= _OTHER_TIMES:
            yield fact("watched-run-other-time", then_s=old_s, now_s=new_s)


def _typed(started: Start | Workload) -> str:
    command = secret_values.masked(started.command)  # a watched program's is stored so
    words = [started.python or "", *command[started.python is not None :]]
    return f"{shlex.join(words)} in {started.cwd}"


def _statistics(steps: Steps, observed: StepStatistics) -> StepStatistics:
    """Return the observed statistics with the times of the watched steps, once they had settled."""
    each_s = steps.each().step_s
    settled = settled_after(each_s) or 0
    warming = min(settled, len(each_s) // 3)
    each_s = each_s[warming:]
    steps = Steps(rows=steps.rows[warming:])
    means = dict(zip(PHASES, steps.spent_s.sum(axis=0) / steps.steps.sum(), strict=True))
    # An evaluation, a checkpoint and the collector are part of the other phases there.
    mean_s = sum(means.values())
    means["forward"] += means["evaluation"]
    means["other"] += means.pop("checkpoint") + means["gc"]
    fields: dict[str, Any] = {
        FIELDS.get(phase, f"{phase}_s"): float(s) for phase, s in means.items()
    }
    parts = {"p10_s": 10, "median_s": 50, "p90_s": 90, "p99_s": 99}
    fields |= {name: float(np.percentile(each_s, part)) for name, part in parts.items()}
    fields |= {"steps": int(steps.steps.sum()), "warmup_steps": settled, "settled_after": settled}
    fields["two_modes"] = abs(mean_s / fields["median_s"] - 1.0) > TWO_MODES
    fields["evaluations"] = int((steps.rows["evaluation"] > 0).sum())
    fields |= {"mean_s": float(mean_s), "evaluation_wait_s": 0.0, "still_warming": False}
    return replace(observed, **fields)
