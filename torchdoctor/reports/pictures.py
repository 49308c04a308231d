"""The pictures of a report's page, drawn by `page/page.js`: a caption and figures, or a reason."""

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.advice import catalogue
from torchdoctor.machine.sensor_columns import sensor_curves
from torchdoctor.observe.events import evaluation_mask
from torchdoctor.observe.step_lanes import lanes_of_events
from torchdoctor.observe.steps import step_numbers
from torchdoctor.probe import step_log
from torchdoctor.queries.outcomes import value_of
from torchdoctor.reports.run_columns import Measured, Observed, profiled_lanes, read_measured
from torchdoctor.reports.time_parts import replayed_gains, time_bars
from torchdoctor.reports.trial_rows import figures_of, measured, verdict_of
from torchdoctor.reports.vocabulary import step_of, steps_of
from torchdoctor.schema import Report, TraceStatistics
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import (
    SHARE_LABELS,
    clean,
    fixes_with_settings,
    percent,
    relative,
    seconds,
    speedup,
    visible,
)
from torchdoctor.schema.intervals import without_gaps
from torchdoctor.schema.record_files import RECORDING_NAME, read_recording

_MOST_STEPS, _MOST_SAMPLES, _MOST_MARKED = 4000, 1200, 500  # points in one picture
_BINS = 48
_HIGHEST = 99.5  # percentile of step times that the histogram reaches to
_OUTLIER = 2.0  # times the median
_NARROWEST = 1 / 4000  # of a timeline: shorter gaps are not drawn
_MOST_BARS = 12
_MOST_LINES = 8
_AROUND = 2
_LEAST_SHARE = 0.01  # of a line that is listed


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture: `drawn` holds its figures by name; None: there are none, for a reason."""

    key: str
    title: str
    caption: str = ""  # what to see in it
    drawn: dict[str, Any] | None = None
    missing: str = ""  # why it is left out


def pictures(report: Report) -> list[Picture]:
    """Return the pictures of a report, in the order of the page."""
    columns = read_measured(report)
    trace = report.trace
    return [
        _time(report),
        _trials(report),
        steps_picture(report, columns),
        _resources(report, columns.observed),
        _timeline(report, columns.observed),
        *([_operators(trace, step_of(report))] if trace is not None and trace.operators else []),
        _tree(report),
        _ranks(report),
        _source(report),
    ]


def _time(report: Report) -> Picture:
    step = step_of(report)
    title = f"Where a {step}'s time goes"
    time = report.baseline.step_time_s
    step_s = time.median if time else report.trace.step_s if report.trace else None
    bars = time_bars(report)
    if not bars or not step_s:
        return Picture(key="time", title=title, missing=f"No share of the {step} was measured.")
    parts = [
        {"key": bar.key, "label": f"{bar.text} {bar.label}", "share": bar.share} for bar in bars
    ]
    rows: list[dict[str, Any]] = [{"label": f"the {step} as it is", "s": step_s, "parts": parts}]
    for ceiling in report.ceiling_trials:
        if ceiling.whole and ceiling.decided and ceiling.speedup is not None:
            ends = {"low": step_s / ceiling.speedup.high, "high": step_s / ceiling.speedup.low}
            label = f"without {clean(ceiling.removes)}"
            rows.append({"label": label, "s": step_s / ceiling.speedup.estimate, **ends})
    how = "by experiment"
    if len(rows) == 1:
        how = "by replay of the trace, not measured"
        rows += [
            {"label": f"without {SHARE_LABELS.get(branch, branch)}", "s": step_s / gain}
            for branch, gain in replayed_gains(report).items()
        ]
    together = report.recommendation.speedup
    if together is not None:
        ends = {"low": step_s / together.high, "high": step_s / together.low}
        label = "with the recommended fixes"
        rows.append({"label": label, "s": step_s / together.estimate, "good": True, **ends})
    caption = f"The largest part of the {step} is {bars[0].label} with {bars[0].text}."
    if len(rows) > 1 + (together is not None):
        caption += f" The other bars show the {step} without one of its costs, {how}."
    return Picture(key="time", title=title, caption=caption, drawn={"rows": rows})


def _trials(report: Report) -> Picture:
    title = "What each fix gains"
    tried = [trial for trial in measured(report) if trial.speedup is not None]
    if not tried:
        reason = report.no_trials_reason or "No fix was measured."
        return Picture(key="trials", title=title, missing=clean(reason))
    rows = [
        {
            "label": fixes_with_settings(catalogue.named(trial.fixes)),
            "figures": figures_of(trial),
            "verdict": verdict_of(trial),
            "pairs": trial.pair_speedups,
            "interval": trial.speedup and asdict(trial.speedup),
        }
        for trial in sorted(tried, key=value_of, reverse=True)
    ]
    floor = report.noise_floor
    caption = "A fix is proven faster if its whole interval lies to the right of 1."
    if any(row["pairs"] for row in rows):
        caption += " Each small dot is one pair."
    if floor is not None:
        caption += f" The band is the untouched program against itself: {speedup(floor)}."
    drawn = {"rows": rows, "floor": floor and asdict(floor)}
    return Picture(key="trials", title=title, caption=caption, drawn=drawn)


def steps_picture(report: Report, columns: Measured) -> Picture:
    """Return the time of every step of the observed launch, or of a trace."""
    key = "steps"
    title = f"The time of every {step_of(report)}"
    launch = columns.observed
    trace = report.trace
    marks: dict[str, NDArray[np.bool_]] = {}
    if launch is not None:
        at_ns, step_s = columns.steps("observed")
        at_s = (at_ns - launch.edges[0]) / 1e9
        marks = _marks(launch, step_s)
    elif trace is not None and trace.steps > 1 and report.steps is None:
        step_s = np.array(trace.step_times_s)
        at_s = np.cumsum(step_s)
    else:
        reason = "The steps of the observed launch are not there to be drawn."
        if report.run_folder and not Path(report.run_folder).is_dir():
            reason = f"The run's folder {report.run_folder} is not there any more."
        if report.steps is None and trace is not None:
            reason = "The trace holds a single step, or no mark of a step."
        return Picture(key=key, title=title, missing=reason)
    warmup = min(report.steps.warmup_steps if report.steps else 0, len(step_s))
    mark_counts = [f"{mark.sum():,} {name}" for name, mark in marks.items() if mark.any()]
    caption = (
        f"The median of {len(step_s):,} {steps_of(report)} is {seconds(float(np.median(step_s)))}"
    )
    caption += (
        f"; marked are {', '.join(mark_counts)}."
        if mark_counts
        else f"; no {step_of(report)} stands out."
    )
    caption += f" The histogram counts the {steps_of(report)} by their time."
    warm = float(at_s[warmup - 1]) if warmup else 0.0
    drawn = times_drawn(at_s, step_s, marks, warm)
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def times_drawn(
    at_s: NDArray[np.float64],
    step_s: NDArray[np.float64],
    marks: dict[str, NDArray[np.bool_]],
    warm: float = 0.0,
) -> dict[str, Any]:
    """Return the figures of a picture of every step; the warm-up ends at `warm` (s)."""
    kept = thinned(step_s, _MOST_STEPS, [np.flatnonzero(mark) for mark in marks.values()])
    top = float(np.percentile(step_s, _HIGHEST))
    median = float(np.median(step_s))
    reach = min(float(step_s.min()), 0.95 * median), max(top, 1.05 * median)  # all may be the same
    counts, edges = np.histogram(np.minimum(step_s, top), bins=_BINS, range=reach)
    return {
        "x": rounded(at_s[kept]),
        "y": rounded(step_s[kept] * 1e3),
        "marks": {name: np.flatnonzero(mark[kept]).tolist() for name, mark in marks.items()},
        "median": median * 1e3,
        "counts": counts.tolist(),
        "edges": rounded(edges * 1e3),
        "cut": bool(step_s.max() > top),
        "warm": warm,
    }


def _marks(launch: Observed, step_s: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
    """Return which steps hold an evaluation, a pause of the garbage collector, or stand out."""
    events, steps = launch.events, len(step_s)
    numbers = step_numbers(events, launch.rows)

    def holding(rows: NDArray[Any]) -> NDArray[np.bool_]:
        mask = np.zeros(steps, dtype=bool)
        inside = numbers[rows]
        mask[inside[(inside >= 0) & (inside < steps)]] = True
        return mask

    evaluated = holding(np.flatnonzero(evaluation_mask(events)))
    collected = holding(events.at(step_log.GC_BEGIN)) & ~evaluated
    outlying = (step_s > _OUTLIER * np.median(step_s)) & ~evaluated & ~collected
    return {
        "steps with an evaluation": evaluated,
        "with a pause of the garbage collector": collected,
        f"others above {_OUTLIER:.0f}x the median": outlying,
    }


def thinned(
    values: NDArray[np.float64], most: int, wanted: Iterable[NDArray[np.int64]] = ()
) -> NDArray[np.int64]:
    """Return about `most` rows to draw: the extremes of each stretch, as many others of it (or the
    extremes would look like two kinds of steps), and some of each `wanted`."""
    if len(values) <= most:
        return np.arange(len(values))
    cuts = np.linspace(0, len(values), most // 4 + 1).astype(int)
    rows = [
        begin + at
        for begin, end in itertools.pairwise(cuts)
        for part in [values[begin:end]]
        for at in (np.argmin(part), np.argmax(part), 0, len(part) // 2)
    ]
    few = [some[:: -(-len(some) // _MOST_MARKED)] for some in wanted if len(some)]
    return np.unique(np.concatenate([np.array(rows), *few]))


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Return values with the digits that a picture can show."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _resources(report: Report, launch: Observed | None) -> Picture:
    key = "resources"
    title = "Processors, memory, disk and network meanwhile"
    sensors = launch.sensors if launch is not None else None
    curves = sensor_curves(sensors) if sensors is not None else {}
    if launch is None or sensors is None or not curves:
        of = "run folder" if report.steps is not None else "trace"
        reason = f"The {of} holds no measurements of the machine over time."
        return Picture(key=key, title=title, missing=reason)
    start_s = (int(launch.edges[0]) + int(sensors.wall_offset_ns[0])) / 1e9
    drawn = {}
    for name, (at_s, values) in curves.items():
        kept = thinned(values, _MOST_SAMPLES)
        drawn[name] = {"x": rounded(at_s[kept] - start_s), "y": rounded(values[kept])}
    busy = report.sensors.cpu_share
    caption = f"The usable CPUs were busy for {percent(busy)} of the time. " if busy else ""
    caption += "The clock is that of the times above, so that peaks can be compared."
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def _timeline(report: Report, launch: Observed | None) -> Picture:
    key = "timeline"
    title = f"What ran when, in a few usual {steps_of(report)}"
    lanes = profiled_lanes(report)
    of = "the profiler's trace: lanes at the same moment overlap"
    if lanes is None and launch is not None and report.steps is not None:
        lanes = lanes_of_events(launch.events, launch.rows, report.steps.warmup_steps)
        of = "the observed launch, by phase"
    if lanes is None:
        return Picture(key=key, title=title, missing="No trace is there to be drawn.")
    whole = int(lanes.edges[-1])
    covered = {label: lane.total / whole for label, lane in lanes.lanes.items()}
    longest = max(covered, key=lambda label: covered[label], default="")
    last = lanes.first + len(lanes.edges) - 2
    names = [name.capitalize() for name in (step_of(report), steps_of(report))]
    steps = f"{names[0]} {last}"
    if last != lanes.first:
        steps = f"{names[1]} {lanes.first} to {last}"
    caption = f"{steps if lanes.steps_known else 'All'} of {of}."
    if longest:
        caption += f" The longest lane, {longest}, covers {percent(covered[longest])} of this time."
    gap = int(whole * _NARROWEST)
    shown = {label: without_gaps(lane, gap) for label, lane in lanes.lanes.items()}
    path = report.trace.path if report.trace else ""
    there = path and Path(path).is_file()
    drawn = {
        "edges": lanes.edges.tolist() if lanes.steps_known else [],
        "first": lanes.first,
        "whole": whole,
        "lanes": [
            {
                "label": label,
                "share": percent(covered[label]),
                "from": lane.start.tolist(),
                "to": lane.end.tolist(),
            }
            for label, lane in shown.items()
        ],
        "trace": relative(path, report.run_folder or "") if there else None,
    }
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def _operators(trace: TraceStatistics, unit: str) -> Picture:
    key = "operators"
    title = "The operators and kernels that take most"
    device = trace.has_device
    cost_s = {
        operator: (operator.device_s or 0.0) if device else operator.self_s
        for operator in trace.operators
    }
    rows: list[dict[str, Any]] = [
        {"label": clean(operator.name), "s": spent, "calls": operator.calls_per_step}
        for operator, spent in sorted(cost_s.items(), key=lambda row: -row[1])[:_MOST_BARS]
    ]
    where = "device" if device else "host"
    most = f"{rows[0]['label']} takes most of the {where}'s time"
    caption = f"{most}: {seconds(rows[0]['s'])} a {unit}."
    return Picture(key=key, title=title, caption=caption, drawn={"rows": rows})


def _tree(report: Report) -> Picture:
    key = "tree"
    title = "How the cause was found"
    diagnosis = report.diagnosis
    if not diagnosis.path:
        return Picture(key=key, title=title, missing="No question of the tree was asked.")
    checks = catalogue.checks()
    branches = {check.question.text: check.branch for check in checks.values() if check.question}
    below: dict[str, list[str]] = {}
    for finding in diagnosis.findings:
        if finding.check in checks:  # a report may name a check of another version
            below.setdefault(checks[finding.check].branch, []).append(finding.check)
    asked = [(question, branches.get(question.question, "")) for question in diagnosis.path]
    rows = [
        {**asdict(question), "branch": branch, "checks": below.get(branch, [])}
        for question, branch in asked
    ]
    caption = "Questions are asked from the top; a mark in each bar is the threshold."
    ends = [question.question for question, branch in asked if branch == diagnosis.bottleneck]
    caption += f" The path ends at “{ends[0]}”." if ends else " No answer names a bottleneck."
    drawn = {"rows": rows, "bottleneck": diagnosis.bottleneck, "detail": diagnosis.detail}
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def _ranks(report: Report) -> Picture:
    key = "ranks"
    title = "Who waits for whom: the ranks"
    if not report.ranks:
        reason = "One process trained, so there are no ranks to compare."
        if report.steps is not None and report.steps.trainers > 1:
            reason = "The ranks were not compared: that needs profiler windows of the same steps."
        return Picture(key=key, title=title, missing=reason)
    latest = max(report.ranks, key=lambda rank: rank.last_share or 0.0)
    waiting = max(report.ranks, key=lambda rank: rank.wait_s or 0.0)
    caption = "Each bar is the step of a rank, with what it waits for."
    if latest.last_share and waiting.wait_s:
        caption = (
            f"Rank {latest.rank} comes last to {percent(latest.last_share)} of the collectives. "
            f"Rank {waiting.rank} waits longest for others: {seconds(waiting.wait_s)} a step."
        )
    ranks = [{**asdict(rank), "last": percent(rank.last_share)} for rank in report.ranks]
    return Picture(key=key, title=title, caption=caption, drawn={"ranks": ranks})


def _source(report: Report) -> Picture:
    key = "source"
    title = "The lines that cost time, and the change"
    recommended = report.recommendation
    lines = sorted(_lines(report), key=lambda line: -line["share"])[:_MOST_LINES]
    lines = [line for line in lines if line["share"] >= _LEAST_SHARE]
    fixes = recommended.fixes or recommended.also_offered
    patch = recommended.patch or next((fix.edit for fix in fixes if fix.edit), None)
    if not lines and not patch:
        reason = "No line of the program's own source was sampled, and no source edit was made."
        return Picture(key=key, title=title, missing=reason)
    for line in lines:
        line["code"] = _around(line["file"], line["line"], line["text"])
        line["place"] = f"{relative(clean(line['file']), report.workload.cwd)}:{line['line']}"
    caption = "The change is ready to be copied."
    if lines:
        first = f"{Path(lines[0]['file']).name}:{lines[0]['line']}"
        also = " Below the lines stands the change, ready to be copied." if patch else ""
        caption = f"The program spends {percent(lines[0]['share'])} of its time in {first}.{also}"
    drawn = {"lines": lines, "patch": patch and visible(patch), "proven": bool(recommended.patch)}
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def _lines(report: Report) -> list[dict[str, Any]]:
    """Return the program's own lines with their share of the time: of samples, or of a trace."""
    trace = report.trace
    if report.steps is None:
        basis = "of a step, while no device works"
        return [
            {**asdict(place), "share": place.total_s / trace.step_s, "text": "", "told": basis}
            for place in (trace.python_places if trace else [])
            if trace and trace.step_s
        ]
    try:
        stacks = read_recording(Path(report.run_folder or "") / RECORDING_NAME).main.stacks
    except UsageError:
        return []
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted(stacks, key=lambda row: -row.count):
        mostly = f" in {row.leaf_function}" if row.leaf_function else ""
        basis = f"of the samples, mostly{mostly}"
        line = {**asdict(row.location), "share": 0.0, "text": row.text, "told": basis}
        line = lines.setdefault((row.location.file, row.location.line), line)
        line["share"] += row.count / sum(row.count for row in stacks)
    return list(lines.values())


def _around(file: str, number: int, text: str) -> list[tuple[int, str]]:
    """Return a line with those around it, where the file still is as it was sampled.

    Of Python sources alone: a report may come from elsewhere, and the page may be handed on.
    """
    path = Path(file)
    source = list[str]()
    if path.suffix in (".py", ".pyw") and path.is_file():
        with contextlib.suppress(OSError):
            source = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not text or not 0 < number <= len(source) or source[number - 1].strip() != text.strip():
        return [(number, clean(text))]
    first = max(number - _AROUND, 1)
    return list(enumerate(map(clean, source[first - 1 : number + _AROUND]), first))
