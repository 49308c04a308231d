"""The copy of the training's state: not where it would take what the next step needs."""

from __future__ import annotations

import pytest
import torch

from torchdoctor.probe.fixkit import spare_memory
from torchdoctor.probe.fixkit.training_state import lacking


def test_a_copy_that_leaves_no_room_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step ran out of memory, in the user's own code, and the program ended."""
    net = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 1000)).sum().backward()
    optimizer.step()
    whole = 4 * 4_000_000  # weights, gradients, both averages
    monkeypatch.setattr(spare_memory, "available_bytes", lambda: whole + 1000)
    assert lacking(torch, [net], [optimizer]) is None
    monkeypatch.setattr(spare_memory, "available_bytes", lambda: whole - 1000)
    why = lacking(torch, [net], [optimizer])
    assert why is not None and why["fact"] == "no-memory-for-state"
    figures = {"copy_gb": whole / 1e9, "free_gb": (whole - 1000) / 1e9}
    assert why["values"] == pytest.approx(figures, rel=1e-4), "what it takes, and what is free"
    monkeypatch.setattr(spare_memory, "available_bytes", lambda: None)
    assert lacking(torch, [net], [optimizer]) is None, "where nothing is known"
