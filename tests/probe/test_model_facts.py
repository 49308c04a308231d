"""What the probe says of a model's layout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchdoctor.probe.measure.model_facts import describe


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


class Linear(nn.Module):
    """As torch_geometric's: of that name, with other attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.in_channels, self.weight = 65, nn.Parameter(torch.zeros(65, 65))


class Conv2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8))


class PaddedConv2d(nn.Conv2d):
    """As timm's: derived from torch's, under another name."""


def test_layers_of_other_packages_are_told_from_those_of_torch() -> None:
    """One with a Linear of its own could not be described, and no forward of it was seen."""
    model = nn.Sequential(Linear(), Conv2d(), nn.BatchNorm2d(8), nn.Linear(65, 65))
    found = describe(model)
    assert (found["linear"], found["conv2d"], found["conv_bias_before_norm"]) == (1, 0, 0)
    assert found["uneven_linears"] == [{"name": "3", "inputs": 65, "outputs": 65}]
    assert describe(PaddedConv2d(8, 8, 3))["conv2d"] == 1


def test_a_cell_in_a_loop_is_no_layer_that_compiling_leaves_as_it_is() -> None:
    """A loop over nn.GRUCell compiles and ran 5.7 times as fast."""
    assert describe(nn.Sequential(nn.GRU(4, 4), nn.GRUCell(4, 4)))["recurrent"] == 1
