"""The first screen's bars: how long one step takes, and what its time is spent in."""

from pathlib import Path

from torchdoctor.reports import efficiency, wording
from torchdoctor.reports.document import Bars, Block, Sentence, sentences
from torchdoctor.reports.time_parts import time_bars, upper_bounds
from torchdoctor.reports.vocabulary import step_of
from torchdoctor.schema import Report, TraceStatistics
from torchdoctor.schema.figures import quantity, seconds

_AS_LONG = 1.5  # times the deciding step time, from where on the shares are of other steps


def blocks(report: Report) -> list[Block]:
    """Return one step's title, figures and bars; nothing where its parts are not known."""
    bars = time_bars(report)
    if not bars:
        return []
    rate = wording.samples_per_s(report)
    title = _title(report)
    if rate:
        title += f", {quantity(rate, 'samples/s')}"
    shares = wording.shares_of(report) if _shares_are_of_others(report) else ""
    return [
        Sentence(title, "soft"),
        *sentences(wording.latency(report), efficiency.line(report), tone="soft"),
        Bars(bars),
        *sentences(shares, upper_bounds(report), tone="soft"),
    ]


def _title(report: Report) -> str:
    """Return of which step the bars are, and how long it takes."""
    trace = report.trace
    time = report.baseline.step_time_s
    title = f"one {step_of(report)}"
    path = trace.path if trace is not None else ""
    for rank in report.ranks:
        if rank.path == path:
            title += f" of rank {rank.rank}"
    if trace is not None and trace.of_traces > 1 and not report.ranks:
        title += f" of {Path(path).name}"
    if report.steps is None and trace is not None and trace.step_s:  # its shares are of the mean
        return _title_of_trace(title, trace, trace.step_s)
    if time is None:
        return title
    title += f": {seconds(time.deciding)}"  # samples/s are of the same time
    if time.steps > 1:
        average = "median" if time.deciding == time.median else "mean"
        title += f" ({average})"
    return title


def _title_of_trace(title: str, trace: TraceStatistics, step_s: float) -> str:
    """Return the title of a trace's step, or of the part of the trace that stands for one."""
    if trace.steps:
        mean = " (mean)" if trace.steps > 1 else ""
        return f"{title}: {seconds(step_s)}{mean}"
    if not trace.start_up_s:
        return f"the whole trace: {seconds(step_s)}"
    recorded_s = trace.start_up_s + step_s
    return f"the trace after its start-up: {seconds(step_s)} of {seconds(recorded_s)} recorded"


def _shares_are_of_others(report: Report) -> bool:
    """Return True if the shares were recorded in steps of quite another length."""
    time = report.baseline.step_time_s
    if not report.steps or not time:
        return False
    return not 1 / _AS_LONG < report.steps.mean_s / time.deciding < _AS_LONG
