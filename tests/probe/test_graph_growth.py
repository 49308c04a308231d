"""The stack sampler asks the main thread whether operations were recorded, and gets an answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchdoctor.probe import stacks, step_log


def counting(recorded: Callable[[], int]) -> Any:
    """A session of which only the count of recorded operations is asked for."""
    autograd = SimpleNamespace(_get_sequence_nr=recorded)
    torch = SimpleNamespace(_C=SimpleNamespace(_autograd=autograd))
    return SimpleNamespace(torch=torch, accelerator=None)


def answered(tmp_path: Path, *, recorded: int, event: bool) -> dict[tuple[str, bool], int]:
    """What is kept of one question, after which so many operations were recorded."""
    count = [100]
    log = stacks.MarkedLog(str(tmp_path), 1, None, counting(lambda: count[0]))
    log.add(step_log.OPTIMIZER_END)
    counts: Counter[tuple[str, bool]] = Counter()
    growth = stacks.Growth(log, counts)
    mark = log.mark
    if event:
        log.add(step_log.FORWARD_BEGIN)
    count[0] += recorded
    asking = threading.Thread(target=lambda: growth.ask("row", mark))
    asking.start()
    asking.join()
    deadline = time.monotonic() + 60
    while not counts and time.monotonic() < deadline:
        time.sleep(0.001)
    return counts


def test_recorded_operations_are_seen(tmp_path: Path) -> None:
    assert answered(tmp_path, recorded=3, event=False) == {("row", True): 1}
    assert answered(tmp_path, recorded=0, event=False) == {("row", False): 1}


def test_what_came_after_the_next_event_does_not_count(tmp_path: Path) -> None:
    """A module's forward that began since is seen by its own event."""
    assert answered(tmp_path, recorded=3, event=True) == {("row", False): 1}


def test_python_behind_a_recorded_loss_records_nothing(tmp_path: Path) -> None:
    """All that came after the loss, up to the backward, would count as the model's."""
    count = [100]
    log = stacks.MarkedLog(str(tmp_path), 1, None, counting(lambda: count[0]))
    log.add(step_log.FORWARD_END)
    counts: Counter[tuple[str, bool]] = Counter()
    growth = stacks.Growth(log, counts)
    deadline = time.monotonic() + 60
    for asked, key in enumerate(("loss", "loss", "metric", "metric", "penalty", "penalty"), 1):
        count[0] += key != "metric"
        growth.ask(key, log.mark, since_sample=True)
        while sum(counts.values()) < asked and time.monotonic() < deadline:
            time.sleep(0.001)
    # Of a line's first sample nobody knows whether it, or the line before it, recorded anything.
    assert counts == {
        ("loss", False): 1,
        ("loss", True): 1,
        ("metric", False): 2,
        ("penalty", False): 1,
        ("penalty", True): 1,
    }


def test_another_threads_events_leave_no_mark(tmp_path: Path) -> None:
    log = stacks.MarkedLog(str(tmp_path), 1, None, counting(lambda: 5))
    other = threading.Thread(target=lambda: log.add(step_log.FETCH_END))
    other.start()
    other.join()
    assert (log.mark, log.count) == ((0, 0), 1)
