"""What the probe says of a model's layout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchdoctor.probe.model_facts import describe


@pytest.mark.parametrize(
    ("model", "convertible"),
    [
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)), True),  # digits: one channel
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)), True),  # depthwise
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.LazyConv2d(8, 3)), False),
        (nn.Sequential(nn.Linear(4, 4)), False),
    ],
)
def test_channels_last_is_seen_once_it_was_asked_for(model: nn.Module, convertible: bool) -> None:
    assert not describe(model)["conv_channels_last"]
    if not any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        model = model.to(memory_format=torch.channels_last)
    assert describe(model)["conv_channels_last"] is convertible
