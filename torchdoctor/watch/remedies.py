"""Which fixes may help a watched run, and what they gain at most, by the rules of a diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import LEAST_SHARE
from torchdoctor.queries.bounds import bound_of, share_saved
from torchdoctor.schema import (
    Bound,
    Boundary,
    Environment,
    LoaderFacts,
    ModelFacts,
    ProcessFacts,
    Recording,
    StepStatistics,
    Workload,
)
from torchdoctor.watch.recording import Process, Start

# Fields of StepStatistics by the log's name, where that differs.
FIELDS = {"wait": "data_wait_s", "copy": "h2d_copy_s"}
# What is a part of other phases there.
_WITHIN = {"evaluation": "forward", "checkpoint": "other", "gc": "other"}
_OF_CALLS = ("forward", "other")  # what helps there tell facts of the calls, which `run` notes


@dataclass(frozen=True)
class Remedies:
    """Fixes that work on something that was seen, by id, and the largest bound that is known."""

    fixes: list[str]
    most: Bound | None


def remedies(
    start: Start, process: Process, phases_s: Mapping[str, float], steps: int, largest: str
) -> Remedies:
    """Return the fixes that treat or work in the largest phase; `phases_s`: of all the steps.

    None are named for the calls of a program that infers.
    """
    if process.infers and largest in _OF_CALLS:
        return Remedies([], None)
    phase = FIELDS.get(largest, f"{largest}_s")
    treating = {ident for ident, check in catalogue.checks().items() if phase in check.phases}
    watched = recording(start, process, phases_s, steps)
    fixes: list[str] = []
    bounds: list[Bound | None] = []
    for ident, fix in catalogue.fixes().items():
        if fix.risk >= 3 or not (phase in fix.phases or treating.intersection(fix.treats)):
            continue
        touched = fix.touches(watched)
        if touched is not None and share_saved(touched) < LEAST_SHARE:
            continue
        if process.infers and fix.refusal(watched) is not None:
            continue
        fixes.append(ident)
        bounds.append(bound_of(touched))
    known = [bound for bound in bounds if bound is not None]
    return Remedies(fixes, max(known, key=lambda x: x.speedup, default=None))


def recording(
    start: Start, process: Process, phases_s: Mapping[str, float], steps: int
) -> Recording:
    """Return a watched run as what fixes are asked about; all that was not watched is unknown."""
    means = {name: spent / max(steps, 1) for name, spent in phases_s.items()}
    mean_s = sum(means.values())
    for name, around in _WITHIN.items():
        means[around] = means.get(around, 0.0) + means.get(name, 0.0)
    means.pop("checkpoint", None)
    timed: dict[str, Any] = {FIELDS.get(name, f"{name}_s"): spent for name, spent in means.items()}
    loader = LoaderFacts(
        ident=0, num_workers=process.num_workers or 0, batch_size=process.batch_size
    )
    return Recording(
        workload=Workload(command=start.command, cwd=start.cwd),
        environment=Environment(torch=process.torch or None),
        steps=StepStatistics(
            boundary=Boundary(
                kind=process.step_kind or "loader",
                learned_by="forward" if process.infers else "backward",
            ),
            how_found=process.steps_found,
            steps=steps,
            warmup_steps=0,
            median_s=mean_s,
            mean_s=mean_s,
            p10_s=mean_s,
            p90_s=mean_s,
            **timed,
        ),
        processes=[
            ProcessFacts(
                pid=process.pid,
                loaders=[loader] if process.num_workers is not None else [],
                models=[ModelFacts(ident=0, device=process.device)],
            )
        ],
    )
