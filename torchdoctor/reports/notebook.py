"""A report in Python: a notebook shows its first screen, pandas gets its trials and steps."""

import itertools
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.reports import html
from torchdoctor.reports.formats import document, rendered
from torchdoctor.reports.run_columns import read_measured
from torchdoctor.words import Report, Trial

_STEP_COLUMNS = ("launches", "launch", "step", "ended_s", "step_s")


@dataclass(frozen=True, kw_only=True, repr=False)
class PythonReport(Report):
    """A report with what Python shows of it; its fields are those of report.json."""

    def __repr__(self) -> str:
        return rendered(self, "terminal", full=False, folder=str(Path.cwd()))

    def _repr_html_(self) -> str:
        """Return the first screen of the report's page, in a frame that keeps its style apart."""
        screen = replace(document(self, str(Path.cwd())), details=[])
        style = "width: 100%; height: 40rem; border: 0"
        return f'<iframe srcdoc="{escape(html.render(screen))}" style="{style}"></iframe>'

    def trials_frame(self) -> Any:
        """Return a pandas frame of the trials, with fields of report.json and names."""
        rows = [
            {
                "name": catalogue.name(trial.fix),
                **vars(trial),
                "speedup": trial.speedup and trial.speedup.estimate,
                "low": trial.speedup and trial.speedup.low,
                "high": trial.speedup and trial.speedup.high,
            }
            for trial in self.trials
        ]
        columns = ["name", *(field.name for field in fields(Trial)), "low", "high"]
        return _pandas().DataFrame(rows, columns=columns)

    def steps_frame(self) -> Any:
        """Return a pandas frame of each step; `ended_s` counts from the first of all."""
        kinds = read_measured(self).kinds
        edges = [(kind, *x) for kind, launches in kinds.items() for x in enumerate(launches)]
        began_ns = min((int(times[0]) for _, _, times in edges), default=0)
        rows = [
            (kind, launch, step, (end - began_ns) / 1e9, (end - begin) / 1e9)
            for kind, launch, times in edges
            for step, (begin, end) in enumerate(itertools.pairwise(times.tolist()))
        ]
        return _pandas().DataFrame(rows, columns=_STEP_COLUMNS)


def in_python(report: Report) -> PythonReport:
    """Return the same report, for Python."""
    return PythonReport(**vars(report))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("Frames of a report need pandas: pip install pandas") from error
    return pandas
