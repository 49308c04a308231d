"""The line of the user's own code that samples are prepared by, or wait in, is named."""

from __future__ import annotations

from typing import Any

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
from torchdoctor.schema import Evidence, Finding, Recording

_LOADER = {"ident": 0, "num_workers": 0, "batches": 50, "sample_cpu_share": 0.97}


def _stack(line: int, function: str, count: int, text: str) -> dict:
    where = {"file": "/w/data.py", "line": line, "function": function}
    return {"location": where, "phase": "loader", "count": count, "leaf_file": "x", "text": text}


def _found(
    *stacks: dict, sensors: dict | None = None, **loader: object
) -> tuple[Finding, Recording]:
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
    return found, seen


def _facts(*stacks: dict, **known: Any) -> dict[str, Evidence]:
    """The facts of the finding, by name."""
    found, _ = _found(*stacks, **known)
    return {one.fact: one for one in found.evidence}


def _check_line(fact: Evidence, line: int, text: str, function: str, samples: float) -> None:
    assert fact.location is not None and fact.location.line == line
    assert fact.values == {"samples": samples, "function": function, "text": text}


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
    facts = _facts(
        _stack(20, "augment", 60, "total += row[i]"),
        _stack(21, "augment", 20, "count += 1"),
        _stack(40, "collate", 20, "torch.stack(rows)"),
    )
    _check_line(facts["preparing-line"], 20, "total += row[i]", "augment", 0.8)


def test_a_line_that_computes_is_to_be_made_cheaper_before_workers_hide_it() -> None:
    """Exactly named, a loop over pixels got workers and threads as its only advice."""
    row = _stack(33, "__getitem__", 90, "out[y, x] = image[y, x]")
    facts = _facts(row)
    _check_line(facts["preparing-line"], 33, "out[y, x] = image[y, x]", "__getitem__", 1.0)
    order = list(facts)
    assert order.index("cheaper-first") == order.index("preparing-line") + 1
    assert "cheaper-first" not in _facts(), "no line stands out"
    assert "cheaper-first" not in _facts(row, sample_cpu_share=0.01), "it waits"


def test_files_of_a_package_are_named_from_the_programs_folder() -> None:
    """The headline said train.py:20 of a program that has three of that name."""
    row = _stack(20, "augment", 90, "total += row[i]")
    row["location"]["file"] = "/w/pkg/data.py"
    assert "pkg/data.py:20" in " ".join(evidence_of(*_found(row)))
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
    assert "preparing-line" not in _facts(*stacks)
    assert "preparing-line" not in _facts(*stacks, sample_cpu_share=0.02)


def test_the_line_that_waits_is_named_as_well() -> None:
    facts = _facts(_stack(7, "__iter__", 60, "time.sleep(0.05)"), sample_cpu_share=0.01)
    _check_line(facts["preparing-line"], 7, "time.sleep(0.05)", "__iter__", 1.0)


def test_the_line_that_waits_for_workers_prepares_nothing() -> None:
    stacks = _stack(7, "train", 60, "batch = self.queue.take()")
    known = {"num_workers": 2, "sensors": {"workers_cpus": 0.1}}
    assert "preparing-line" not in _facts(stacks, sample_cpu_share=None, **known)


def test_a_loader_that_hardly_reads_waits_for_something_else() -> None:
    facts = _facts(sample_cpu_share=0.01, sensors={"read_bytes_per_s": 40_000.0})
    assert "waits-unread" in facts and "waits" not in facts
    assert facts["hardly-reads"].values["mb_per_s"] == pytest.approx(0.04)
    facts = _facts(sample_cpu_share=0.01, sensors={"read_bytes_per_s": 40e6})
    assert "waits" in facts and "waits-unread" not in facts
    assert facts["reads"].values["mb_per_s"] == pytest.approx(40.0)


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
    plain = {"mean_s": 0.0169, "data_wait_s": 0.0075}
    (found,) = data_wait.CHECK.findings(
        recording({"shares": {"data_loader": 0.444}, "steps": plain})
    )
    assert found.evidence[1].values["starting_workers_s"] is None
    assert found.evidence[1].values["in_loop_s"] is None
