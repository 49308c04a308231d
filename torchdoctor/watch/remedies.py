"""Which fixes may help a watched run, and what they gain at most, by the rules of a diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass

from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import LEAST_SHARE
from torchdoctor.queries.bounds import bound_of, share_saved
from torchdoctor.schema import Bound, Workload
from torchdoctor.watch.recording import Process, Start
from torchdoctor.watch.window import field_of, recording

_OF_CALLS = ("forward", "other")  # what helps there tell facts of the calls, which `run` notes
# Why fixes for programs that infer refuse one that trains.
_FOR_INFERENCE = {
    "program-trains",
    "for-programs-that-infer",
    "trains-use-larger-batch",
    "weights-need-float32",
}


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
    phase = field_of(largest)
    treating = {ident for ident, check in catalogue.checks().items() if phase in check.phases}
    means_s = {name: spent_s / max(steps, 1) for name, spent_s in phases_s.items()}
    workload = Workload(command=start.command, cwd=start.cwd)
    watched = recording(process, means_s, max(steps, 1), workload)
    fixes: list[str] = []
    bounds: list[Bound | None] = []
    for ident, fix in catalogue.fixes().items():
        # What a fix waits for a finding of is not seen here.
        if fix.risk >= 3 or fix.needs_finding:
            continue
        if not (phase in fix.phases or treating.intersection(fix.treats)):
            continue
        touched = fix.touches(watched)
        if touched is not None and share_saved(touched) < LEAST_SHARE:
            continue
        refusal = fix.refusal(watched)
        if refusal is not None and (process.infers or refusal.fact in _FOR_INFERENCE):
            continue
        fixes.append(ident)
        if refusal is None:  # else it is not known here whether that is there to work on
            bounds.append(bound_of(touched))
    known_bounds = [bound for bound in bounds if bound is not None]
    return Remedies(fixes, max(known_bounds, key=lambda bound: bound.speedup, default=None))
