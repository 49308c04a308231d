"""Figures as PNG, drawn with matplotlib, which is imported when the first one is asked for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.observe.step_lanes import StepLanes
from torchdoctor.words.figures import seconds
from torchdoctor.words.intervals import Intervals

# TensorBoard shows 350 pixels of width until an image is clicked: twice that stays sharp.
_DPI, _WIDTH = 100, 7.0
_COLOURS = {
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
_BASELINE, _RECOMMENDED = "#7f8c8d", "#1e8449"
_OBSERVED = "#2471a3"
_NARROWEST = 1 / 1500  # of the width: gaps below a pixel are not drawn
_HIGHEST = 99.0  # percentile of step times that the axis reaches to


class NoPlottingLibrary(Exception):  # noqa: N818  # named for what happened
    """matplotlib is not installed, or cannot be imported."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """A PNG, and its size in pixels."""

    png: bytes
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Series:
    """Step times of one kind: when each step ended (s since the run began), seconds it took."""

    label: str
    kind: str  # "observed" | "baseline" | "recommended"
    at_s: NDArray[np.float64]
    step_s: NDArray[np.float64]


def draw_lanes(lanes: StepLanes, title: str) -> Image:
    """Draw a row for each lane over a few steps; dashed lines where a step begins.

    Raises:
        NoPlottingLibrary: matplotlib is not there.
    """
    scale, unit = _unit(float(lanes.edges[-1]) / 1e9)
    with _figure(1.5 + 0.42 * len(lanes.lanes), title) as figure:
        axes = figure.subplots()
        for row, (label, lane) in enumerate(lanes.lanes.items()):
            drawn = _merged(lane, int(lanes.edges[-1]))
            spans = list(
                zip(drawn.start / 1e9 * scale, (drawn.end - drawn.start) / 1e9 * scale, strict=True)
            )
            axes.broken_barh(spans, (row - 0.38, 0.76), color=_COLOURS[label], linewidth=0)
        shares = [lane.total / int(lanes.edges[-1]) for lane in lanes.lanes.values()]
        names = [f"{label}  {share:.0%}" for label, share in zip(lanes.lanes, shares, strict=True)]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, float(lanes.edges[-1]) / 1e9 * scale)
        if lanes.steps_known:
            for number, edge in enumerate(lanes.edges[:-1].tolist(), lanes.first):
                at = edge / 1e9 * scale
                axes.axvline(at, color="#222222", linestyle="--", linewidth=1)
                axes.text(at, -0.56, f" step {number}", fontsize=11, va="bottom", ha="left")
        axes.set_xlabel(
            f"time since step {lanes.first} began ({unit})"
            if lanes.steps_known
            else f"time ({unit})"
        )
        axes.grid(axis="x", alpha=0.3)
        return _png(figure)


def draw_step_times(series: list[Series], title: str, x_label: str, joined: bool) -> Image:
    """Step times, each kind in its colour with its median; `joined`: with a line between them.

    Raises:
        NoPlottingLibrary: matplotlib is not there.
    """
    every = np.concatenate([kind.step_s for kind in series])
    top = float(np.percentile(every, _HIGHEST)) if len(every) >= 50 else float(every.max())
    scale, unit = _unit(top)
    colours = {"observed": _OBSERVED, "baseline": _BASELINE, "recommended": _RECOMMENDED}
    with _figure(4.6, title) as figure:
        axes = figure.subplots()
        for kind in series:
            colour = colours[kind.kind]
            usual = float(np.median(kind.step_s))
            line = "-" if joined else ""
            label = f"{kind.label}: median {seconds(usual)} ({len(kind.step_s)} steps)"
            axes.plot(
                kind.at_s, kind.step_s * scale, "o", linestyle=line, color=colour, markersize=4,
                alpha=0.7, label=label,
            )  # fmt: skip
            axes.axhline(usual * scale, color=colour, linewidth=2)
        above = int((every > 1.1 * top).sum())
        axes.set_ylim(0, 1.15 * top * scale)
        axes.set_ylabel(f"time of one step ({unit})")
        hidden = f"; {above} of {len(every)} steps are above what is shown" if above else ""
        axes.set_xlabel(x_label + hidden)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
        axes.grid(alpha=0.3)
        return _png(figure)


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


def _png(figure: Any) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    width, height = canvas.get_width_height()
    return Image(png=buffer.getvalue(), width=width, height=height)


def _unit(longest_s: float) -> tuple[float, str]:
    """Factor and name of the unit that suits a time."""
    if longest_s >= 2:
        return 1.0, "s"
    return (1e3, "ms") if longest_s >= 2e-3 else (1e6, "us")


def _merged(lane: Intervals, whole: int) -> Intervals:
    """Without gaps that nobody could see: there may be a hundred thousand kernels."""
    gap = int(whole * _NARROWEST)
    new = np.concatenate(([True], lane.start[1:] - lane.end[:-1] > gap))
    last = np.concatenate((new[1:], [True]))
    return Intervals(lane.start[new], lane.end[last])
