"""What the first screen says of bounds: what they rest on, and that of a change by hand."""

from collections.abc import Sequence

from torchdoctor.advice import catalogue
from torchdoctor.queries.bounds import bound_of
from torchdoctor.schema import Bound, Report, Touched
from torchdoctor.schema.report import Finding
from torchdoctor.schema.traced import MATTERS


def worth_of(bounds: Sequence[Bound | None]) -> str:
    """Return what the bounds of fixes rest on, or that hardly anything can be gained."""
    known_bounds = [bound for bound in bounds if bound]
    if not known_bounds:
        return ""
    gains = (
        len(known_bounds) < len(bounds) or max(bound.speedup for bound in known_bounds) >= MATTERS
    )
    subject = "bounds" if gains else "hardly any gain,"
    model = ", or replay (a model)" if any(bound.by == "replay" for bound in known_bounds) else ""
    return f"{subject} by what each works on{model}"


def by_hand_at_most(report: Report, findings: Sequence[Finding]) -> Bound | None:
    """Return the bound of ending the largest cost of these findings."""
    trace = report.trace
    checks = catalogue.checks()
    if trace is None:
        return None
    bounds = []
    for check, share in ((checks[finding.check], finding.share_of_step) for finding in findings):
        branch = "cpu" if check.asks("gpu") else check.branch  # a GPU idles for its host
        cost = Touched(label=check.ident, seconds=share or 0.0, of_s=1.0, branch=branch)
        bounds += [bound_of([cost], trace)] if share else []
    return max((bound for bound in bounds if bound), key=lambda bound: bound.speedup, default=None)
