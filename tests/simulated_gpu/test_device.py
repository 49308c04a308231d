"""The simulated device itself: what trains on it learns what it learns on the CPU, and its clock
says what a GPU's would."""

from __future__ import annotations

from typing import Any

import pytest

from simulated_gpu import devices

# In one process, which starts a server of programs for each kind of device.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated-gpu")]  # the device is compiled
TRAINING = """
import json, torch
from torch import nn
from torch.nn import functional as F

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 4)
    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 4)
        self.layers = nn.TransformerEncoder(layer, 2)
    def forward(self, x):
        return self.head(self.layers(self.embed(x)).mean(1))

def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4))

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4)),
            lambda: torch.randn(16, 32)),
    "cnn": (convolutions, lambda: torch.randn(8, 3, 16, 16)),
    "lstm": (Recurrent, lambda: torch.randn(4, 5, 8)),
    "transformer": (Attention, lambda: torch.randint(0, 50, (4, 6))),
}

def train(name, device, dtype=None, **options):
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model, x = make().to(device), batch()
    y = torch.randint(0, 4, (len(x),), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses
"""


@pytest.fixture(scope="module", params=["cuda", "npu"])
def kind(request: pytest.FixtureRequest) -> str:
    """The device's name in torch: CUDA's, and one that torch has no code of its own for."""
    return str(request.param)


