"""Where a run stands: one live panel in a terminal, a sentence now and then elsewhere."""

from __future__ import annotations

import io
import os
import re
import time

import pytest

from torchdoctor.reports import progress
from torchdoctor.reports.progress import Progress
from torchdoctor.schema import ProgressEvent

OBSERVE = ProgressEvent(
    phase="observe",
    message="The untouched program runs",
    why="Everything else is compared with it",
    elapsed_s=41.5,
    budget_s=300.0,
)
PAIR = ProgressEvent(
    phase="confirm", message="A pair of launches compares tf32", best="tf32 1.83x (1.79-1.88)"
)


def printed(*events: ProgressEvent, until: int = 1) -> list[str]:
    """Return the lines on a pipe, as soon as there are so many."""
    pipe = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stderr", pipe)
        with Progress() as shown:
            for event in events:
                shown.update(event)
            deadline = time.monotonic() + 120
            while pipe.getvalue().count("\n") < until and time.monotonic() < deadline:
                time.sleep(0.05)
    return pipe.getvalue().splitlines()


def plain(seen: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


def test_a_terminal_has_one_panel_whose_clock_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Driven through a real terminal: what is measured, why, the best, the time; then nothing."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(progress, "_TICK_S", 0.02)
    keyboard, screen = os.openpty()
    seen = b""
    with os.fdopen(screen, "w", encoding="utf-8") as terminal, os.fdopen(keyboard, "rb", 0) as user:
        monkeypatch.setattr("sys.stderr", terminal)
        os.set_blocking(user.fileno(), False)
        with Progress() as shown:
            shown.update(OBSERVE)
            shown.update(PAIR)
            deadline = time.monotonic() + 120
            # Without what sets colours, of which an "m" stands before the figure.
            while not re.search(r"\b[2-9] s\b", plain(seen)) and time.monotonic() < deadline:
                seen += user.read() or b""
                time.sleep(0.05)
        seen += user.read() or b""
    text = plain(seen)
    assert re.search(r"\b[2-9] s\b", text), "its clock goes on"
    assert re.search(r"now +The untouched program runs", text)
    assert re.search(r"why +Everything else is compared with it", text)
    assert "42 s of 5 min, 4 min 18 s left" in text
    assert "best so far  tf32 1.83x (1.79-1.88)" in text
    assert "Ctrl-C ends this early and keeps what was measured" in text
    assert seen.rstrip().endswith(b"\x1b[2K"), "the panel is gone at the end"
    assert b"\x1b[?25h" in seen, "the cursor is back"


def test_a_pipe_gets_whole_sentences_and_at_most_a_line_in_15_s(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_TICK_S", 0.02)
    (line,) = printed(OBSERVE, PAIR)
    assert line == (
        "[42 s of 5 min, 4 min 18 s left] The untouched program runs. Everything else is compared "
        "with it."
    )
    monkeypatch.setattr(progress, "_NEWS_EVERY_S", 0.5)
    lines = printed(OBSERVE, PAIR, until=2)
    assert lines[1:] == [
        "[1 s] A pair of launches compares tf32. Best so far: tf32 1.83x (1.79-1.88)."
    ]


def test_a_pipe_is_not_left_without_a_word_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch of blocks said nothing for 52 s: its user looked whether it hung."""
    monkeypatch.setattr(progress, "_TICK_S", 0.02)
    monkeypatch.setattr(progress, "_SILENT_S", 1.1)
    first, second, third = printed(OBSERVE, until=3)[:3]
    assert first.partition("] ")[2] == second.partition("] ")[2] == third.partition("] ")[2]
    assert len({first, second, third}) == 3, "the clock goes on"


def test_what_takes_longer_than_the_budget_is_said_to() -> None:
    """A launch that runs is let end: "2 min 52 s of 2 min 50 s" looks like a fault."""
    event = ProgressEvent(phase="confirm", message="it", elapsed_s=172.0, budget_s=170.0)
    assert progress.clock(event) == "2 min 52 s, 2 s over the 2 min 50 s"
    event = ProgressEvent(phase="confirm", message="it", elapsed_s=170.3, budget_s=170.0)
    assert progress.clock(event) == "2 min 50 s of 2 min 50 s, 0 s left"


def test_quiet_closed_and_dumb_show_no_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    with Progress(quiet=True) as shown:
        shown.update(OBSERVE)
    assert terminal.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    with Progress() as shown:
        shown.update(OBSERVE)
    assert terminal.getvalue().count("\n") == 1 and "\x1b" not in terminal.getvalue()
    monkeypatch.setattr("sys.stderr", None)
    with Progress() as shown:
        shown.update(OBSERVE)
