"""What a report's run folder still holds of the raw columns: read once, for scalars and images."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torchdoctor.pairs.launch_steps import (
    BASELINE,
    LaunchSteps,
    Observed,
    observed,
    timed_launches,
)
from torchdoctor.words import Report


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Launches with their steps; `kinds`: "baseline" and "recommended", those that were timed."""

    observed: Observed | None = None
    kinds: dict[str, list[LaunchSteps]] = field(default_factory=dict)


def read_measured(report: Report) -> Measured:
    """Return the launches of a report's run; what is not there, or damaged, is left out."""
    if not report.run_folder or report.steps is None:
        return Measured()
    folder = Path(report.run_folder)
    launches = timed_launches(folder)
    chosen = {fix.fix: fix.settings for fix in report.recommendation.fixes}
    kinds = {
        "baseline": [launch for launch in launches if launch.name == BASELINE],
        "recommended": [x for x in launches if chosen and dict(x.fixes) == chosen],
    }
    return Measured(
        observed=observed(folder, report.steps.boundary),
        kinds={kind: timed for kind, timed in kinds.items() if timed},
    )


def trace_files(report: Report) -> list[Path]:
    """Return the traces that the report is about, one for each rank, if still there."""
    if report.run_folder:
        return sorted(Path(report.run_folder).glob("launches/*/channel/trace-*.json.gz"))
    named = [rank.path for rank in report.ranks] or ([report.trace.path] if report.trace else [])
    return [path for path in map(Path, named) if path.is_file()]
