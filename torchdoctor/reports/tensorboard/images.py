"""Figures of a log, drawn with matplotlib: a few steps as a timeline, and step times over the run.

matplotlib is imported when the first figure is asked for.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.observe.step_lanes import StepLanes, lanes_of_events, lanes_of_trace
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.reports.tensorboard.scalars import Measured, trace_files
from torchdoctor.trace.reader import read_trace
from torchdoctor.words import Report
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import seconds
from torchdoctor.words.intervals import Intervals

NO_LIBRARY = (
    "The images are left out, because matplotlib cannot be imported: "
    "pip install 'torchdoctor[images]'. Everything else was written."
)
_SHARES = "The figure behind a name is the share of the shown time that it covers."
# TensorBoard shows 350 pixels of width until an image is clicked: twice that stays sharp.
_DPI, _WIDTH = 100, 7.0
_LANES = {
    "waiting for data": "#c0392b",
    "copies to device": "#d68910",
    "copies": "#d68910",
    "forward": "#2471a3",
    "forward and other": "#2471a3",
    "backward": "#1a5276",
    "optimizer": "#7d3c98",
    "GPU kernels": "#1e8449",
    "collectives": "#b7950b",
    "other": "#7f8c8d",
}
_KINDS = {"baseline": ("untouched", "#7f8c8d"), "recommended": ("recommended fixes", "#1e8449")}
_OBSERVED = "#2471a3"
_NARROWEST = 1 / 1500  # of the width: gaps below a pixel are not drawn
_HIGHEST = 99.0  # percentile of step times that the axis reaches to


class NoPlottingLibrary(Exception):  # noqa: N818  # named for what happened
    """matplotlib is not installed, or cannot be imported."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """A PNG with its size in pixels, its name in TensorBoard and what is said of it."""

    tag: str
    description: str
    png: bytes
    width: int
    height: int


@dataclass(frozen=True)
class _Series:
    """Step times of one kind: when each step ended (s since the run began), seconds it took."""

    label: str
    colour: str
    at_s: NDArray[np.float64]
    step_s: NDArray[np.float64]


def write_images(writer: EventFile, report: Report, measured: Measured) -> list[str]:
    """Write the figures; returns a sentence where they could not be drawn."""
    try:
        for image in images(report, measured):
            writer.image(image.tag, image.png, image.width, image.height, image.description)
    except NoPlottingLibrary:
        return [NO_LIBRARY]
    return []


def images(report: Report, measured: Measured) -> Iterator[Image]:
    """Yield the figures that the report and its run folder have.

    Raises:
        NoPlottingLibrary: matplotlib is not there.
    """
    launch, steps = measured.observed, report.steps
    if launch is not None and steps is not None:
        lanes = lanes_of_events(launch.events, launch.rows, steps.warmup_steps)
        told = "The training process, not profiled: each moment belongs to one phase."
        if lanes is not None:
            yield _draw_lanes(lanes, "timeline/steps", "the untouched program", told)
    profiled = _profiled(report)
    if profiled is not None:
        told = "Host and devices: what overlaps ran at once. The profiler slows the host."
        yield _draw_lanes(profiled, "timeline/profiled_steps", "the profiler's trace", told)
    times = report.trace.step_times_s if report.trace is not None and report.trace.steps else []
    if launch is not None:
        yield _steps_of_launches(measured)
    elif times:
        numbers = np.arange(len(times), dtype=np.float64)
        series = [_Series("profiled", _OBSERVED, numbers, np.array(times))]
        title, told = "Step times of the trace", "The steps of the profiler's trace, in order."
        yield _draw_step_times(series, title, "step of the trace", told)


def _profiled(report: Report) -> StepLanes | None:
    """Return steps of the trace that the report's shares are of; None if it cannot be read."""
    for path in trace_files(report) if report.trace is not None else []:
        if report.trace is not None and str(path) == report.trace.path:
            try:
                return lanes_of_trace(read_trace(path))
            except UsageError:
                return None
    return None


