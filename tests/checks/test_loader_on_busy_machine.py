"""A loader is not said to wait for a disk because another program took the processor."""

from __future__ import annotations

from typing import Any

from partial_recordings import recording

from torchdoctor.checks import loader_cpu_bound, loader_io_bound
from torchdoctor.fixes import loader_workers
from torchdoctor.runs.notes import report_notes
from torchdoctor.schema import Recording, Remark

_BUSY = {"other_load_cpus": 0.95}


def _seen(loader: dict[str, Any], sensors: dict[str, Any]) -> Recording:
    known = {"ident": 0, "num_workers": 0, "batches": 50, **loader}
    return recording(
        {
            "environment": {"usable_cpus": 2.0, "cpu_cores": 2},
            "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
            "processes": [{"pid": 1, "loaders": [known]}],
            "sensors": sensors,
        }
    )


def _named(seen: Recording) -> list[str]:
    found = [*loader_cpu_bound.CHECK.findings(seen), *loader_io_bound.CHECK.findings(seen)]
    return [one.check for one in found]


def _untold(seen: Recording) -> list[Remark]:
    return [note for note in report_notes(seen, None) if note.fact == "fetch-beside-load"]


def test_what_a_fetch_waited_for_a_cpu_is_said_and_no_storage() -> None:
    seen = _seen({"sample_cpu_share": 0.98, "sample_queue_share": 0.55}, _BUSY)
    [found] = loader_cpu_bound.CHECK.findings(seen)
    assert found.evidence[0].fact == "cpu-time"
    assert (found.evidence[0].values["busy"], found.evidence[0].values["queued"]) == (0.98, 0.55)
    assert loader_io_bound.CHECK.findings(seen) == []
    assert _untold(seen) == []


def test_workers_that_stand_in_the_queue_for_a_cpu_compute() -> None:
    """They got 0.86 of 2 CPUs, and the other program the rest."""
    loader, sensors = {"num_workers": 2}, {**_BUSY, "workers_cpus": 0.86}
    seen = _seen(loader, {**sensors, "workers_queued_cpus": 1.0})
    assert _named(seen) == ["loader-cpu-bound"]
    assert max(x["num_workers"] for x in loader_workers.settings(seen)) <= 4
    assert _named(_seen(loader, {**sensors, "workers_queued_cpus": 0.02})) != ["loader-cpu-bound"]


def test_where_neither_can_be_told_it_is_a_doubt_and_no_finding() -> None:
    seen = _seen({"sample_cpu_share": 0.43}, _BUSY)  # a system that does not count the queue
    assert _named(seen) == []
    [untold] = _untold(seen)
    assert (untold.values["got"], untold.values["could"]) == (0.43, 1)
    assert max(x["num_workers"] for x in loader_workers.settings(seen)) <= 4
    workers = _seen({"num_workers": 2}, {**_BUSY, "workers_cpus": 0.86})
    assert _named(workers) == []
    [untold] = _untold(workers)
    assert (untold.values["got"], untold.values["could"]) == (0.43, 2)


def test_what_waits_for_a_disk_is_still_said_on_a_busy_machine() -> None:
    queued = {"sample_cpu_share": 0.08, "sample_queue_share": 0.02}
    for loader, sensors in (
        (queued, _BUSY),
        ({"sample_cpu_share": 0.08}, {**_BUSY, "iowait_share": 0.4}),
        ({"sample_cpu_share": 0.08}, {"other_load_cpus": 0.1}),
    ):
        seen = _seen(loader, sensors)
        assert _named(seen) == ["loader-io-bound"]
        assert _untold(seen) == []
        assert max(x["num_workers"] for x in loader_workers.settings(seen)) > 4
