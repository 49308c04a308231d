"""Live progress of a run: one rewritten line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

from torchdoctor.words import ProgressEvent
from torchdoctor.words.figures import clean, duration

_PLAIN_EVERY_S = 10.0
_SILENT_S = 30.0  # a pipe that says nothing for longer looks like a program that hangs
_WIDTH = 79
_TICK_S = 1.0


class Progress:
    """Shows `ProgressEvent`s on standard error; the clock goes on between two events."""

    def __init__(self, quiet: bool = False) -> None:
        # Standard error may be closed (2>&-).
        self._quiet = quiet or sys.stderr is None
        self._live = not self._quiet and sys.stderr.isatty()
        self._last_s = -_PLAIN_EVERY_S
        self._phase = ""
        self._shown: tuple[ProgressEvent, float] | None = None  # and when it came
        self._printing = threading.Lock()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._quiet:
            self._over.set()
            self._ticker.join()
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def update(self, event: ProgressEvent) -> None:
        """Show where the run stands."""
        now = time.monotonic()
        self._shown = event, now
        new = event.phase != self._phase or now - self._last_s >= _PLAIN_EVERY_S
        if self._live or (new and not self._quiet):
            self._phase = event.phase
            self._print(event, now)

    def _tick(self) -> None:
        while not self._over.wait(_TICK_S):
            if self._shown is None:
                continue
            event, came = self._shown
            now = time.monotonic()
            if self._live or now - self._last_s >= _SILENT_S:
                self._print(replace(event, elapsed_s=event.elapsed_s + now - came), now)

    def _print(self, event: ProgressEvent, now: float) -> None:
        with self._printing:
            self._last_s = now
            text = f"\r\033[K{line(event)[:_WIDTH]}" if self._live else f"{line(event)}\n"
            print(text, end="", file=sys.stderr, flush=True)


def line(event: ProgressEvent) -> str:
    """Return an event as one line: "[1 min 5 s of 5 min] confirm: it"."""
    text = f"[{duration(event.elapsed_s)}"
    if event.budget_s is not None:
        over_s = event.elapsed_s - event.budget_s
        beyond = duration(event.elapsed_s) != duration(event.budget_s) and over_s > 0
        budget = duration(event.budget_s)
        text += f", {duration(max(over_s, 1.0))} over the {budget}" if beyond else f" of {budget}"
    text += f"] {event.phase}"
    text += f": {clean(event.message)}"
    return f"{text}; best so far {clean(event.best)}" if event.best else text
