"""The report of a watched run: during it, after it, or after it was killed."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from torchdoctor.reports import document as doc
from torchdoctor.reports import html, markdown, terminal
from torchdoctor.reports.document import Block, KeyFigures, sections, sentences, table
from torchdoctor.reports.formats import program
from torchdoctor.reports.pictures import Picture, rounded, thinned, times_drawn
from torchdoctor.schema import RankTime
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import (
    counted,
    duration,
    percent,
    ratio,
    relative,
    seconds,
    speedup,
)
from torchdoctor.schema.record_files import REPORT_NAME, encoded, write_text
from torchdoctor.schema.summary import NextCommand
from torchdoctor.schema.summary import Summary as Answer
from torchdoctor.schema.units import several
from torchdoctor.watch import means as tables
from torchdoctor.watch.causes import PHASE_COLOURS, PHASE_NAMES
from torchdoctor.watch.changes import MEAN_S
from torchdoctor.watch.followed import clock
from torchdoctor.watch.ranks import trained
from torchdoctor.watch.recording import PHASES, WatchedRun, opened
from torchdoctor.watch.summary import Summary, summary_of

FORMATS = ("text", "html", "markdown", "json")
_MOST_ALERTS = 4
_WORTH = 1.02  # a gain below is not told
_MOST_RANKS = 32


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
            return encoded({"summary": _in_short(summary), **vars(summary)})
        case "html":
            return html.render(document(summary), pictures(run, summary))
        case "markdown":
            return markdown.render(document(summary), details)
        case "text" | "terminal":
            return terminal.render(document(summary), details=details)
    raise UsageError(f"A watched run has no report as '{format}': choose {', '.join(FORMATS)}.")


def _in_short(summary: Summary) -> Answer:
    """Return what stands first in the JSON."""
    place = summary.location
    trying = NextCommand(command=summary.trying, why="Nothing was tried while it was watched.")
    return Answer(
        sentence=summary.cause or summary.ending,
        location=f"{relative(place.file, summary.cwd)}:{place.line}" if place else None,
        next=trying if summary.trying else None,
    )


def show(folder: Path, details: bool) -> None:
    """Print the report of a run's folder on the terminal; raise UsageError if there is no run."""
    terminal.show(document(summary_of(opened(folder))), details)


def document(summary: Summary) -> doc.Document:
    """Return what the report of a watched run says."""
    subject = [program(summary.command, summary.cwd), ", ".join(summary.hosts[:3])]
    subject += [f"{len(summary.ranks)} ranks" if summary.ranks else "", duration(summary.elapsed_s)]
    told = [alert.sentence for alert in summary.alerts]
    return doc.Document(
        title="torchdoctor watch",
        subject=" · ".join(filter(None, subject)),
        summary=summary.cause or summary.ending,
        screen=sections(
            ("", _answer(summary)),
            ("Where the time went", phase_bars(summary.phases_s)),
            ("Over time", _periods(summary)),
            ("Slowest steps", _slowest(summary)),
            ("", _costs(summary)),
            ("What happened", doc.notes(told[:_MOST_ALERTS])),
            ("", sentences("" if summary.median_step_s is None else summary.ending, tone="soft")),
        ),
        details=_details(summary, told),
        hint=f"details: torchdoctor report {summary.folder} --details",
    )


def _answer(summary: Summary) -> list[Block]:
    if summary.median_step_s is None or summary.best_step_s is None:
        return [doc.Sentence(summary.ending, "strong")]
    blocks: list[Block] = [doc.Sentence(summary.cause, "strong")]
    units = several(summary.unit)
    steps = f"{summary.steps:,}"
    median = f"median {seconds(summary.median_step_s)}"
    title = f"{steps} {units}"
    figure = median
    rows = []
    if summary.best_of_s >= MEAN_S:  # of a shorter run the best part is noise
        hour = "hour" if summary.best_of_s >= 3600 else duration(summary.best_of_s)
        title = f"At the pace of its best {hour}"
        figure = "the run was as fast all the time"
        at_best_s = summary.best_step_s * summary.steps
        if (gain := summary.training_s / max(at_best_s, 1e-9)) >= _WORTH:
            whole = f"{duration(at_best_s)}, not {duration(summary.training_s)}"
            figure = f"all {units} take {whole} ({ratio(gain)}x)"
        rows.append((units, f"{steps}, {median}"))
    if summary.drift is not None:
        why = f": {summary.drift_cause}" if summary.drift_cause else ""
        rows.append(
            ("last quarter", f"{ratio(summary.drift)}x a {summary.unit} of the first quarter{why}")
        )
    blocks.append(KeyFigures(title, figure, rows))
    if summary.trying:
        told = ""
        most = summary.at_most
        if most is not None:
            told = f" (what works on {most.works_on} gains {ratio(most.speedup)}x at most)"
        blocks += [doc.Sentence(f"Try remedies{told}:"), doc.Code(summary.trying, "shell")]
    return blocks


def phase_bars(phases: Mapping[str, float]) -> list[Block]:
    """Return the phases as parts of one bar, the largest first; `phases`: seconds by name."""
    whole = max(sum(phases.values()), 1e-9)
    bars = [
        doc.Bar(PHASE_COLOURS[name], PHASE_NAMES[name], spent / whole, percent(spent / whole))
        for name, spent in sorted(phases.items(), key=lambda part: -part[1])
        if spent > 0.0005 * whole
    ]
    return [doc.Bars(bars)] if bars else []


