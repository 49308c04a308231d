"""What two runs were set to: what `compare` says of it, and what a report remembers."""

from __future__ import annotations

from dataclasses import replace

from compared_pairs import run_with
from partial_recordings import recording
from shown import terminal

from torchdoctor.compare import compare
from torchdoctor.queries.observed_settings import settings_of
from torchdoctor.schema.report import Setting


def of(**over) -> dict[str, str]:
    """Settings by name, of a program with one loader, model and optimizer."""
    process = {
        "pid": 1,
        "loaders": [{"ident": 0, "batches": 110, "batch_size": 32, "dataset_cls": "data.Images"}],
        "models": [
            {"ident": 0, "cls": "net.Small", "elements": 10, "forwards": 9, "dtypes": ["float32"]},
            {"ident": 1, "cls": "net.Large", "elements": 1500, "forwards": 9, "conv2d": 2},
            {"ident": 2, "cls": "net.Teacher", "elements": 9999, "forwards": 9, "eval_forwards": 9},
        ],
        "optimizers": [
            {"ident": 0, "cls": "torch.optim.adamw.AdamW", "steps": 9, "elements": 1500},
            {"ident": 1, "cls": "torch.optim.sgd.SGD", "steps": 0, "elements": 9999},
        ],
        "flags": {"num_threads": 4, "environment": {"OMP_NUM_THREADS": "4"}},
    }
    found = settings_of(recording({"processes": [{**process, **over}]}))
    return {one.name: one.value for one in found}


def test_a_report_remembers_what_the_training_was_set_to() -> None:
    found = of()
    assert (found["batch size"], found["loader workers"], found["data set"]) == (
        "32",
        "0",
        "Images",
    )
    assert (found["model"], found["weights"], found["autocast"]) == ("Large", "1,500", "no")
    assert (found["optimizer"], found["optimizer fused"]) == ("AdamW", "no")
    assert (found["CPU threads"], found["$OMP_NUM_THREADS"]) == ("4", "4")
    assert "cudnn.benchmark" not in found, "nobody saw it"
    assert set(of(loaders=[], models=[], optimizers=[])) == {"CPU threads", "$OMP_NUM_THREADS"}


def test_settings_that_differ_are_said_and_the_others_are_not() -> None:
    def report(**values: str):
        named = [Setting(name=name.replace("_", " "), value=one) for name, one in values.items()]
        return run_with(settings=named)

    before = report(loader_workers="0", batch_size="32", compiled="no")
    after = report(loader_workers="4", batch_size="32", compiled="no", data_parallel="FSDP")
    found = compare(before, after)
    assert [(one.name, one.a, one.b) for one in found.workload] == [
        ("loader workers", "0", "4"),
        ("data parallel", "none", "FSDP"),
    ]
    assert "loader workers: 0 -> 4" in terminal(found)
    older = replace(before, settings=[])
    assert compare(older, after).workload == [], "an older report did not say"
