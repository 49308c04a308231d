"""What a model decides is read while nothing is timed: reading it waits for the device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchdoctor.observe.events import read_decisions
from torchdoctor.probe.measure.decisions import Decisions

torch: Any = pytest.importorskip("torch")


class OnDevice:
    """Ids on a device, which are read through the CPU alone."""

    is_cpu = False
    dtype = torch.int64

    def detach(self) -> OnDevice:
        return self

    def reshape(self, *_: int) -> OnDevice:
        return self

    def clone(self) -> OnDevice:
        return self

    def __len__(self) -> int:
        return 3

    def __getitem__(self, _: slice) -> OnDevice:
        return self

    def cpu(self) -> Any:
        return torch.tensor([4, 5, 6])

    def tolist(self) -> list[int]:
        raise AssertionError("a flush waits for the device")


def test_a_flush_leaves_what_lies_on_the_device_until_that_rests(tmp_path: Path) -> None:
    session = SimpleNamespace(
        torch=torch, channel=str(tmp_path), number=7, forget=[], when_flushing=[]
    )
    session.when_device_rests = []
    decisions = Decisions(session)
    decisions.keep(1, torch.tensor([1, 2]))
    decisions.keep(2, OnDevice())
    for flush in session.when_flushing:
        flush()
    assert read_decisions(tmp_path / "decisions-7.bin") == [[1, 2]]
    for function in [*session.when_device_rests, *session.when_flushing]:
        function()
    assert read_decisions(tmp_path / "decisions-7.bin") == [[1, 2], [4, 5, 6]]
