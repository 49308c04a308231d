"""The pictures of a report's page: what each shows, in one sentence, and the figures in it.

A picture whose figures are missing has the reason instead. `page/page.js` draws them.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.advice import catalogue
from torchdoctor.facts.outcomes import value_of
from torchdoctor.machine.sensor_columns import SensorColumns, sensor_curves
from torchdoctor.observe.evaluation import evaluation_mask
from torchdoctor.observe.phases import step_numbers
from torchdoctor.observe.step_lanes import StepLanes, lanes_of_events
from torchdoctor.probe import step_log
from torchdoctor.reports.run_columns import (
    Measured,
    Observed,
    profiled_lanes,
    read_measured,
)
from torchdoctor.reports.time_parts import replayed_gains, time_bars
from torchdoctor.reports.trial_rows import figures_of, measured, verdict_of
from torchdoctor.words import Operator, Question, RankTime, Recording, Report
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import (
    SHARE_LABELS,
    clean,
    fix_with_settings,
    percent,
    quantity,
    relative,
    seconds,
    speedup,
)
from torchdoctor.words.intervals import without_gaps
from torchdoctor.words.record_files import RECORDING_NAME, read_recording

_MOST_STEPS, _MOST_SAMPLES, _MOST_MARKED = 4000, 1200, 500  # points in one picture
_BINS = 48
_HIGHEST = 99.5  # percentile of step times that the histogram reaches to
_OUTLIER = 2.0  # times the median
_NARROWEST = 1 / 4000  # of a timeline: shorter gaps are not drawn
_MOST_BARS, _MOST_LINES, _AROUND = 12, 8, 2
_LEAST_SHARE = 0.01  # of a line that is listed
_NETWORK = "Network traffic was not recorded."


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
    made = [
        _time(report),
        _trials(report),
        _steps(report, columns),
        _resources(report, columns.observed),
        _timeline(report, columns.observed),
        _tree(report),
        _ranks(report),
        _source(report),
    ]
    return made if report.steps is not None else [*made[:5], _operators(report), *made[5:]]


def _time(report: Report) -> Picture:
    title, time = "Where a step's time goes", report.baseline.step_time_s
    step_s = time.median if time else report.trace.step_s if report.trace else None
    bars = time_bars(report)
    if not bars or not step_s:
        return Picture(key="time", title=title, missing="No share of the step was measured.")
    parts = [
        {"key": bar.key, "label": f"{bar.text} {bar.label}", "share": bar.share} for bar in bars
    ]
    rows: list[dict[str, Any]] = [{"label": "the step as it is", "s": step_s, "parts": parts}]
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
    first = bars[0]
    caption = f"The largest part of the step is {first.label} with {first.text}."
    if len(rows) > 1 + (together is not None):
        caption += f" The bars below show the step without one of its costs, {how}."
    for row in rows:
        row["text"] = seconds(row["s"])
    return Picture(key="time", title=title, caption=caption, drawn={"rows": rows})


def _trials(report: Report) -> Picture:
    title = "What each fix gains"
    tried = [trial for trial in measured(report) if trial.speedup is not None]
    if not tried:
        reason = report.no_trials_reason or "No fix was measured."
        return Picture(key="trials", title=title, missing=clean(reason))
    rows = []
    for trial in sorted(tried, key=value_of, reverse=True):
        assert trial.speedup is not None
        verdict = verdict_of(trial)
        rows.append(
            {
                "label": fix_with_settings(catalogue.name(trial.fix), trial.settings),
                "text": f"{figures_of(trial)}, {verdict}",
                "tone": {"faster": "good", "slower": "bad"}.get(verdict, ""),
                "pairs": trial.pair_speedups,
                "interval": _ends(trial.speedup),
            }
        )
    floor = report.noise_floor
    caption = "A fix is proven faster if its whole interval lies to the right of 1."
    if any(row["pairs"] for row in rows):
        caption += " Each small dot is one pair."
    if floor is not None:
        caption += f" The band is the untouched program against itself: {speedup(floor)}."
    drawn = {"rows": rows, "floor": _ends(floor) if floor is not None else None}
    return Picture(key="trials", title=title, caption=caption, drawn=drawn)


def _ends(interval: Any) -> list[float]:
    return [interval.low, interval.estimate, interval.high]


def _steps(report: Report, columns: Measured) -> Picture:
    key, title, launch, trace = "steps", "The time of every step", columns.observed, report.trace
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
        if report.steps is None and trace is not None:
            reason = "The trace holds a single step, or no mark of a step."
        return Picture(key=key, title=title, missing=reason)
    kept = thinned(step_s, _MOST_STEPS, [np.flatnonzero(mark) for mark in marks.values()])
    top = float(np.percentile(step_s, _HIGHEST))
    counts, edges = np.histogram(np.minimum(step_s, top), bins=_BINS)
    median = float(np.median(step_s))
    warmup = min(report.steps.warmup_steps if report.steps else 0, len(step_s))
    told = [f"{mark.sum():,} {name}" for name, mark in marks.items() if mark.any()]
    caption = f"The median of {len(step_s):,} steps is {seconds(median)}"
    caption += f"; marked are {', '.join(told)}." if told else "; no step stands out."
    caption += " The histogram counts the steps by their time."
    drawn = {
        "x": _rounded(at_s[kept]),
        "y": _rounded(step_s[kept] * 1e3),
        "marks": {name: np.flatnonzero(mark[kept]).tolist() for name, mark in marks.items()},
        "median": median * 1e3,
        "counts": counts.tolist(),
        "edges": _rounded(edges * 1e3),
        "cut": bool(step_s.max() > top),
        "warm": float(at_s[warmup - 1]) if warmup else 0.0,
    }
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


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
    """Return rows to draw: the lowest and the highest of each stretch, and some of each `wanted`.

    At most about `most` rows; no extreme is lost.
    """
    if len(values) <= most:
        return np.arange(len(values))
    cuts = np.linspace(0, len(values), most // 2 + 1).astype(int)
    rows = [
        begin + at(values[begin:end])
        for begin, end in itertools.pairwise(cuts)
        for at in (np.argmin, np.argmax)
    ]
    few = [some[:: -(-len(some) // _MOST_MARKED)] for some in wanted if len(some)]
    return np.unique(np.concatenate([np.array(rows), *few]))


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Return values with the digits that a picture can show."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _resources(report: Report, launch: Observed | None) -> Picture:
    key, title = "resources", "Processors, memory and disk under the steps"
    curves = {} if launch is None or launch.sensors is None else _curves(launch.sensors)
    if launch is None or launch.sensors is None or not curves:
        reason = "A trace holds no measurements of the machine."
        if report.steps is not None:
            reason = "The run folder holds no measurements of the machine."
        return Picture(key=key, title=title, missing=reason)
    start_s = (int(launch.edges[0]) + int(launch.sensors.wall_offset_ns[0])) / 1e9
    panels: dict[str, list[dict[str, Any]]] = {}
    for (panel, label), (at_s, values) in curves.items():
        kept = thinned(values, _MOST_SAMPLES)
        series = {"x": _rounded(at_s[kept] - start_s), "y": _rounded(values[kept])}
        panels.setdefault(panel, []).append({"label": label, **series})
    busy = report.sensors.cpu_share
    caption = "All pictures of this clock begin with the first step, so that peaks can be compared."
    if busy is not None:
        caption = f"The usable CPUs were busy for {percent(busy)} of the time. {caption}"
    drawn = {"panels": [{"unit": unit, "series": lines} for unit, lines in panels.items()]}
    return Picture(key=key, title=title, caption=f"{caption} {_NETWORK}", drawn=drawn)


def _curves(
    sensors: SensorColumns,
) -> dict[tuple[str, str], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return (unit of its panel, label) -> wall times in seconds, values."""
    units = {"utilization": ("% busy", 100.0), "memory": ("GB", 1.0), "disk": ("MB/s", 1.0)}
    names = {
        "cpu": "usable CPUs",
        "process_tree_GB": "the program's memory",
        "read_MB_per_s": "read from disk",
        "written_MB_per_s": "written to disk",
    }
    curves = {}
    for name, (at_s, values) in sensor_curves(sensors).items():
        group, _, label = name.partition("/")
        unit, scale = units[group]
        if label != "program_cpus" and len(values):
            told = names.get(
                label, label.removesuffix("_GB").replace("_", " ").replace("gpu", "GPU")
            )
            curves[unit, told] = at_s, values * scale
    return curves


