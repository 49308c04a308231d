"""Whether more loader workers would find memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from torchdoctor.probe.fixkit import spare_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
GB = 10**9


def test_this_process_fits_beside_itself_but_not_a_million_times() -> None:
    assert spare_memory.lacking(0, 1000) is None
    why = spare_memory.lacking(10**6, 0)
    assert why is not None and why["values"]["workers"] == 10**6, "so many workers"


@pytest.mark.parametrize(
    ("workers", "ready", "lacking"),
    [
        (4, 0, None),
        (6, 0, ("no-memory-for-workers", {"workers": 6, "needed_gb": 12.0, "free_gb": 10.0})),
        (1, 2 * GB, ("no-shared-memory", {"ready_gb": 2.0, "free_gb": 1.0})),
    ],
)
def test_each_worker_may_copy_all_that_the_process_holds(
    workers: int,
    ready: int,
    lacking: tuple[str, dict[str, float]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = {"MemAvailable": 50 * GB, "RssAnon": 2 * GB}
    known: dict[str, Any] = {
        "_field": lambda path, name: figures[name],
        "_left_of_container": lambda: 10 * GB,
        "_shared_bytes": lambda: GB,
    }
    for name, function in known.items():
        monkeypatch.setattr(spare_memory, name, function)
    why = spare_memory.lacking(workers, ready)
    assert (None if why is None else (why["fact"], why["values"])) == lacking
