"""The report of a watched run: during it, after it, or after it was killed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from torchdoctor.reports import document as doc
from torchdoctor.reports import html, markdown, terminal, watched, watched_facts
from torchdoctor.reports.pictures import Picture, rounded, thinned, times_drawn
from torchdoctor.reports.summary import with_json
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import relative
from torchdoctor.schema.record_files import REPORT_NAME, encoded, write_text
from torchdoctor.schema.summary import NextCommand, Summary
from torchdoctor.schema.watched import WatchSummary
from torchdoctor.watch import means as tables
from torchdoctor.watch.ranks import trained
from torchdoctor.watch.recording import WatchedRun, opened
from torchdoctor.watch.summary import summary_of

FORMATS = ("text", "html", "markdown", "json")


def write_end_report(folder: Path) -> None:
    """Write report.json, .txt and .html into the run's folder; `folder`: its `watch`."""
    names = {"json": REPORT_NAME, "terminal": "report.txt", "html": doc.PAGE_NAME}
    for format, name in names.items():
        write_text(rendered(folder.parent, format), folder.parent / name, through_link=False)


def rendered(folder: Path, format: str, details: bool = True) -> str:
    """Return the report of a run's folder in one of `FORMATS`; UsageError: no run, no format."""
    run = opened(folder)
    summary = summary_of(run)
    match format:
        case "json":
            short = with_json(_in_short(summary))
            return encoded({"summary": short, **vars(watched_facts.with_sentences(summary))})
        case "html":
            return html.render(watched.document(summary), pictures(run, summary))
        case "markdown":
            return markdown.render(watched.document(summary), details)
        case "text" | "terminal":
            return terminal.render(watched.document(summary), details=details)
    raise UsageError(f"A watched run has no report as '{format}': choose {', '.join(FORMATS)}.")


def _in_short(summary: WatchSummary) -> Summary:
    """Return what stands first in the JSON."""
    place = summary.location
    trying = NextCommand(command=summary.trying, why="Nothing was tried while it was watched.")
    return Summary(
        sentence=watched.answer_of(summary),
        location=f"{relative(place.file, summary.cwd)}:{place.line}" if place else None,
        next=trying if summary.trying else None,
    )


def show(folder: Path, details: bool) -> None:
    """Print the report of a run's folder on the terminal; raise UsageError if there is no run."""
    terminal.show(watched.document(summary_of(opened(folder))), details)


def pictures(run: WatchedRun, summary: WatchSummary) -> list[Picture]:
    """Return the curves of the page: steps, phases over time, the machine, the ranks."""
    log = next((log for log in trained(run) if len(log.steps)), None)
    if log is None or not log.steps.plain.any():
        return []
    steps = tables.comparable(log.steps)
    step_s = np.asarray(tables.training_s(steps) / steps.steps)
    at_s = (steps.start_ns - steps.start_ns[0]) / 1e9
    drawn = times_drawn(at_s, step_s, {"steps with an evaluation": steps.rows["evaluation"] > 0})
    shown = []
    if summary.median_step_s is not None:
        shown.append(watched.picture("steps", drawn, summary.unit, median_s=summary.median_step_s))
    rows = [watched.period_row(period, summary.unit) for period in summary.periods]
    if rows:
        cause = watched.answer_of(summary)
        shown.append(watched.picture("time", {"rows": rows}, summary.unit, cause=cause))
    shown.append(_machine(run, log.process.host, float(steps.start_ns[0])))
    if summary.ranks:
        ranks = {"ranks": [asdict(rank) for rank in watched.shown_ranks(summary)]}
        slow_rank = watched.slow_rank_of(summary)
        shown.append(watched.picture("ranks", ranks, slow_rank=slow_rank))
    return shown


def _machine(run: WatchedRun, host: str, begin_ns: float) -> Picture:
    rows = run.machines.get(host, np.zeros(0))
    if len(rows) < 3:
        return watched.picture("resources", None)
    at_s = (rows["t_ns"] - begin_ns) / 1e9
    busy = np.diff(rows["busy_s"]) / np.maximum(np.diff(at_s), 1e-9) / rows["cpus"][1:]
    curves = {
        "utilization/cpu": (at_s[1:], np.clip(busy, 0, 1)),
        "utilization/gpu": (at_s, rows["gpu_utilization"]),
        "memory/process_tree_GB": (at_s, rows["tree_bytes"] / 1e9),
        "memory/gpu_GB": (at_s, rows["gpu_memory_bytes"] / 1e9),
    }
    drawn = {}
    for name, (x, y) in curves.items():
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if len(y):
            kept = thinned(y, 1200)
            drawn[name] = {"x": rounded(x[kept]), "y": rounded(y[kept])}
    return watched.picture("resources", drawn, host=host)