def _steps_of_launches(measured: Measured) -> Image:
    assert measured.observed is not None
    edges = measured.observed.edges
    at_s, began = (edges[1:] - edges[0]) / 1e9, int(edges[0])
    series = [_Series("untouched, first launch", _OBSERVED, at_s, np.diff(edges) / 1e9)]
    for kind, launches in measured.kinds.items():
        ends = np.concatenate([edges_ns[1:] for edges_ns in launches])
        step_s = np.concatenate([np.diff(edges_ns) for edges_ns in launches]) / 1e9
        series.append(_Series(*_KINDS[kind], (ends - began) / 1e9, step_s))
    title, told = "Step times over the run", "The untouched program's launches."
    if "recommended" in measured.kinds:
        title += ": untouched against recommended"
        told = "Launches of both kinds alternate, in random order."
    return _draw_step_times(series, title, "time since the first step (s)", told)


def _draw_lanes(lanes: StepLanes, tag: str, program: str, told: str) -> Image:
    """Draw a row for each lane over a few steps; dashed lines where a step begins."""
    whole = int(lanes.edges[-1])
    scale = 1e-6  # ns -> ms
    last, start = lanes.first + len(lanes.edges) - 2, "time"
    steps = f"Step {last}" if last == lanes.first else f"Steps {lanes.first} to {last}"
    title = f"{steps if lanes.steps_known else 'All'} of {program}"
    with _figure(1.5 + 0.42 * len(lanes.lanes), title) as figure:
        axes = figure.subplots()
        for row, (label, lane) in enumerate(lanes.lanes.items()):
            drawn = _merged(lane, whole)
            spans = zip(drawn.start * scale, (drawn.end - drawn.start) * scale, strict=True)
            axes.broken_barh(list(spans), (row - 0.38, 0.76), color=_LANES[label], linewidth=0)
        names = [f"{label}  {lane.total / whole:.0%}" for label, lane in lanes.lanes.items()]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, whole * scale)
        if lanes.steps_known:
            start = f"time since step {lanes.first} began"
            for number, edge in enumerate((lanes.edges[:-1] * scale).tolist(), lanes.first):
                axes.axvline(edge, color="#222222", linestyle="--", linewidth=1)
                axes.text(edge, -0.56, f" step {number}", fontsize=11, va="bottom", ha="left")
        axes.set_xlabel(f"{start} (ms)")
        axes.grid(axis="x", alpha=0.3)
        return _image(figure, tag, f"{told} {_SHARES}")


def _draw_step_times(series: list[_Series], title: str, x_label: str, told: str) -> Image:
    """Draw step times, each kind in its colour with its median."""
    every = np.concatenate([kind.step_s for kind in series])
    top = float(np.percentile(every, _HIGHEST)) if len(every) >= 50 else float(every.max())
    with _figure(4.6, title) as figure:
        axes = figure.subplots()
        for kind in series:
            usual = float(np.median(kind.step_s))
            label = f"{kind.label}: median {seconds(usual)} ({len(kind.step_s)} steps)"
            style = {"color": kind.colour, "markersize": 4, "alpha": 0.7, "label": label}
            axes.plot(kind.at_s, kind.step_s * 1e3, "o", **style)
            axes.axhline(usual * 1e3, color=kind.colour, linewidth=2)
        above = int((every > 1.1 * top).sum())
        hidden = f"; {above} of {len(every)} steps are above what is shown" if above else ""
        axes.set_ylim(0, 1.15e3 * top)
        axes.set_ylabel("time of one step (ms)")
        axes.set_xlabel(x_label + hidden)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
        axes.grid(alpha=0.3)
        return _image(figure, "step_time/over_the_run", told)


@contextmanager
def _figure(height: float, title: str) -> Iterator[Any]:
    """Yield a figure (height in inches) in matplotlib's own style; needs no display."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlottingLibrary(str(error)) from error
    with style.context(["default", {"font.size": 12}]):
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=14)
        yield figure


def _image(figure: Any, tag: str, description: str) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas, buffer = FigureCanvasAgg(figure), io.BytesIO()
    canvas.print_png(buffer)
    width, height = canvas.get_width_height()
    return Image(
        tag=tag, description=description, png=buffer.getvalue(), width=width, height=height
    )


def _merged(lane: Intervals, whole: int) -> Intervals:
    """Return a lane without gaps that nobody could see: there may be 100,000 kernels."""
    gap = int(whole * _NARROWEST)
    new = np.concatenate(([True], lane.start[1:] - lane.end[:-1] > gap))
    last = np.concatenate((new[1:], [True]))
    return Intervals(lane.start[new], lane.end[last])
