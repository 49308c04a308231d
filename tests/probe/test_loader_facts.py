"""What is told of a DataLoader."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from torchdoctor.probe.measure import loader_facts
from torchdoctor.probe.measure.nested import shape_rows, shapes


def test_what_draws_the_order_is_told_through_samplers_of_batches() -> None:
    """Beside a sampler of batches, torch gives a loader a sampler that nothing uses."""
    data = list(range(8))
    drawn = BatchSampler(RandomSampler(data), 4, False)
    wanted = [
        (DataLoader(data), False),
        (DataLoader(data, shuffle=True), True),
        (DataLoader(data, batch_sampler=drawn), True),
        (DataLoader(data, sampler=[2, 1]), None),
    ]
    for loader, shuffles in wanted:
        known = loader_facts.Known(loader, None, torch, 0)
        assert known.facts(0)["shuffles"] is shuffles


def test_a_batch_is_told_with_where_it_lies() -> None:
    """That batches lie on a device already was never seen, and pinning them was tried."""
    loader = loader_facts.Known(DataLoader(list(range(8))), None, torch, 0)
    batch = {"x": torch.empty(4, 3, device="meta"), "y": torch.ones(4, dtype=torch.bool)}
    for _ in range(2):
        loader.note(batch, 4, 0.1, (0.1, None))
    assert loader.facts(0)["batch_tensors"] == [
        [
            {"sizes": (4, 3), "dtype": "float32", "device": "meta", "element_bytes": 4},
            {"sizes": (4,), "dtype": "bool", "device": "cpu", "element_bytes": 1},
        ]
    ]


def test_a_size_that_stands_for_any_number_is_not_asked_for_it() -> None:
    """Asking makes torch compile for that number alone."""
    numbers = ShapeEnv()
    sizes = [DimDynamic.DYNAMIC, DimDynamic.STATIC]
    symbolic = FakeTensorMode(shape_env=numbers).from_tensor(
        torch.ones(4, 3), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )
    [[row]] = shape_rows([shapes([symbolic])])
    assert row["sizes"] == (-1, 3)
    assert not numbers.guards
