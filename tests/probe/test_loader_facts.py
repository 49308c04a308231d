"""What is told of a DataLoader."""

from __future__ import annotations

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from torchdoctor.probe.measure import loader_facts


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
