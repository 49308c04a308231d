"""Batches from memory: epochs that end as ever, containers that are the program's own."""

from __future__ import annotations

from collections import UserDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ceilings import MODEL, on_in_iterations, rows_of, run, untouched, without

from torchdoctor.probe.fixkit.replayed import Replayed

EPOCHS = """
data = torch.arange(384, dtype=torch.float32).view(48, 8).sin()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)
ends = []
for epoch in range(20):
    for x, in loader:
        note(first=x[0, 0].numpy().item(), epoch=epoch, ends=len(ends))
        optimizer.zero_grad()
        loss = (net(x) - x.mean()).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        ends.append(sum(len(y) for y, in loader))
"""
WITH_KEYS = """
data = [{"x": torch.full((8,), float(i)).sin(), "y": torch.tensor(i)} for i in range(200)]
LOOP
        note()
        y = batch.pop("y")
        batch["z"] = batch["x"] + 1
        optimizer.zero_grad()
        (net(batch["x"]) - 1).square().mean().backward()
        optimizer.step()
        schedule.step()
"""
ONE = """
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(data, batch_size=2):
"""
TWO = """
for epoch in range(2):
    other = torch.utils.data.DataLoader(data, batch_size=2)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    for more, batch in zip(other, loader):
"""


@pytest.mark.slow
def test_epochs_end_as_ever_and_the_place_in_the_data_is_kept(tmp_path: Path) -> None:
    """An epoch that never ended took its validation away too, and 2.6x was "the loader"."""
    script = MODEL + EPOCHS
    ran = run(tmp_path, script, "loader-batches", {"loader": 0}, block_steps=24)
    (fix,) = ran.main["fixes"]
    assert ran.said() == [] and (fix["state"], fix["why"]) == ("applied", None), ran.stderr
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    within = [row["ends"] for one, row in zip(on, rows, strict=False) if one == 1]
    assert len(within) >= 2 * 24 and within[-1] - within[0] >= 4
    lengths = [sum(row["epoch"] == n for row in rows) for n in range(rows[-1]["epoch"])]
    assert all(6 <= length <= 24 for length in lengths), "no epoch goes on and on"
    ours = without(rows, on, "first")
    theirs = without(untouched(tmp_path, script), [0] * 240, "first")
    assert len(ours) > 48 and ours == theirs[: len(ours)]


@pytest.mark.slow
def test_a_program_that_takes_keys_out_of_its_batches_finds_them_again(tmp_path: Path) -> None:
    ran = run(tmp_path, MODEL + WITH_KEYS.replace("LOOP", ONE), "loader-batches", {"loader": 0})
    (fix,) = ran.main["fixes"]
    assert (fix["state"], ran.stopped_by) == ("applied", "done"), ran.stderr


@pytest.mark.slow
def test_one_of_two_loaders_is_not_the_loader(tmp_path: Path) -> None:
    script = MODEL + WITH_KEYS.replace("LOOP", TWO)
    ran = run(tmp_path, script, "loader-batches", {"loader": 1}, boundary="optimizer")
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "refused" and fix["why"]["fact"] == "steps-take-other-batches"


def replayed(batch: Any) -> Replayed:
    return Replayed(torch, batch)


def test_every_container_is_new_each_time() -> None:
    pair = namedtuple("pair", "a b")
    x = torch.zeros(3)

    class Encoding(UserDict):
        pass

    for batch in ({"x": x, "more": [x, {"x": x}]}, [x, [x]], pair(x, {"x": x}), Encoding(x=x)):
        kept = replayed(batch)
        first, second = kept.again(), kept.again()
        assert type(first) is type(batch) and kept.tensors
        assert all(tensor is x for tensor in kept.tensors)
        if isinstance(first, tuple):
            first.b.pop("x")
        else:
            first.pop("x") if not isinstance(first, list) else first.pop()
        assert str(second) == str(kept.again()) == str(batch)


def test_a_tensor_that_is_written_into_shows_wherever_it_lies() -> None:
    class Graph:
        def __init__(self) -> None:
            self.edges = {"index": torch.zeros(2, 5)}

    graph = Graph()
    kept = replayed((graph,))
    assert not kept.is_changed()
    graph.edges["index"].add_(1)
    assert kept.is_changed()


@pytest.mark.parametrize(
    ("one", "other", "longer"),
    [
        ([(8, 3), (8,)], [(5, 3), (5,)], True),
        ([(5, 3), (5,)], [(8, 3), (8,)], False),
        ([(8, 30)], [(8, 20)], None),
        ([(50, 8), (8,)], [(40, 8), (8,)], None),
        ([(8, 3)], [(8, 3), (8,)], None),
    ],
)
def test_a_short_last_batch_is_told_from_batches_of_varying_length(
    one: list[tuple[int, ...]], other: list[tuple[int, ...]], longer: bool | None
) -> None:
    both = [replayed([torch.zeros(shape) for shape in shapes]) for shapes in (one, other)]
    assert both[0].is_longer_than(both[1]) is longer


BY_OWN_SAMPLER = """
class Sampler(torch.utils.data.Sampler):
    def __iter__(self): return iter(range(320))
    def __len__(self): raise ValueError("nobody knows")
data = torch.arange(2560, dtype=torch.float32).view(320, 8).sin()
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(data), batch_size=4, sampler=Sampler())
for x, in loader:
    note()
    optimizer.zero_grad()
    (net(x) - x.mean()).square().mean().backward()
    optimizer.step()
    schedule.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("matters", [False, True])
def test_a_loader_that_cannot_say_its_length_does_no_harm(matters: bool, tmp_path: Path) -> None:
    settings = {"loader": 0, "epochs_matter": matters}
    ran = run(tmp_path, MODEL + BY_OWN_SAMPLER, "loader-batches", settings)
    (fix,) = ran.main["fixes"]
    assert ran.stopped_by == "done" and ran.said() == [], ran.stderr
    assert fix["state"] == ("refused" if matters else "applied")
