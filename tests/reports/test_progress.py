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


def figures(event: ProgressEvent) -> list[int]:
    """Return the numbers of its clock, minutes and seconds, in their order."""
    return [int(number) for number in re.findall(r"\d+", progress.clock(event))]


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
    for given in (OBSERVE.message, OBSERVE.why, PAIR.message, PAIR.best):
        assert given in text
    assert progress.clock(OBSERVE) in text
    assert "Ctrl-C" in text
    assert seen.rstrip().endswith(b"\x1b[2K"), "the panel is gone at the end"
    assert b"\x1b[?25h" in seen, "the cursor is back"


def test_a_pipe_gets_whole_sentences_and_at_most_a_line_in_15_s(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_TICK_S", 0.02)
    (line,) = printed(OBSERVE, PAIR)
    assert line == f"[{progress.clock(OBSERVE)}] {OBSERVE.message}. {OBSERVE.why}."
    monkeypatch.setattr(progress, "_NEWS_EVERY_S", 0.5)
    [_, line] = printed(OBSERVE, PAIR, until=2)
    assert line.startswith("[1 s] ") and PAIR.message in line and PAIR.best in line


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
    assert figures(event) == [2, 52, 2, 2, 50], "gone, over, the budget"
    event = ProgressEvent(phase="confirm", message="it", elapsed_s=170.3, budget_s=170.0)
    assert figures(event) == [2, 50, 2, 50, 0], "gone, the budget, left"
    assert figures(OBSERVE) == [42, 5, 4, 18]


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