def _timeline(report: Report, launch: Observed | None) -> Picture:
    key, title = "timeline", "What ran when, in a few usual steps"
    lanes, of = profiled_lanes(report), "the profiler's trace: lanes at the same moment overlap"
    if lanes is None and launch is not None and report.steps is not None:
        lanes = lanes_of_events(launch.events, launch.rows, report.steps.warmup_steps)
        of = "the observed launch, by phase"
    if lanes is None:
        reason = "No trace is there to be drawn."
        return Picture(key=key, title=title, missing=reason)
    whole = int(lanes.edges[-1])
    covered = {label: lane.total / whole for label, lane in lanes.lanes.items()}
    longest = max(covered, key=lambda label: covered[label], default="")
    caption = f"{_which(lanes)} of {of}."
    if longest:
        caption += f" {longest.capitalize()} covers {percent(covered[longest])} of this time."
    path = report.trace.path if report.trace else ""
    there = path and Path(path).is_file()
    drawn = {
        "edges": lanes.edges.tolist() if lanes.steps_known else [],
        "first": lanes.first,
        "whole": whole,
        "lanes": [
            {"label": label, "share": percent(covered[label]), "spans": _spans(lane, whole)}
            for label, lane in lanes.lanes.items()
        ],
        "trace": relative(path, report.run_folder or "") if there else None,
    }
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def _which(lanes: StepLanes) -> str:
    last = lanes.first + len(lanes.edges) - 2
    steps = f"Step {last}" if last == lanes.first else f"Steps {lanes.first} to {last}"
    return steps if lanes.steps_known else "All"


