"""The line of the user's own code that samples are prepared by, or wait in, is named."""

from __future__ import annotations

import pytest
from in_words import evidence_of
from partial_recordings import recording

from torchdoctor.checks import (
    data_wait,
    inline_batch_preparation,
    loader_cpu_bound,
    loader_io_bound,
    work_outside_model,
)

_LOADER = {"ident": 0, "num_workers": 0, "batches": 50, "sample_cpu_share": 0.97}


def _stack(line: int, function: str, count: int, text: str) -> dict:
    where = {"file": "/w/data.py", "line": line, "function": function}
    return {"location": where, "phase": "loader", "count": count, "leaf": "x", "text": text}


def _evidence(*stacks: dict, sensors: dict | None = None, **loader: object) -> str:
    known = {**_LOADER, **loader}
    seen = recording(
        {
            "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
            "processes": [{"pid": 1, "loaders": [known], "stacks": list(stacks)}],
            "sensors": sensors or {},
        }
    )
    computes = known["sample_cpu_share"] == _LOADER["sample_cpu_share"]
    [found] = (loader_cpu_bound if computes else loader_io_bound).CHECK.findings(seen)
    return " ".join(evidence_of(found, seen))


def test_workers_that_a_short_epoch_leaves_idle_do_not_wait_for_storage() -> None:
    """Four workers, started anew every ten batches, were told to wait for a disk."""

    def finds(first_batch_s: float) -> bool:
        loader = {**_LOADER, "num_workers": 4, "iterators": 5}
        steps = {"data_wait_s": 0.005, "first_batch_s": first_batch_s, "forward_s": 0.005}
        process = {"pid": 1, "loaders": [loader]}
        partial = {"steps": steps, "processes": [process], "sensors": {"workers_cpus": 0.3}}
        return bool(loader_io_bound.CHECK.findings(recording(partial)))

    assert finds(0.0005) and not finds(0.0048)


def test_the_function_that_takes_most_is_named_with_its_line() -> None:
    said = _evidence(
        _stack(20, "augment", 60, "total += row[i]"),
        _stack(21, "augment", 20, "count += 1"),
        _stack(40, "collate", 20, "torch.stack(rows)"),
    )
    assert "80% of it was in augment, most often at data.py:20 (total += row[i])." in said


def test_a_line_that_computes_is_to_be_made_cheaper_before_workers_hide_it() -> None:
    """Exactly named, a loop over pixels got workers and threads as its only advice."""
    row = _stack(33, "__getitem__", 90, "out[y, x] = image[y, x]")
    first = "Make this line cheaper first"
    assert f"data.py:33 (out[y, x] = image[y, x]). {first}" in _evidence(row)
    assert first not in _evidence(), "no line stands out"
    assert first not in _evidence(row, sample_cpu_share=0.01), "it waits"


def test_files_of_a_package_are_named_from_the_programs_folder() -> None:
    """The headline said train.py:20 of a program that has three of that name."""
    row = _stack(20, "augment", 90, "total += row[i]")
    row["location"]["file"] = "/w/pkg/data.py"
    said = _evidence(row)
    assert "most often at pkg/data.py:20" in said
    for check, phase in ((work_outside_model, "after_step"), (inline_batch_preparation, "other")):
        seen = recording(
            {
                "steps": {"boundary": {"kind": "optimizer"}, "before_forward_s": 0.006},
                "shares": {"data_loader": 0.4, "cpu": 0.2, "other": 0.4},
                "processes": [{"pid": 1, "stacks": [{**row, "phase": phase}]}],
            }
        )
        for finding in check.CHECK.findings(seen):
            assert "pkg/data.py:20" in " ".join(evidence_of(finding, seen))


@pytest.mark.parametrize(
    "stacks",
    [
        [_stack(20, "augment", 5, "total += row[i]")],  # too few to tell
        [_stack(46, "<module>", 90, "for x, y in loader:")],  # library code below the loop
        [_stack(46, "train", 90, "x, y = next(batches)")],
        [_stack(20, "a", 40, "x"), _stack(30, "b", 35, "y"), _stack(40, "c", 25, "z")],
    ],
)
def test_nothing_is_named_where_nothing_stands_out(stacks: list[dict]) -> None:
    assert "of it was in" not in _evidence(*stacks)
    assert "of it was in" not in _evidence(*stacks, sample_cpu_share=0.02)


def test_the_line_that_waits_is_named_as_well() -> None:
    said = _evidence(_stack(7, "__iter__", 60, "time.sleep(0.05)"), sample_cpu_share=0.01)
    assert "100% of it was in __iter__, most often at data.py:7 (time.sleep(0.05))." in said


def test_the_line_that_waits_for_workers_prepares_nothing() -> None:
    stacks = _stack(7, "train", 60, "batch = self.queue.take()")
    known = {"num_workers": 2, "sensors": {"workers_cpus": 0.1}}
    assert "of it was in" not in _evidence(stacks, sample_cpu_share=None, **known)


def test_a_loader_that_hardly_reads_waits_for_something_else() -> None:
    said = _evidence(sample_cpu_share=0.01, sensors={"read_bytes_per_s": 40_000.0})
    assert "the loader waits for another process or a sleep, a network or a lock." in said
    assert "It reads 0.0 MB/s from disk, hardly anything." in said
    assert "storage" not in said
    said = _evidence(sample_cpu_share=0.01, sensors={"read_bytes_per_s": 40e6})
    assert "waits for storage" in said
    assert "reads 40.0 MB/s from disk" in said


def test_the_parts_of_a_wait_add_up_to_its_share() -> None:
    """ "Waits for data 57 %" stood above "7.5 ms in the DataLoader of a 16.9 ms step"."""
    steps = {"mean_s": 0.0169, "data_wait_s": 0.0075, "loader_start_s": 0.0015}
    (found,) = data_wait.CHECK.findings(
        recording({"shares": {"data_loader": 0.57}, "steps": steps})
    )
    parts = found.evidence[1].values
    known = {"in_loader_s": 0.0075, "starting_workers_s": 0.0015, "step_s": 0.0169}
    assert {name: parts[name] for name in known} == known
    assert parts["in_loop_s"] == pytest.approx(0.57 * 0.0169 - 0.009)
    assert evidence_of(found)[1].startswith(
        "7.50 ms in the DataLoader, 1.50 ms starting its workers, 633 us preparing batches in the "
        "loop, of a step of 16.9 ms"
    )
    plain = {"mean_s": 0.0169, "data_wait_s": 0.0075}
    (found,) = data_wait.CHECK.findings(
        recording({"shares": {"data_loader": 0.444}, "steps": plain})
    )
    assert evidence_of(found)[1].startswith("7.50 ms in the DataLoader, of a step of 16.9 ms")
