"""Figures of a log, drawn with matplotlib: a few steps as a timeline, and step times over the run.

matplotlib is imported when the first figure is asked for.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.observe.step_lanes import StepLanes, lanes_of_events
from torchdoctor.reports.run_columns import Measured, profiled_lanes
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.words import Report
from torchdoctor.words.figures import seconds
from torchdoctor.words.intervals import without_gaps

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
_KINDS = {
    "observed": ("untouched, first launch", "#2471a3"),
    "baseline": ("untouched", "#7f8c8d"),
    "recommended": ("recommended fixes", "#1e8449"),
    "profiled": ("profiled", "#2471a3"),
}
_NARROWEST = 1 / 1500  # of the width: gaps below a pixel are not drawn
_HIGHEST = 99.0  # percentile of step times that the axis reaches to
_Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # where steps are drawn; their seconds


def write_images(writer: EventFile, report: Report, measured: Measured) -> list[str]:
    """Write the figures that the report and its run folder have; return why there are none."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return [NO_LIBRARY]
    launch, steps = measured.observed, report.steps
    if launch is not None and steps is not None:
        lanes = lanes_of_events(launch.events, launch.rows, steps.warmup_steps)
        told = "The training process, not profiled: each moment belongs to one phase."
        if lanes is not None:
            _draw_lanes(writer, lanes, "timeline/steps", "the untouched program", told)
    profiled = profiled_lanes(report)
    if profiled is not None:
        told = "Host and devices: what overlaps ran at once. The profiler slows the host."
        _draw_lanes(writer, profiled, "timeline/profiled_steps", "the profiler's trace", told)
    times = report.trace.step_times_s if report.trace is not None and report.trace.steps else []
    if launch is not None:
        title, told = "Step times over the run", "The untouched program's launches."
        if "recommended" in measured.kinds:
            title += ": untouched against recommended"
            told = "Launches of both kinds alternate, in random order."
        series = {}
        for kind in measured.kinds:
            ends_ns, step_s = measured.steps(kind)
            series[kind] = (ends_ns - launch.edges[0]) / 1e9, step_s
        _draw_step_times(writer, series, title, "time since the first step (s)", told)
    elif times:
        series = {"profiled": (np.arange(len(times), dtype=np.float64), np.array(times))}
        title, told = "Step times of the trace", "The steps of the profiler's trace, in order."
        _draw_step_times(writer, series, title, "step of the trace", told)
    return []


def _draw_lanes(writer: EventFile, lanes: StepLanes, tag: str, program: str, told: str) -> None:
    """Draw a row for each lane over a few steps; dashed lines where a step begins."""
    whole = int(lanes.edges[-1])
    scale = 1e-6  # ns -> ms
    last, start = lanes.first + len(lanes.edges) - 2, "time"
    steps = f"Step {last}" if last == lanes.first else f"Steps {lanes.first} to {last}"
    title = f"{steps if lanes.steps_known else 'All'} of {program}"
    described = f"{told} {_SHARES}"
    with _axes(writer, tag, described, 1.5 + 0.42 * len(lanes.lanes), title) as axes:
        for row, (label, lane) in enumerate(lanes.lanes.items()):
            drawn = without_gaps(lane, int(whole * _NARROWEST))
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


def _draw_step_times(
    writer: EventFile, series: dict[str, _Series], title: str, x_label: str, told: str
) -> None:
    """Draw step times, each kind in its colour with its median."""
    every = np.concatenate([step_s for _, step_s in series.values()])
    top = float(np.percentile(every, _HIGHEST)) if len(every) >= 50 else float(every.max())
    with _axes(writer, "step_time/over_the_run", told, 4.6, title) as axes:
        for kind, (at, step_s) in series.items():
            (name, colour), usual = _KINDS[kind], float(np.median(step_s))
            label = f"{name}: median {seconds(usual)} ({len(step_s)} steps)"
            axes.plot(at, step_s * 1e3, "o", color=colour, markersize=4, alpha=0.7, label=label)
            axes.axhline(usual * 1e3, color=colour, linewidth=2)
        above = int((every > 1.1 * top).sum())
        hidden = f"; {above} of {len(every)} steps are above what is shown" if above else ""
        axes.set_ylim(0, 1.15e3 * top)
        axes.set_ylabel("time of one step (ms)")
        axes.set_xlabel(x_label + hidden)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
        axes.grid(alpha=0.3)


@contextmanager
def _axes(
    writer: EventFile, tag: str, description: str, height: float, title: str
) -> Iterator[Any]:
    """Yield the axes of a figure (inches high) in matplotlib's own style, and write it."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # needs no display
    from matplotlib.figure import Figure

    with style.context(["default", {"font.size": 12}]):
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=14)
        yield figure.subplots()
        canvas, png = FigureCanvasAgg(figure), io.BytesIO()
        canvas.print_png(png)
        width, height_px = canvas.get_width_height()
        writer.image(tag, png.getvalue(), width, height_px, description)
