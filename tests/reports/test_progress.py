"""The progress line: rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import time

import pytest

from torchdoctor.reports import progress
from torchdoctor.reports.progress import Progress
from torchdoctor.words import ProgressEvent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_clock_goes_on_while_one_launch_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "_TICK_S", 0.02)
    with Progress() as shown:
        shown.update(ProgressEvent(phase="observe", message="it", elapsed_s=41.5, budget_s=300.0))
        deadline = time.monotonic() + 120
        while "[43 s" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "[43 s of 5 min] observe: it" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K"), "the line is gone at the end"


def test_a_pipe_gets_a_line_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with Progress() as shown:
        for phase in ("observe", "observe", "profile"):
            shown.update(ProgressEvent(phase=phase, message="it"))
    assert [line.split("] ")[1] for line in pipe.getvalue().splitlines()] == [
        "observe: it",
        "profile: it",
    ]


def test_a_pipe_is_not_left_without_a_word_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch of blocks said nothing for 52 s: its user looked whether it hung."""
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(progress, "_TICK_S", 0.02)
    monkeypatch.setattr(progress, "_SILENT_S", 1.1)
    with Progress() as shown:
        shown.update(ProgressEvent(phase="switch", message="it", elapsed_s=41.0, budget_s=300.0))
        deadline = time.monotonic() + 120
        while pipe.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    first, second, third = pipe.getvalue().splitlines()[:3]
    assert first == "[41 s of 5 min] switch: it"
    assert second.endswith("of 5 min] switch: it") and second != first
    assert third != second


def test_what_takes_longer_than_the_budget_is_said_to() -> None:
    """A launch that runs is let end: "2 min 52 s of 2 min 50 s" looks like a fault."""
    event = ProgressEvent(phase="confirm", message="it", elapsed_s=172.0, budget_s=170.0)
    assert progress.line(event) == "[2 min 52 s, 2 s over the 2 min 50 s] confirm: it"
    event = ProgressEvent(phase="confirm", message="it", elapsed_s=170.3, budget_s=170.0)
    assert progress.line(event) == "[2 min 50 s of 2 min 50 s] confirm: it"


def test_quiet_and_closed_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress(quiet=True) as shown:
        shown.update(ProgressEvent(phase="observe", message="it"))
    assert terminal.getvalue() == ""
    monkeypatch.setattr("sys.stderr", None)
    with Progress() as shown:
        shown.update(ProgressEvent(phase="observe", message="it"))
