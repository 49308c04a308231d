"""Which figures a log gets: a few steps as a timeline, and step times over the run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.observe.step_lanes import StepLanes, lanes_of_events, lanes_of_trace
from torchdoctor.reports.tensorboard.drawing import (
    Image,
    NoPlottingLibrary,
    Series,
    draw_lanes,
    draw_step_times,
)
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.reports.tensorboard.measured import Measured, trace_files
from torchdoctor.trace.reader import read_trace
from torchdoctor.words import Report
from torchdoctor.words.errors import UsageError

NO_LIBRARY = (
    "The images are left out, because matplotlib cannot be imported: "
    "pip install 'torchdoctor[images]'. Everything else was written."
)
_SHARES = "The figure behind a name is the share of the shown time that it covers."


def write_images(writer: EventFile, report: Report, measured: Measured) -> list[str]:
    """Write the figures; returns a sentence where they could not be drawn."""
    try:
        for tag, image, description in _images(report, measured):
            writer.image(tag, image.png, image.width, image.height, description)
    except NoPlottingLibrary:
        return [NO_LIBRARY]
    return []


def _images(report: Report, measured: Measured) -> Iterator[tuple[str, Image, str]]:
    launch, steps = measured.observed, report.steps
    if launch is not None and steps is not None:
        lanes = lanes_of_events(launch.events, launch.edges, steps.warmup_steps)
        if lanes is not None:
            title = f"{_steps_words(lanes)} of the untouched program"
            yield (
                "timeline/steps",
                draw_lanes(lanes, title),
                f"The training process, not profiled: each moment belongs to one phase. {_SHARES}",
            )
    profiled = _profiled(report)
    if profiled is not None:
        title = f"{_steps_words(profiled)} of the profiler's trace"
        yield (
            "timeline/profiled_steps",
            draw_lanes(profiled, title),
            f"Host and devices: what overlaps ran at once. The profiler slows the host. {_SHARES}",
        )
    drawn = _step_times(report, measured)
    if drawn is not None:
        yield "step_time/over_the_run", drawn, _of_steps(measured)


def _of_steps(measured: Measured) -> str:
    if measured.observed is None:
        return "The steps of the profiler's trace, one after the other."
    if "recommended" not in measured.kinds:
        return "The untouched program's launches."
    return "Launches of both kinds alternate, in random order."


def _profiled(report: Report) -> StepLanes | None:
    """Steps of the trace that the report's shares are of; None where it cannot be read again."""
    if report.trace is None:
        return None
    for path in trace_files(report):
        if str(path) == report.trace.path:
            try:
                return lanes_of_trace(read_trace(path))
            except UsageError:
                return None
    return None


def _step_times(report: Report, measured: Measured) -> Image | None:
    launch = measured.observed
    if launch is None:
        times = report.trace.step_times_s if report.trace else []
        if not times or not (report.trace and report.trace.steps):
            return None
        numbers = np.arange(len(times), dtype=np.float64)
        series = [Series(label="profiled", kind="observed", at_s=numbers, step_s=np.array(times))]
        return draw_step_times(series, "Step times of the trace", "step of the trace", joined=True)
    edges = launch.events.t_ns[launch.edges]
    began = int(edges[0])
    series = [
        Series(
            label="untouched, first launch",
            kind="observed",
            at_s=(edges[1:] - began) / 1e9,
            step_s=np.diff(edges) / 1e9,
        )
    ]
    labels = {"baseline": "untouched", "recommended": "recommended fixes"}
    for kind, launches in measured.kinds.items():
        ends = np.concatenate([launch.edges_ns[1:] for launch in launches])
        seconds = np.concatenate([launch.step_s for launch in launches])
        series.append(
            Series(label=labels[kind], kind=kind, at_s=(ends - began) / 1e9, step_s=seconds)
        )
    compared = "recommended" in measured.kinds
    title = "Step times over the run" + (": untouched against recommended" if compared else "")
    return draw_step_times(series, title, "time since the first step (s)", joined=False)


def _steps_words(lanes: StepLanes) -> str:
    if not lanes.steps_known:
        return "All"
    count = len(lanes.edges) - 1
    return (
        f"Step {lanes.first}" if count == 1 else f"Steps {lanes.first} to {lanes.first + count - 1}"
    )
