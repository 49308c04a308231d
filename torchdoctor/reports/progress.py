"""Where a run stands: one live panel in a terminal, a sentence now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchdoctor.schema import ProgressEvent
from torchdoctor.schema.figures import clean, duration

_NEWS_EVERY_S = 15.0
_SILENT_S = 30.0  # a pipe that says nothing for longer looks like a program that hangs
_WIDTH = 100
_MOST_HOSTS = 3
_TICK_S = 1.0
_ECHO = 3  # columns: where "^C" breaks the last line, the first one is not taken away
_HINT = "Ctrl-C ends this early and keeps what was measured"


class Progress:
    """Shows `ProgressEvent`s on standard error; the clock goes on between two events."""

    def __init__(self, quiet: bool = False) -> None:
        # Standard error may be closed (2>&-).
        self._quiet = quiet or sys.stderr is None
        console = Console(stderr=True, highlight=False, emoji=False, force_jupyter=False)
        # rich takes a pipe for a terminal where colours are asked for (FORCE_COLOR).
        drawn = not self._quiet and sys.stderr.isatty() and not console.is_dumb_terminal
        live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live = live if drawn else None
        self._shown: tuple[ProgressEvent, float] | None = None  # and when it came
        self._said = ""
        self._said_s = -_SILENT_S
        self._printing = threading.Lock()
        self._warned = self._diagnosed = ""
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        if not self._quiet:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._quiet:
            self._over.set()
            self._ticker.join()
        with contextlib.suppress(OSError):  # the terminal was closed, but the report is written
            if self._live is not None:
                self._live.stop()

    def update(self, event: ProgressEvent) -> None:
        """Show where the run stands."""
        self._shown = event, time.monotonic()
        if not self._quiet:
            self._print()

    def _tick(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.wait(_TICK_S):
                self._print()

    def _print(self) -> None:
        """Draw the panel, or print a line if there is news, or if the last was long ago."""
        if self._shown is None:
            return
        event, came_s = self._shown
        now_s = time.monotonic()
        event = replace(event, elapsed_s=event.elapsed_s + now_s - came_s)
        with self._printing:
            if self._live is not None:
                self._live.update(panel(event, self._live.console.width), refresh=True)
                return
            if event.diagnosis != self._diagnosed:  # at once: fixes take minutes
                self._diagnosed = event.diagnosis
                print(f"[{clock(event)}] {clean(event.diagnosis)}.", file=sys.stderr, flush=True)
            warning = sends(event)
            if warning != self._warned:  # at once, and once: each further launch sends again
                self._warned = warning
                print(f"[{clock(event)}] {warning}.", file=sys.stderr, flush=True)
            text = sentences(event)
            every_s = _SILENT_S if text == self._said else _NEWS_EVERY_S
            if now_s - self._said_s >= every_s:
                self._said = text
                self._said_s = now_s
                print(f"[{clock(event)}] {text}", file=sys.stderr, flush=True)


def panel(event: ProgressEvent, width: int) -> RenderableType:
    """Return an event as a panel for a terminal of so many columns."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    rows = {"cause": event.diagnosis, "now": event.message, "why": event.why}
    rows["best so far"] = event.best or ""
    rows["beware"] = sends(event)
    styles = {"best so far": "bold", "beware": "red"}
    for name, text in rows.items():
        if text:
            grid.add_row(name, Text(clean(text), styles.get(name, "")))
    grid.add_row("time", clock(event))
    if event.budget_s is not None:
        done_s = min(event.elapsed_s, event.budget_s)
        grid.add_row("", ProgressBar(event.budget_s, done_s, complete_style="cyan"))
    width = min(width - _ECHO, _WIDTH)
    return Panel(grid, title="torchdoctor", subtitle=_HINT, width=width)


def clock(event: ProgressEvent) -> str:
    """Return the time that is gone and that is left: "41 s of 5 min, 4 min 19 s left"."""
    text = duration(event.elapsed_s)
    budget_s = event.budget_s
    if budget_s is None:
        return text
    over_s = event.elapsed_s - budget_s
    if over_s > 0 and text != duration(budget_s):
        return f"{text}, {duration(max(over_s, 1.0))} over the {duration(budget_s)}"
    return f"{text} of {duration(budget_s)}, {duration(max(-over_s, 0.0))} left"


def sends(event: ProgressEvent) -> str:
    """Return that each launch sends something to other machines; empty where none does."""
    if not event.sends_to:
        return ""
    named = clean(", ".join(event.sends_to[:_MOST_HOSTS]))
    more = ", and others" if len(event.sends_to) > _MOST_HOSTS else ""
    return f"Each launch connects to {named}{more}, not only to read: --network off cuts it off"


def sentences(event: ProgressEvent) -> str:
    """Return an event in whole sentences on one line."""
    best = f"Best so far: {event.best}" if event.best else ""
    return " ".join(f"{clean(text)}." for text in (event.message, event.why, best) if text)
