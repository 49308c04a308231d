"""Samples answered from memory only where they are the same each time: the real probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_tensors import tensor_row
from partial_recordings import recording

from torchdoctor.advice import catalogue

FIX = catalogue.fixes()["decoded-cache"]

HEAD = """
import collections, random, numpy, torch
from torch.utils.data import DataLoader, Dataset
random.seed(0); numpy.random.seed(0); torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))

class Base(Dataset):
    def __len__(self):
        return 12

def train(dataset, epochs=4, **options):
    for epoch in range(epochs):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        for x in DataLoader(dataset, batch_size=4, **options):
            print(epoch, x.tolist(), round(model(x).sum().item(), 6))
            model(x).sum().backward()
            x.zero_()
"""

SAME = """
class Same(Base):
    made = 0
    def __getitem__(self, index):
        Same.made += 1
        return torch.full((3,), float(index))
train(Same(), shuffle=True)
import sys; print(Same.made, file=sys.stderr)
"""

AUGMENTED = {
    "torch": "torch.rand(3) + index",
    "numpy": "torch.from_numpy(numpy.random.rand(3)).float() + index",
    "python": "torch.full((3,), random.random() + index)",
    # Draws, and has no effect on the sample: without the draw dropout would see other numbers.
    "without effect": "torch.full((3,), float(index)) + 0 * torch.rand(1)",
    "rarely": "torch.full((3,), float(index)) + (random.random() < 0.05)",
    "own generator": "torch.full((3,), float(index)) + self.own.random() // 0.9",
    "by epoch": "torch.full((3,), float(index + 100 * self.epoch))",
    "by call": "torch.full((3,), float(next(self.calls)))",
}


REFUSED_FOR = {"own generator": "holds-generator", "by epoch": "another-sample-later"}


def augmented(how: str) -> str:
    return f"""
