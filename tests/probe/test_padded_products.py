"""The program's own products beside padded ones, and the snapshot of a device's memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from probed import run_probed

from torchdoctor.probe.hooks.analysis import MemorySnapshot
from torchdoctor.queries.arithmetic import padding_gains
from torchdoctor.schema import Environment, ProcessFacts, Recording, Workload

CONVOLUTION = "aten::convolution"
TRAIN = """
import torch
torch.manual_seed(0)
conv = torch.nn.Conv2d(16, 61, 3)
head = torch.nn.Linear(61, 505)
model = torch.nn.Module()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = conv, head
    def forward(self, x):
        return self.head(self.conv(x).relu().flatten(2).transpose(1, 2))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(200, 16, 12, 12))
for x, in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad(); net(x).mean().backward(); optimizer.step()
"""


@pytest.mark.slow
def test_uneven_products_of_the_program_are_timed_alone_beside_padded_ones(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    run = run_probed(
        ["train.py"],
        tmp_path,
        tmp_path,
        forked=True,
        purpose="profile",
        boundary={"kind": "loader", "ident": 0, "every": 1},
        profile={"wait": 1, "warmup": 1, "active": 2, "analyse": True, "record_shapes": True},
    )
    assert run.said() == [] and run.stopped_by == "done", run.stderr
    rows = {row["operator"]: row for row in run.main["padded_products"]}
    channels = {"dimension": "output channels", "size": 61, "padded": 64}
    assert rows[CONVOLUTION]["padded_sizes"] == [channels]
    assert rows[CONVOLUTION]["sizes"] == "[4, 16, 12, 12], [61, 16, 3, 3]"
    assert rows[CONVOLUTION]["calls_per_step"] == 1
    linear = [
        {size["size"]: size["padded"] for size in row["padded_sizes"]}
        for row in rows.values()
        if row["operator"] != CONVOLUTION
    ]
    # Forward and gradients: each size is in turn rows, columns and inner.
    assert any(sizes.get(61) == 64 and sizes.get(505) == 512 for sizes in linear), linear
    assert all(row["device"] == "cpu" and row["alone_s"] > 0 for row in rows.values())
    facts = msgspec.convert(run.main, type=ProcessFacts, strict=False)
    seen = Recording(
        workload=Workload(command=[], cwd="/"), environment=Environment(), processes=[facts]
    )
    for gain in padding_gains(seen):
        assert len(gain.product.speedups) >= 4
        assert 0 < gain.speedup.low <= gain.speedup.estimate <= gain.speedup.high
    assert run.main["memory_snapshot"] is None, "nothing runs on a GPU here"


class _Memory:
    """Stands for `torch.cuda.memory`: only the two calls that are made."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _record_memory_history(self, enabled: str | None = "all", **more: Any) -> None:
        self.calls.append((enabled, more.get("max_entries")))

    def _dump_snapshot(self, filename: str) -> None:
        self.calls.append("dump")
        Path(filename).write_bytes(pickle.dumps({"segments": []}))


def _session(folder: Path, memory: _Memory, **c: Any) -> Any:
    cuda = SimpleNamespace(is_initialized=lambda: True, memory=memory)
    return SimpleNamespace(
        torch=SimpleNamespace(cuda=cuda, _C=SimpleNamespace(**c)), channel=str(folder), number=7
    )


def test_the_snapshot_is_written_once_and_recording_ends(tmp_path: Path) -> None:
    memory = _Memory()
    snapshot = MemorySnapshot(_session(tmp_path, memory))
    assert snapshot.facts() == {"memory_snapshot": None}
    snapshot.start()
    snapshot.stop()
    snapshot.stop()
    path = tmp_path / "memory-7.pickle"
    assert snapshot.facts() == {"memory_snapshot": str(path)}
    assert path.exists() and not list(tmp_path.glob("*.part"))
    assert memory.calls == [("all", 100_000), "dump", (None, None)]


def test_a_history_that_the_program_records_is_left_alone(tmp_path: Path) -> None:
    memory = _Memory()
    snapshot = MemorySnapshot(_session(tmp_path, memory, _cuda_isHistoryEnabled=lambda: True))
    snapshot.start()
    snapshot.stop()
    assert memory.calls == []


def test_a_dump_that_fails_ends_recording_all_the_same(tmp_path: Path) -> None:
    memory = _Memory()
    memory._dump_snapshot = lambda filename: (_ for _ in ()).throw(OSError("disk full"))  # type: ignore[method-assign]
    snapshot = MemorySnapshot(_session(tmp_path, memory))
    snapshot.start()
    with pytest.raises(OSError, match="disk full"):
        snapshot.stop()
    assert memory.calls[-1] == (None, None)
    assert snapshot.facts() == {"memory_snapshot": None}


def test_the_calls_exist_in_this_torch() -> None:
    """The fake above stands for functions whose names begin with an underscore."""
    import inspect

    memory = torch.cuda.memory
    assert "filename" in inspect.signature(memory._dump_snapshot).parameters
    assert "enabled" in inspect.signature(memory._record_memory_history).parameters