def _spans(lane: Any, whole: int) -> list[list[int]]:
    """Return (beginning, length) in ns of what a lane covers."""
    drawn = without_gaps(lane, int(whole * _NARROWEST))
    return np.stack([drawn.start, drawn.end - drawn.start], axis=1).tolist()  # type: ignore[no-any-return]


def _operators(report: Report) -> Picture:
    key, title, trace = "operators", "The operators and kernels that take most", report.trace
    if trace is None or not trace.operators or not trace.step_s:
        return Picture(key=key, title=title, missing="The trace names no operator.")
    where = "device" if trace.has_device else "host"

    def cost_s(operator: Operator) -> float:
        return (operator.device_s or 0.0) if trace.has_device else operator.self_s

    chosen = sorted(trace.operators, key=cost_s, reverse=True)[:_MOST_BARS]
    rows = [
        {
            "label": clean(operator.name),
            "s": cost_s(operator),
            "text": f"{seconds(cost_s(operator))}, {quantity(operator.calls_per_step, 'calls')}",
        }
        for operator in chosen
        if cost_s(operator) > 0
    ]
    if not rows:
        return Picture(key=key, title=title, missing="No operator of the trace took any time.")
    caption = f"{rows[0]['label']} takes most of the {where}'s time: {rows[0]['text']} per step."
    return Picture(key=key, title=title, caption=caption, drawn={"rows": rows})


def _tree(report: Report) -> Picture:
    key, title, diagnosis = "tree", "How the cause was found", report.diagnosis
    if not diagnosis.path:
        return Picture(key=key, title=title, missing="No question of the tree was asked.")
    checks = catalogue.checks()
    branches = {check.question.text: check.branch for check in checks.values() if check.question}
    found = [(finding, checks.get(finding.check)) for finding in diagnosis.findings]
    rows = []
    for asked in diagnosis.path:
        branch = branches.get(asked.question, "")
        below = [
            {"check": finding.check, "named": finding.check == diagnosis.detail}
            for finding, check in found
            if check is not None and check.branch == branch
        ]
        named = bool(branch) and branch == diagnosis.bottleneck
        rows.append({**_node(asked), "named": named, "checks": below})
    ends = [row["question"] for row in rows if row["named"]]
    caption = "Questions are asked from the top; each bar has its threshold as a line."
    caption += f" The path ends at “{ends[0]}”." if ends else " No answer names a bottleneck."
    return Picture(key=key, title=title, caption=caption, drawn={"rows": rows})


def _node(asked: Question) -> dict[str, Any]:
    known = asked.value is not None and asked.threshold is not None
    figure = f"{quantity(asked.value, asked.unit, asked.threshold)}" if known else asked.answer
    return {
        "question": clean(asked.question),
        "answer": asked.answer,
        "metric": clean(asked.metric),
        "value": asked.value if known else None,
        "threshold": asked.threshold,
        "text": figure,
        "limit": quantity(asked.threshold, asked.unit) if known else "",
        "most": 1.0 if asked.unit == "share" else None,
    }


def _ranks(report: Report) -> Picture:
    key, title = "ranks", "Who waits for whom: the ranks"
    if not report.ranks:
        reason = "One process trained, so there are no ranks to compare."
        return Picture(key=key, title=title, missing=reason)
    rows = []
    for rank in report.ranks:
        last = f", last to {percent(rank.last_share)} of collectives" if rank.last_share else ""
        text = f"{seconds(rank.step_s)}{last}"
        rows.append({"label": f"rank {rank.rank}", "parts": _rank_parts(rank), "text": text})
    own = {rank.rank: rank.step_s - (rank.communication_exposed_s or 0.0) for rank in report.ranks}
    slowest = max(own, key=lambda rank: own[rank])
    caption = f"Rank {slowest} works longest by itself ({seconds(own[slowest])} of a step)."
    waits = {rank.rank: rank.wait_s for rank in report.ranks if rank.wait_s is not None}
    if waits:
        waiting = max(waits, key=lambda rank: waits[rank])
        caption += f" Rank {waiting} waits longest for others: {seconds(waits[waiting])} a step."
    return Picture(key=key, title=title, caption=caption, drawn={"rows": rows})