class Augmented(Base):
    def __init__(self):
        self.epoch = 0
        if {how == "own generator"}:
            self.own = random.Random(1)
        if {how == "by call"}:
            self.calls = iter([i // 2 for i in range(10**6)])  # in pairs
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __getitem__(self, index):
        return {AUGMENTED[how]}
train(Augmented(), shuffle=True)
"""


def _run(tmp_path: Path, probed, program: str, fixed: bool, limit: int = 10**6, head: str = HEAD):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(head + program)
    fix = {"id": "decoded-cache", "file": FIX.file, "settings": {"limit_bytes": limit}}
    ran = probed(
        [str(tmp_path / "train.py")],
        cwd=tmp_path,
        folder=tmp_path,
        after="continue",
        fixes=[fix] if fixed else [],
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.said() == []
    return ran


def _both(tmp_path: Path, probed, program: str, **options):
    ran = _run(tmp_path / "on", probed, program, True, **options)
    plain = _run(tmp_path / "off", probed, program, False, **options)
    assert ran.stdout == plain.stdout
    (fix,) = ran.main["fixes"]
    return ran, plain, fix


@pytest.mark.slow
def test_samples_that_stay_the_same_are_made_once(tmp_path, probed):
    ran, plain, fix = _both(tmp_path, probed, SAME)
    assert fix["state"] == "applied"
    assert int(plain.stderr) == 48
    assert int(ran.stderr) == 12 + 8 + 3 * 4  # once, some twice, some in each later epoch
    assert fix["details"]["answered"] == 48 - 12 - 12


@pytest.mark.slow
@pytest.mark.parametrize("how", [how for how in AUGMENTED if how != "by call"])
def test_augmented_samples_are_never_kept(tmp_path, probed, how):
    *_, fix = _both(tmp_path, probed, augmented(how))
    assert fix["state"] == "refused"
    assert fix["why"]["fact"] == REFUSED_FOR.get(how, "draws-random-numbers")
    assert "answered" not in fix["details"]


@pytest.mark.slow
def test_one_that_counts_its_calls_is_found_out(tmp_path, probed):
    ran = _run(tmp_path, probed, augmented("by call"), True)
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "refused"


IN_PARTS = """
from torch.utils.data import ConcatDataset, StackDataset, Subset, random_split
SAME
same = Same()
parts = random_split(same, [0.5, 0.5], torch.Generator().manual_seed(1))
train(WRAPPED, shuffle=True)
import sys; print(Same.made, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrapped",
    [
        "Subset(Subset(same, range(12)), [*range(12)][::-1])",
        "ConcatDataset(parts)",
        "StackDataset(x=parts[0], y=parts[1])",
        "parts[0]",
    ],
)
def test_a_part_of_a_data_set_is_kept_as_well(tmp_path, probed, wrapped):
    program = IN_PARTS.replace("SAME", SAME.partition("train(")[0]).replace("WRAPPED", wrapped)
    if "Stack" in wrapped:
        program = program.replace("train(", "whole(").replace("SAME", "")
        program = program.replace("same = ", STACKED, 1)
    _, _, fix = _both(tmp_path, probed, program)
    assert fix["state"] == "applied", fix["why"]
    assert fix["details"]["answered"] > 0


STACKED = """
def whole(dataset, **options):
    for epoch in range(4):
        for pair in DataLoader(dataset, batch_size=3, **options):
            print(epoch, pair)
            model(pair["x"] + pair["y"]).sum().backward()
same = """


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torch", "rarely", "own generator", "by epoch"])
def test_a_part_of_a_data_set_that_augments_is_never_kept(tmp_path, probed, how):
    whole = "torch.utils.data.Subset(whole, range(1, 12))"
    program = augmented(how).replace("train(Augmented()", f"whole = Augmented()\ntrain({whole}")
    program = program.replace("train(", "begin(")
    program = "def begin(part, **options):\n    part.set_epoch = part.dataset.set_epoch\n" + (
        f"    train(part, **options)\n{program}"
    )
    *_, fix = _both(tmp_path, probed, program)
    assert fix["state"] == "refused"
    assert "answered" not in fix["details"]


@pytest.mark.slow
def test_a_part_of_a_data_set_that_makes_whole_batches_is_left_alone(tmp_path, probed):
    program = """
class Batches(Base):
    def __getitem__(self, index):
        raise NotImplementedError
    def __getitems__(self, indices):
        return [torch.full((3,), float(index)) for index in indices]
train(torch.utils.data.Subset(torch.utils.data.Subset(Batches(), range(9)), range(8)))
"""
    *_, fix = _both(tmp_path, probed, program)
    assert fix["why"]["fact"] == "makes-whole-batches"


KINDS = """
import sys
from PIL import Image
Pair = collections.namedtuple("Pair", "image label")

class Kinds(Base):
    made = 0
    def __getitem__(self, index):
        Kinds.made += 1
        image = Image.new("L", (2, 2), index)
        tensor = torch.arange(2).view(2, 1).t()
        return Pair({"a": numpy.full(2, index), "nan": float("nan"), "t": tensor},
                    [image, "text", numpy.int64(index), None])

def collate(samples):
    for sample in samples:
        print(sample, numpy.asarray(sample.label[0]).tolist(), sample.image["t"].stride())
        sample.image["a"][:] = -1  # a collate function may write into its samples
        sample.label.clear()
    return torch.ones(3)

dataset = Kinds()
for epoch in range(3):
    for x in DataLoader(dataset, batch_size=4, collate_fn=collate):
        model(x).sum().backward()
print(Kinds.made, file=sys.stderr)
"""


@pytest.mark.slow
def test_what_collate_does_to_a_sample_does_not_reach_the_next_epoch(tmp_path, probed):
    pytest.importorskip("PIL")
    # Image's repr holds its address.
    program = KINDS.replace("print(sample, ", "print(sample.image, sample.label[1:], ")
    ran, plain, fix = _both(tmp_path, probed, program)
    assert fix["state"] == "applied"
    assert int(ran.stderr) < int(plain.stderr)


UNKNOWN = """
class Other:
    def __init__(self, index):
        self.index = index

class Others(Base):
    def __getitem__(self, index):
        return Other(index)

for epoch in range(3):
    for samples in DataLoader(Others(), batch_size=4, collate_fn=list):
        print([sample.index for sample in samples])
        model(torch.ones(3)).sum().backward()
"""


@pytest.mark.slow
def test_unknown_types_are_not_kept(tmp_path, probed):
    *_, fix = _both(tmp_path, probed, UNKNOWN)
    assert fix["state"] == "refused"


@pytest.mark.slow
def test_no_more_memory_than_is_allowed(tmp_path, probed):
    ran, _, fix = _both(tmp_path, probed, SAME, limit=4 * (12 + 64))
    assert fix["state"] == "refused" or fix["details"].get("answered", 0) <= 4 * 3
    assert int(ran.stderr) > 30


@pytest.mark.slow
def test_persistent_workers_keep_their_own(tmp_path, probed):
    program = """
import os
class Counted(Base):
    def __init__(self):
        self.made = torch.zeros(1).share_memory_()
    def __getitem__(self, index):
        self.made += 1
        return torch.full((3,), float(index))
dataset = Counted()
loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
for epoch in range(4):
    for x in loader:
        print(x.tolist())
        model(x).sum().backward()
import sys; print(int(dataset.made), file=sys.stderr)
"""
    ran, plain, fix = _both(tmp_path, probed, program)
    assert fix["details"]["in_workers"] == 1
    assert int(plain.stderr) == 48
    assert int(ran.stderr) == 12 + 8 + 3 * 4
    temporary = program.replace("persistent_workers=True", "persistent_workers=False")
    ran = _run(tmp_path / "short", probed, temporary, True)
    why = ran.main["fixes"][0]["why"]
    assert why["fact"] == "caches-end-with-epochs"


@pytest.mark.slow
def test_a_data_set_made_anew_each_epoch_takes_its_memory_with_it(tmp_path, probed):
    program = """
import gc, weakref
class Same(Base):
    def __getitem__(self, index):
        return torch.full((3,), float(index))
gone = []
for epoch in range(3):
    dataset = Same()
    gone.append(weakref.ref(dataset))
    train(dataset, epochs=1)
    del dataset
gc.collect()
print([one() is None for one in gone])
"""
    *_, fix = _both(tmp_path, probed, program)
    assert fix["state"] != "applied"
    assert fix["why"]["fact"] == "no-sample-used-twice"


LOADER = {
    "ident": 0,
    "batches": 110,
    "samples": 880,
    "dataset_length": 100,
    "batch_size": 8,
    "iterators": 9,
    "batch_tensors": [[tensor_row(8, 3, 64, 64), tensor_row(8, dtype="int64")]],
}


def _seen(wait: float = 0.008, **loader):
    return recording(
        {
            "steps": {"data_wait_s": wait},
            "processes": [{"pid": 1, "loaders": [{**LOADER, **loader}]}],
        }
    )


def test_tried_with_a_quarter_of_the_memory():
    seen = _seen()
    assert FIX.refuses(seen) is None
    assert FIX.settings(seen) == [{"limit_bytes": 2**32}]
    assert FIX.instruction(FIX.settings(seen)[0], seen)


def test_the_instruction_names_the_programs_own_method(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("class Faces:\n    size = 3\n\n    def __getitem__(self, index): ...\n")
    seen = _seen(dataset_cls="__main__.Faces")
    seen = replace(seen, workload=replace(seen.workload, script=str(script), cwd=str(tmp_path)))
    assert FIX.instruction({}, seen).startswith("# In Faces:\n")
    assert FIX.location(seen).line == 4
    script.write_text("from faces import Faces\n")
    assert FIX.edits({"limit_bytes": 2**32}, seen) == []


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ({"iterable": True}, "iterable-dataset"),
        ({"num_workers": 2}, "workers-end-with-epochs"),
        ({"iterators": 1, "samples": 90}, "first-epoch-alone-unexamined"),
        ({"dataset_length": 10**6}, "too-large-to-keep"),
        ({"wait": 0.00001}, "hardly-waits"),
    ],
)
def test_refused_with_the_reason(loader, reason):
    assert FIX.refuses(_seen(**loader)).fact == reason
