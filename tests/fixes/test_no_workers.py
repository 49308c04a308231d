"""No worker process for cheap samples, one for those that several would repeat."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from in_words import evidence_of
from partial_recordings import recording
from probed_examples import run_with

from torchdoctor.advice import catalogue
from torchdoctor.edits.diff import edited_files
from torchdoctor.schema import Recording

FIX = catalogue.fixes()["loader-workers"]

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(8.0).view(8, 1))
model = torch.nn.Linear(1, 1)
for epoch in range(2):
    loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True,
                        prefetch_factor=4, timeout=60, multiprocessing_context="fork")
    for (x,) in loader:
        model(x).sum().backward()
        print(loader.num_workers, x.tolist())
"""


@pytest.mark.slow
def test_what_belongs_to_workers_goes_with_them(tmp_path: Path) -> None:
    ran = run_with(SCRIPT, {"loader-workers": {"num_workers": 0}}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.probe_errors == []
    workers, samples = ran.stdout.splitlines()[0].split(" ", 1)
    assert (workers, ast.literal_eval(samples)) == ("0", [[0.0], [1.0], [2.0], [3.0]])
    assert ran.applied["loader-workers"]["state"] == "applied"


STREAM = """
import torch
from torch.utils.data import DataLoader, IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(8.0).view(8, 1))
model = torch.nn.Linear(1, 1)
loader = DataLoader(Stream(), batch_size=4)
for epoch in range(2):
    for x in loader:
        model(x).sum().backward()
        print(x.tolist())
print(loader.num_workers)
"""


@pytest.mark.slow
def test_one_worker_gives_a_stream_once(tmp_path: Path) -> None:
    plain = run_with(STREAM, {}, tmp_path / "plain")
    one = run_with(STREAM, {"loader-workers": {"num_workers": 1, "loader": 0}}, tmp_path / "one")
    assert (plain.returncode, one.returncode) == (0, 0), one.stderr
    assert plain.stdout.replace("]]\n0", "]]\n1") == one.stdout


def _seen(script: Path, line: int, **loader: object) -> Recording:
    known = {
        "ident": 0,
        "location": {"file": str(script), "line": line},
        "num_workers": 2,
        "batches": 80,
        "iterators": 10,
        **loader,
    }
    seen = recording(
        {
            "steps": {"data_wait_s": 0.005, "loader_start_s": 0.002},
            "sensors": {"workers_cpus": 0.2},
            "processes": [{"pid": 1, "loaders": [known]}],
        }
    )
    return replace(seen, workload=replace(seen.workload, cwd=str(script.parent)))


CALLS = [
    ("DataLoader(d, num_workers=2, persistent_workers=True)", "DataLoader(d, num_workers=0)"),
    ("DataLoader(d, prefetch_factor=4, num_workers=2)", "DataLoader(d, num_workers=0)"),
    (
        "DataLoader(\n    d,\n    num_workers=2,\n    timeout=9,\n    prefetch_factor=4,  # q\n)",
        "DataLoader(\n    d,\n    num_workers=0,\n)",
    ),
    (
        "DataLoader(\n    d, num_workers=2,  # two\n    timeout=9, prefetch_factor=4  # q\n)",
        "DataLoader(\n    d, num_workers=0,  # two\n)",
    ),
    (
        "DataLoader(\n    d, num_workers=2, timeout=9,  # all\n    shuffle=True)",
        "DataLoader(\n    d, num_workers=0,  # all\n    shuffle=True)",
    ),
    ("DataLoader(d, 8, True, None, None, 2, None, False, False, 30)", None),
    ("DataLoader(d, num_workers=2, **more)", None),
]


def script_of(call: str) -> str:
    return f"n = 2\nloader = {call}\n"


@pytest.mark.parametrize(("call", "expected"), CALLS)
def test_the_edit_takes_them_away_as_well(tmp_path: Path, call: str, expected: str | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(script_of(call))
    files = edited_files(FIX.edits({"num_workers": 0}, _seen(script, 2)))
    if expected is None:
        assert files is None
        return
    assert files is not None
    [(_, after)] = files.values()
    ast.parse(after)
    assert after == script_of(expected)


OPTION = """import argparse
p = argparse.ArgumentParser()
p.add_argument("--workers", type=int, default=2)
args = p.parse_args()
loader = DataLoader(d, num_workers=args.workers, persistent_workers=args.workers > 0)
"""


def test_what_follows_the_number_of_workers_stays(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OPTION)
    files = edited_files(FIX.edits({"num_workers": 0}, _seen(script, 5)))
    assert files is not None
    assert [after for _, after in files.values()] == [OPTION.replace("default=2", "default=0")]


def test_other_numbers_leave_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    call = "loader = DataLoader(d, num_workers=2, persistent_workers=True)\n"
    script.write_text(call)
    files = edited_files(FIX.edits({"num_workers": 4}, _seen(script, 1)))
    assert files is not None
    assert [after for _, after in files.values()] == [call.replace("2", "4")]


def test_workers_that_are_started_again_and_again_may_be_left_out(tmp_path: Path) -> None:
    seen = _seen(tmp_path / "train.py", 1)
    assert FIX.settings(seen)[0]["num_workers"] == 0
    assert "num_workers=0" in FIX.instruction({"num_workers": 0}, seen)


@pytest.mark.parametrize(
    ("loader", "sensors"),
    [
        ({}, {"workers_cpus": 1.9}),  # they compute more than is waited for
        ({"persistent_workers": True}, {"workers_cpus": 0.2}),  # they wait for storage
    ],
)
def test_workers_that_are_worth_their_cost_stay(
    tmp_path: Path, loader: dict[str, object], sensors: dict[str, float]
) -> None:
    seen = _seen(tmp_path / "train.py", 1, **loader)
    seen = replace(seen, sensors=replace(seen.sensors, **sensors))
    assert 0 not in [one["num_workers"] for one in FIX.settings(seen)]


def test_samples_that_cost_less_than_the_queue_need_no_workers(tmp_path: Path) -> None:
    seen = _seen(tmp_path / "train.py", 1, persistent_workers=True, num_workers=1)
    seen = replace(
        seen,
        steps=replace(seen.steps, data_wait_s=0.009),
        sensors=replace(seen.sensors, workers_cpus=0.6),
    )
    assert FIX.settings(seen)[0]["num_workers"] == 0


@pytest.mark.parametrize("again", [False, True])
def test_what_to_write_against_workers_started_again_is_said(tmp_path: Path, again: bool) -> None:
    seen = _seen(tmp_path / "train.py", 7)
    if again:
        loader = seen.main.loaders[0]
        made = [replace(loader, iterators=1), replace(loader, ident=1, iterators=1)]
        seen = replace(seen, processes=[replace(seen.main, loaders=made)])
        why = catalogue.fixes()["persistent-workers"].refuses(seen)
        assert why is not None and why.location is not None and why.location.line == 7
    [found] = catalogue.checks()["workers-respawned"].findings(seen)
    said = " ".join(evidence_of(found, seen))
    assert "persistent_workers=True" in said
    assert "(train.py:7)" in said
    remedies = {each.fact for each in found.evidence} - {"started-again"}
    assert remedies == {"construct-once" if again else "keep-them"}


def test_the_sentence_of_a_change_to_no_workers_is_not_that_of_workers() -> None:
    """ "num_workers=0: load batches in worker processes" told the opposite of what it does."""
    assert FIX.says({"num_workers": 0, "loader": 1}) not in (None, FIX.title)
    assert FIX.says({"num_workers": 2}) is None
