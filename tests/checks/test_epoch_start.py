"""What each epoch begins with is told apart from what its samples cost."""

from __future__ import annotations

from typing import Any

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.queries.bounds import share_saved
from torchdoctor.queries.touched import waits
from torchdoctor.schema import Recording, process

LOADER = {"ident": 0, "batches": 400, "iterators": 10, "num_workers": 0, "sample_cpu_share": 0.95}
DRAWS = {
    "location": {"file": "/w/train.py", "line": 25, "function": "main"},
    "phase": "loader",
    "count": 40,
    "leaf_file": "utils/data/sampler.py",
    "leaf_function": "__iter__",
    "text": "for x, y in loader:",
}


def seen(first_batch_s: float, **loader: Any) -> Recording:
    steps = {"mean_s": 0.01, "data_wait_s": 0.008, "first_batch_s": first_batch_s}
    return recording({"steps": steps, **process(loaders=[{**LOADER, **loader}], stacks=[DRAWS])})


def told(check: str, of: Recording) -> Any:
    return next(iter(catalogue.checks()[check].findings(of)), None)


def test_the_beginning_has_its_share_and_line_and_samples_the_rest() -> None:
    both = seen(0.006)
    start, samples = told("epoch-start", both), told("loader-cpu-bound", both)
    assert start.share_of_step == pytest.approx(0.6)
    assert start.location.line == 25
    assert start.evidence[0].values["part"] == pytest.approx(0.75)
    assert start.evidence[0].values["batches"] == 40
    assert samples.share_of_step == pytest.approx(0.2)
    touched = waits(both)
    assert touched and share_saved(touched[:1]) == pytest.approx(0.2)


def test_a_wait_that_is_all_beginning_blames_no_sample() -> None:
    assert told("loader-cpu-bound", seen(0.0079)) is None
    assert not waits(seen(0.008))


def test_workers_started_again_are_no_beginning_of_this_kind() -> None:
    again = seen(0.006, num_workers=2)
    assert told("epoch-start", again) is None
    assert told("workers-respawned", again) is not None
    assert told("epoch-start", seen(0.006, num_workers=2, persistent_workers=True)) is not None


def test_a_single_epoch_has_begun_before_anything_was_measured() -> None:
    assert told("epoch-start", seen(0.006, iterators=1)) is None