def _periods(summary: Summary) -> list[Block]:
    names = sorted(PHASES, key=lambda x: -max((p.phases_s[x] for p in summary.periods), default=0))
    shown = [x for x in names if x not in ("evaluation", "checkpoint")][:3]
    rows = [
        [
            f"{period.first_step:,}-{period.last_step:,}",
            clock(period.t_unix_s),
            seconds(period.step_s),
            f"{period.samples_per_s:,.0f}" if period.samples_per_s else "-",
            *(seconds(period.phases_s[name]) for name in shown),
        ]
        for period in summary.periods
    ]
    unit = summary.unit
    columns = [
        several(unit),
        "from",
        f"a {unit}",
        "samples/s",
        *(PHASE_NAMES[name] for name in shown),
    ]
    return table(columns, rows)


def _slowest(summary: Summary) -> list[Block]:
    rows = [
        [f"{slow.step:,}", clock(slow.t_unix_s), seconds(slow.step_s), slow.cause]
        for slow in summary.slowest
    ]
    return table([summary.unit, "at", "took", "mostly"], rows)


def _costs(summary: Summary) -> list[Block]:
    """Return what evaluation, checkpoints and the slowest rank cost."""
    whole = max(sum(summary.phases_s.values()), 1e-9)
    lines = []
    for name, count in (("evaluation", summary.evaluations), ("checkpoint", summary.checkpoints)):
        if count:
            spent_s = summary.phases_s[name]
            each = f"{counted(count, name)} of {seconds(spent_s / count)} on average"
            spent = duration(spent_s) if spent_s >= 10 else seconds(spent_s)
            lines.append(f"{each}, {spent} in all ({percent(spent_s / whole)}).")
    if summary.own_cost is not None:
        cost = f"{speedup(summary.own_cost)} the time of one without"
        lines.append(
            f"A {summary.unit} with torchdoctor's hooks takes {cost}, measured in this run."
        )
    if summary.ranks and not summary.rank_sentence:
        waiting = percent(summary.rank_waiting)
        lines.append(f"The ranks are even: they wait {waiting} of each step for the slowest.")
    shown = summary.rank_sentence if summary.rank_sentence != summary.cause else ""
    return sentences(*lines, shown)


def _details(summary: Summary, told: list[str]) -> list[doc.Section]:
    ranks = [
        [
            str(rank.rank),
            seconds(rank.step_s),
            seconds(rank.kernel_s),
            seconds(rank.data_loader_s),
            seconds(rank.wait_s),
            percent(rank.last_share),
            f"{rank.clock_offset_s or 0.0:+.3f} s",
        ]
        for rank in _slowest_first(summary)
    ]
    columns = ["rank", "step", "computes", "data", "waits for others", "last", "clock"]
    about = [program(summary.command, ""), summary.folder, summary.steps_found]
    return sections(
        ("Ranks, the slowest first", table(columns, ranks[:_MOST_RANKS])),
        ("All that happened", doc.notes(told)),
        ("Conditions", doc.notes([text for text in about if text])),
    )


def pictures(run: WatchedRun, summary: Summary) -> list[Picture]:
    """Return the curves of the page: steps, phases over time, the machine, the ranks."""
    log = next((log for log in trained(run) if len(log.steps)), None)
    if log is None or not log.steps.plain.any():
        return []
    steps = tables.comparable(log.steps)
    step_s = np.asarray(tables.training_s(steps) / steps.steps)
    at_s = (steps.start_ns - steps.start_ns[0]) / 1e9
    drawn = times_drawn(at_s, step_s, {"steps with an evaluation": steps.rows["evaluation"] > 0})
    unit = summary.unit
    caption = f"A {unit} takes {seconds(summary.median_step_s)} (median), without evaluation."
    shown = [Picture(key="steps", title=f"The time of every {unit}", caption=caption, drawn=drawn)]
    rows = [
        {
            "label": f"{clock(period.t_unix_s)}, from {unit} {period.first_step:,}",
            "s": period.step_s,
            "parts": [
                {"key": PHASE_COLOURS[x], "label": PHASE_NAMES[x], "share": spent / period.step_s}
                for x, spent in period.phases_s.items()
                if x not in ("evaluation", "checkpoint")
            ],
        }
        for period in summary.periods
    ]
    title = f"Where a {unit}'s time went, over the run"
    if rows:
        shown.append(Picture(key="time", title=title, caption=summary.cause, drawn={"rows": rows}))
    shown.append(_machine(run, log.process.host, float(steps.start_ns[0])))
    if summary.ranks:
        caption = summary.rank_sentence or "No rank is far behind the others."
        drawn = {"ranks": [asdict(rank) for rank in _slowest_first(summary)[:_MOST_RANKS]]}
        shown.append(Picture(key="ranks", title="Who waits for whom", caption=caption, drawn=drawn))
    return shown


def _slowest_first(summary: Summary) -> list[RankTime]:
    return sorted(summary.ranks, key=lambda rank: rank.wait_s or 0.0)


def _machine(run: WatchedRun, host: str, begin_ns: float) -> Picture:
    rows = run.machines.get(host, np.zeros(0))
    title = "Processors and memory meanwhile"
    if len(rows) < 3:
        return Picture(key="resources", title=title, missing="Nothing was measured beside the run.")
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
    caption = f"The machine is {host}; the clock is that of the times above."
    return Picture(key="resources", title=title, caption=caption, drawn=drawn)
