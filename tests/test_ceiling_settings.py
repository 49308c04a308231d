"""Which costs are worth taking away, by what was observed, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from catalogue_faults import faults
from made_tensors import tensor_row
from partial_recordings import recording

from torchdoctor.trials.ceilings import ceiling_trials

GPU = {"ident": 0, "cls": "Net", "device": "cuda:0", "forwards": 90}
CPU = {**GPU, "device": "cpu"}
STACK = {
    "location": {"file": "/w/train.py", "line": 12, "function": "get_batch"},
    "phase": "after_step",
    "count": 90,
    "leaf_file": "numpy/core/memmap.py",
    "leaf_function": "__getitem__",
}
OPTIMIZER = {"boundary": {"kind": "optimizer", "ident": 0}}
TRACE = {"path": "t", "steps": 4, "step_s": 0.01}
ITEMS = {"name": "aten::item", "calls_per_step": 40.0, "self_s": 0.0002}
WAIT = {
    "kind": "wait",
    "name": "item",
    "location": {"file": "/w/train.py", "line": 30},
    "text": "loss.item()",
    "calls_per_step": 1.0,
    "host_s": 0.004,
}


def chosen(over: dict[str, Any], bottleneck: str = "none") -> list[str]:
    return [trial.row.ceiling for trial in ceiling_trials(recording(over), bottleneck)]


def test_a_loop_without_its_model_bounds_no_fix_of_the_evaluation_that_goes_on() -> None:
    """Its 1.24x stood as the most that any fix can gain, beside one of evaluation with 1.6x."""
    shares = {"processes": [{"pid": 1, "models": [CPU]}], "shares": {"cpu": 1.0}}
    for evaluation_s, whole in ((0.0, True), (0.0075, False)):
        over = {**shares, "steps": {"mean_s": 0.01, "evaluation_s": evaluation_s}}
        assert [trial.row.whole for trial in ceiling_trials(recording(over), "cpu")] == [whole]


def test_every_ceiling_file_is_complete() -> None:
    assert [fault for fault in faults() if fault.startswith("ceiling")] == []


@pytest.mark.parametrize(
    ("over", "wanted"),
    [
        ({"shares": {"data_loader": 0.4, "cpu": 0.6}}, ["loader-batches"]),
        ({"shares": {"data_loader": 0.01, "cpu": 0.99}}, []),
        ({"processes": [{"pid": 1, "models": [CPU]}], "shares": {"cpu": 1.0}}, ["model-skipped"]),
        (
            {
                "steps": {**OPTIMIZER, "before_forward_s": 0.006, "other_s": 0.007},
                "processes": [{"pid": 1, "stacks": [STACK]}],
            },
            ["batch-function"],
        ),
        (
            {
                "steps": {**OPTIMIZER, "before_forward_s": 0.006, "other_s": 0.007},
                "processes": [
                    {
                        "pid": 1,
                        "stacks": [
                            {**STACK, "location": {**STACK["location"], "function": "<module>"}}
                        ],
                    }
                ],
            },
            [],
        ),
        ({"trace": {**TRACE, "operators": [ITEMS]}}, ["answered-waits"]),
        ({"trace": {**TRACE, "operators": [{**ITEMS, "calls_per_step": 2.0}]}}, []),
        (
            {
                "processes": [{"pid": 1, "models": [GPU], "tensor_calls": [WAIT]}],
                "trace": {**TRACE, "has_device": True, "sync_s": 0.004, "shares": {"cpu": 0.3}},
                "shares": {"gpu": 0.5, "memcpy": 0.1, "cpu": 0.3},
            },
            ["model-skipped", "answered-waits", "device-batches"],
        ),
        (
            {
                "processes": [{"pid": 1, "models": [GPU]}],
                "trace": {**TRACE, "has_device": True},
                "shares": {"gpu": 0.99, "memcpy": 0.001},
            },
            ["model-skipped"],
        ),
    ],
)
def test_what_is_tried(over: dict[str, Any], wanted: list[str]) -> None:
    assert chosen(over) == wanted


def test_the_branch_that_the_diagnosis_names_comes_first() -> None:
    over = {
        "processes": [{"pid": 1, "models": [CPU]}],
        "shares": {"data_loader": 0.4, "cpu": 0.6},
    }
    assert chosen(over) == ["model-skipped", "loader-batches"]
    assert chosen(over, "data_loader") == ["loader-batches", "model-skipped"]


def test_branch_and_share_are_those_of_the_machine() -> None:
    shares = {"gpu": 0.7, "cpu": 0.2}
    on_gpu = {"processes": [{"pid": 1, "models": [GPU]}], "shares": shares}
    one = ceiling_trials(recording(on_gpu), "none")[0].row
    assert (one.branch, one.share, one.whole) == ("gpu", pytest.approx(0.9), True)
    on_cpu = {"processes": [{"pid": 1, "models": [CPU]}], "shares": {"cpu": 0.9}}
    other = ceiling_trials(recording(on_cpu), "none")[0].row
    assert (other.branch, other.share) == ("cpu", 0.9)


@pytest.mark.parametrize(("to_host", "whole"), [(0, True), (50, True), (900, False)])
def test_copies_to_the_host_are_a_part_of_the_copies(to_host: int, whole: bool) -> None:
    """Only those to the device are taken away."""
    over = {
        "processes": [{"pid": 1, "models": [GPU]}],
        "trace": {**TRACE, "has_device": True, "h2d_bytes": 1000, "d2h_bytes": to_host},
        "shares": {"gpu": 0.5, "memcpy": 0.4},
    }
    rows = [trial.row for trial in ceiling_trials(recording(over), "none")]
    (one,) = [row for row in rows if row.branch == "memcpy"]
    assert one.whole is whole


@pytest.mark.parametrize(
    ("steps", "tensors", "wanted"),
    [
        ({}, [], (False, False)),
        ({"evaluation_s": 0.001}, [], (True, False)),
        ({"two_modes": True}, [tensor_row(32, 3), tensor_row(8, 3)], (True, False)),
        ({}, [tensor_row(8, length) for length in (30, 20, 44)], (False, True)),
    ],
)
def test_what_two_batches_cannot_stand_for_is_told_to_the_ceiling(
    steps: dict[str, Any], tensors: list[dict[str, Any]], wanted: tuple[bool, bool]
) -> None:
    loaders = [{"ident": 0, "batch_tensors": [[tensor] for tensor in tensors]}]
    over = {
        "steps": steps,
        "processes": [{"pid": 1, "loaders": loaders}],
        "shares": {"data_loader": 0.4},
    }
    (one,) = ceiling_trials(recording(over), "none")
    settings = one.fixes[one.fixes.first]
    assert (settings["epochs_matter"], settings["varies"]) == wanted
