"""The benchmark that runs frameworks: what its rows say of a recording."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from partial_recordings import recording

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import frameworks
from frameworks import TABLE, Row, judged, table

from torchdoctor.schema import Diagnosis, Recording, Report, WorkloadRecord

PRINTED = "Epoch 1\ncounted: 30 steps by skorch 1.2\n"


def report(bottleneck: str) -> Report:
    diagnosis = Diagnosis(bottleneck=bottleneck, detail="loader-cpu-bound", sentence="")
    return Report(
        torchdoctor_version="0",
        created="",
        workload=WorkloadRecord(command=["train.py"], cwd="/w"),
        environment=recording().environment,
        diagnosis=diagnosis,
    )


def recorded(script: Path, library: str, steps: int = 30) -> Recording:
    loader = {"ident": 0, "batches": 30, "dataset_length": 480, "batch_size": 16}
    made = recording(
        {
            "steps": {
                "boundary": {"kind": "loader", "ident": 0},
                "mean_s": 0.1,
                "data_wait_s": 0.07,
                "forward_s": 0.03,
                "total_steps_seen": steps,
                "program_ended": True,
            },
            "processes": [
                {
                    "pid": 1,
                    "loaders": [{**loader, "location": {"file": str(script), "line": 1}}],
                    "passes": [{"model": 0, "library": library}],
                }
            ],
        }
    )
    return replace(made, workload=replace(made.workload, script=str(script)))


def test_a_row_says_what_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("loader = DataLoader(data)\n")
    skorch = replace(next(x for x in TABLE if x.name == "skorch"), words={})
    row = judged(skorch, report("data_loader"), recorded(script, "skorch.net"), PRINTED, 0)
    assert row.wrong == [] and row.versions == "skorch 1.2" and row.loader == "train.py:1"
    assert "NeuralNet(..., iterator_train__num_workers=" in row.advice["loader-workers"]
    asked = replace(skorch, words={"loader-workers": "TrainingArguments("})
    row = judged(asked, report("cpu"), recorded(script, "skorch.net", 28), PRINTED, 0)
    assert [x.split()[0] for x in row.wrong] == ["loader-workers:", "steps", "bottleneck"]


@pytest.mark.parametrize("reason", ["", "it needs a GPU"])
def test_the_table_has_a_line_for_each_row(reason: str) -> None:
    row = Row(name="skorch", versions="skorch 1.2", counted=30, steps=30, reason=reason)
    assert (reason or "30 of 30") in table([row]).splitlines()[-1]


def test_each_script_exists() -> None:
    scripts = [frameworks.SCRIPTS / x.script for x in TABLE if not x.reason]
    assert all(x.is_file() for x in scripts)
