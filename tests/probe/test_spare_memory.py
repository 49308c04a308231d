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
    reason = spare_memory.lacking(10**6, 0)
    assert reason is not None and "1000000" in reason, "so many workers"


@pytest.mark.parametrize(
    ("workers", "ready", "said"),
    [
        (4, 0, None),
        (6, 0, "6 more workers could take 12.0 GB of memory, and 10.0 GB are free."),
        (1, 2 * GB, "2.00 GB would lie ready in shared memory, and 1.00 GB are free."),
    ],
)
def test_each_worker_may_copy_all_that_the_process_holds(
    workers: int, ready: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"MemAvailable": 50 * GB, "RssAnon": 2 * GB}
    known: dict[str, Any] = {
        "_field": lambda path, name: figures[name],
        "_left_of_container": lambda: 10 * GB,
        "_shared_bytes": lambda: GB,
    }
    for name, function in known.items():
        monkeypatch.setattr(spare_memory, name, function)
    found = spare_memory.lacking(workers, ready)
    assert found is None if said is None else found is not None and found.endswith(said)