@pytest.fixture(scope="module")
def losses(kind: str) -> dict[str, list[list[float]]]:
    """Of each model: on the CPU, and on the device."""
    program = """
cuda = torch.version.cuda  # convolutions are every backend's own
names = MODELS if cuda else [name for name in MODELS if name != "cnn"]
both = {name: [train(name, "cpu"), train(name, "cuda")] for name in names}
both["fused"] = [train("mlp", "cpu", fused=True), train("mlp", "cuda", fused=True)]
if cuda:
    low = torch.bfloat16
    both["bfloat16"] = [train("cnn", "cpu", low), train("cnn", "cuda", low)]
    both["float16"] = [train("cnn", "cpu"), train("cnn", "cuda", torch.float16)]
print(json.dumps(both))
"""
    found: dict[str, list[list[float]]] = devices.run(TRAINING + program, kind=kind)
    return found


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "transformer", "fused"])
def test_the_device_learns_what_the_cpu_learns(
    losses: dict[str, list[list[float]]], model: str
) -> None:
    if model not in losses:
        pytest.skip("convolutions on other devices are their backend's")
    on_cpu, on_device = losses[model]
    assert on_device == pytest.approx(on_cpu, abs=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_and_loss_scaling_work(
    losses: dict[str, list[list[float]]], dtype: str, kind: str
) -> None:
    if kind != "cuda":
        pytest.skip("what autocast does on other devices is their backend's")
    on_cpu, on_device = losses[dtype]
    assert on_device == pytest.approx(on_cpu, abs=0.1)
    assert on_device[-1] < on_device[0]


def test_what_was_saved_from_the_device_is_loaded_there_or_elsewhere(tmp_path: Any) -> None:
    program = f"""
import json, torch
path = {str(tmp_path / "model.pt")!r}
layer = torch.nn.Linear(4, 4).cuda()
torch.save(layer.state_dict(), path)
there, here = torch.load(path), torch.load(path, map_location="cpu", weights_only=True)
equal = torch.equal(there["weight"].cpu(), here["weight"])
print(json.dumps([str(there["weight"].device), str(here["weight"].device), equal]))
"""
    assert devices.run(program) == ["cuda:0", "cpu", True]


def test_copies_cost_what_was_planted_and_only_pinned_ones_run_beside_the_host(kind: str) -> None:
    program = """
import json, time, torch
MB = 1 << 20
slow = torch.empty(4 * MB, dtype=torch.uint8)
fast = slow.pin_memory()
torch.cuda.synchronize()
def counted(x, non_blocking):
    before = counts()
    x.to("cuda", non_blocking=non_blocking)
    after = counts()
    return [after[k] - before[k] for k in ("copy_ns", "synchronisations")]
rows = [counted(slow, False), counted(fast, False), counted(fast, True)]
print(json.dumps([fast.is_pinned(), *rows]))
"""
    settings = "pageable_gbytes_per_s=1;pinned_gbytes_per_s=4;copy_us=0"
    pinned, pageable, blocking, beside = devices.run(program, settings, kind=kind)
    assert pinned
    assert pageable == [pytest.approx(4 * 1048576, rel=0.01), 1]
    assert blocking == [pytest.approx(1048576, rel=0.01), 1]
    assert beside == [pytest.approx(1048576, rel=0.01), 0]


def test_events_streams_and_synchronisation_follow_the_devices_clock(kind: str) -> None:
    """Kernels of 200 ms each: the host is done at once, the device is not."""
    program = """
import json, torch
x = torch.ones(8, device="cuda")
torch.cuda.synchronize()
before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
before.record()
for _ in range(5):
    torch.relu(x)
after.record()
early = after.query()
waited = counts()["waited_ns"]
after.synchronize()
waited = counts()["waited_ns"] - waited
beside = torch.cuda.Stream()
with torch.cuda.stream(beside):
    torch.relu(x)
    inside = torch.cuda.current_stream().stream_id == beside.stream_id
torch.cuda.current_stream().wait_stream(beside)
print(json.dumps([before.elapsed_time(after), early, waited, inside, after.query()]))
"""
    elapsed_ms, early, waited_ns, inside, over = devices.run(
        program, "kernel:relu=200000", kind=kind
    )
    assert elapsed_ms >= 1000
    assert (early, inside, over) == (False, True, True)
    assert 0 < waited_ns <= 1e9


def test_memory_is_counted_and_can_run_out() -> None:
    program = """
import json, torch
x = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
held = torch.cuda.memory_allocated()
try:
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    full = ""
except torch.cuda.OutOfMemoryError as error:
    full = str(error)
del x
figures = [held, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
print(json.dumps([*figures, torch.cuda.memory_reserved(), full, torch.cuda.mem_get_info()]))
"""
    held, after, peak, reserved, full, (free, total) = devices.run(program, "memory_mb=64")
    assert (held, after, peak, reserved) == (32 << 20, 0, 32 << 20, 32 << 20)
    assert full.startswith("CUDA out of memory. Tried to allocate 64 MiB")
    assert (free, total) == (32 << 20, 64 << 20)


@pytest.mark.parametrize("count", [2, 8])
def test_several_devices_have_their_own_memory_and_clock(count: int) -> None:
    program = """
import json, torch
last = torch.cuda.device_count() - 1
x = torch.ones(1000, device=f"cuda:{last}") + 1
busy = [counts(i)["kernels"] > 0 for i in range(last + 1)]
with torch.cuda.device(1):
    here = torch.cuda.current_device()
print(json.dumps([str(x.device), busy, here, torch.cuda.memory_allocated(0)]))
"""
    place, busy, here, first = devices.run(program, f"devices={count}")
    assert place == f"cuda:{count - 1}"
    assert busy == [False] * (count - 1) + [True]
    assert (here, first) == (1, 0)


def test_the_profiler_writes_kernels_copies_and_what_launched_them(tmp_path: Any) -> None:
    program = f"""
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
    train("cnn", "cuda")
    torch.cuda.synchronize()
path = {str(tmp_path / "trace.json")!r}
profiled.export_chrome_trace(path)
trace = json.load(open(path))
by_kind = {{}}
for event in trace["traceEvents"]:
    by_kind.setdefault(event.get("cat"), []).append(event)
launches = {{e["args"]["correlation"] for e in by_kind["cuda_runtime"]}}
kernels = by_kind["kernel"]
operators = {{e["args"]["External id"] for e in by_kind["cpu_op"]}}
print(json.dumps([
    all(k["args"]["correlation"] in launches for k in kernels),
    sum(k["args"].get("External id") in operators for k in kernels) / len(kernels),
    sum(k["dur"] for k in kernels) * 1e3, counts()["busy_ns"],
    len(by_kind["gpu_memcpy"]), len(by_kind["ac2g"]) > 0, trace["deviceProperties"][0]["name"],
]))
"""
    launched, known, profiled_ns, busy_ns, copies, flows, name = devices.run(TRAINING + program)
    assert launched
    assert known > 0.95
    assert profiled_ns == pytest.approx(busy_ns, rel=0.01)
    assert copies >= 8
    assert flows
    assert name == "Simulated A100"