def _rank_parts(rank: RankTime) -> list[dict[str, Any]]:
    exposed = rank.communication_exposed_s or 0.0
    waits = min(rank.wait_s or 0.0, exposed)
    own = max(rank.step_s - exposed - rank.data_loader_s - rank.kernel_s, 0.0)
    parts = {
        ("gpu", "kernels"): rank.kernel_s,
        ("cpu", "other work of its own"): own,
        ("data_loader", "waits for data"): rank.data_loader_s,
        ("communication", "collectives"): exposed - waits,
        ("waits", "waits for other ranks"): waits,
    }
    return [{"key": key, "label": label, "s": s} for (key, label), s in parts.items() if s > 0]


@dataclass(frozen=True, kw_only=True)
class _Line:
    file: str
    line: int
    function: str
    share: float
    doing: str
    text: str = ""
    around: list[tuple[int, str]] = field(default_factory=list)


def _source(report: Report) -> Picture:
    key, title = "source", "The lines that cost time, and the change"
    rows = [line for line in _lines(report) if line.share >= _LEAST_SHARE][:_MOST_LINES]
    fixes = report.recommendation.fixes or report.recommendation.also_offered
    patch = report.recommendation.patch or next((fix.edit for fix in fixes if fix.edit), None)
    if not rows and not patch:
        reason = "No line of the program's own source was sampled, and no source edit was made."
        return Picture(key=key, title=title, missing=reason)
    caption = "No line of the source was sampled; the change is ready to be copied."
    if rows:
        name = f"{Path(rows[0].file).name}:{rows[0].line}"
        caption = f"The program spends {percent(rows[0].share)} of its time in {name}."
        caption += " Below the lines stands the change, ready to be copied." if patch else ""
    lines = [
        {
            "place": f"{relative(clean(line.file), report.workload.cwd)}:{line.line}",
            "function": clean(line.function),
            "share": line.share,
            "text": f"{percent(line.share)} {line.doing}".strip(),
            "code": [[at, clean(text)] for at, text in line.around] or [[line.line, line.text]],
            "line": line.line,
        }
        for line in rows
    ]
    proven = bool(report.recommendation.patch)
    drawn = {"lines": lines, "patch": clean(patch) if patch else None, "proven": proven}
    return Picture(key=key, title=title, caption=caption, drawn=drawn)


def _lines(report: Report) -> list[_Line]:
    """Return the program's own lines with their share of the time, the most expensive first."""
    if report.steps is None:
        trace = report.trace
        whole = trace.step_s if trace else None
        return [
            _Line(
                file=place.file,
                line=place.line,
                function=place.function,
                share=place.total_s / whole,
                doing="of a step, while no device works",
            )
            for place in (trace.python_places if trace else [])
            if whole
        ]
    try:
        recording = read_recording(Path(report.run_folder or "") / RECORDING_NAME)
    except UsageError:
        return []
    return _sampled(recording)


def _sampled(recording: Recording) -> list[_Line]:
    stacks = recording.main.stacks
    total = sum(row.count for row in stacks)
    groups: dict[tuple[str, int], list[Any]] = {}
    for row in stacks:
        groups.setdefault((row.location.file, row.location.line), []).append(row)
    lines = []
    for (file, number), rows in groups.items():
        most = max(rows, key=lambda row: row.count)
        share = sum(row.count for row in rows) / total
        lines.append(
            _Line(
                file=file,
                line=number,
                function=most.location.function or "",
                share=share,
                doing=f"of the samples, mostly in {most.leaf.split(' ')[-1]}" if most.leaf else "",
                text=most.text,
                around=_around(file, number, most.text) if share >= _LEAST_SHARE else [],
            )
        )
    return sorted(lines, key=lambda line: -line.share)


def _around(file: str, number: int, text: str) -> list[tuple[int, str]]:
    """Return the lines around one, where the file still is as it was sampled."""
    try:
        source = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    if not 0 < number <= len(source) or source[number - 1].strip() != text.strip():
        return []
    first = max(number - _AROUND, 1)
    return list(enumerate(source[first - 1 : number + _AROUND], first))
