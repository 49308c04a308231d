"""Traces of the installed torch, without a GPU, against the profiler's own sums."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from partial_recordings import recording

from torchdoctor.checks import memset_share
from torchdoctor.schema import TraceStatistics
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

torch = pytest.importorskip("torch")

# In one process, which imports torch and records once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("traces-of-torch")]
STEPS = 3


class SlowPictures(torch.utils.data.Dataset):
    """Pictures that take a while to make, in operators."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = torch.randn(3, 32, 32)
        for _ in range(30):
            picture = (picture * 1.01).roll(1, dims=1)
        return picture, index % 10


def record(folder: Path, workers: int) -> tuple[Path, torch.profiler.profile]:
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(28800, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = torch.utils.data.DataLoader(SlowPictures(), batch_size=8, num_workers=workers)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        record_shapes=True,
    ) as profiler:
        for number, (pictures, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
            if number == STEPS + 1:
                break
    file = folder / f"workers{workers}.json"
    profiler.export_chrome_trace(str(file))
    return file, profiler


@pytest.fixture(scope="module", params=[0, 1])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    file, profiler = record(tmp_path_factory.mktemp("trace"), request.param)
    return file, profiler, summarise(read_trace(file)), request.param


def test_self_time_and_calls_agree_with_key_averages(recorded: tuple) -> None:
    _, profiler, found, _ = recorded
    expected = {event.key: event for event in profiler.key_averages()}
    assert len(found.operators) > 20
    for operator in found.operators:
        event = expected[operator.name]
        assert operator.calls_per_step * STEPS == pytest.approx(event.count), operator.name
        # The profiler rounds every event to whole nanoseconds or microseconds by version.
        allowed = 1e-6 * max(1.0, 0.01 * event.self_cpu_time_total, 0.002 * event.count)
        assert operator.self_s * STEPS == pytest.approx(
            event.self_cpu_time_total * 1e-6, abs=allowed
        ), operator.name


def test_the_convolution_is_found_with_its_shapes(recorded: tuple) -> None:
    found: TraceStatistics = recorded[2]
    by_name = {operator.name: operator for operator in found.operators}
    convolution = by_name.get("aten::mkldnn_convolution") or by_name["aten::_convolution"]
    assert "[8, 3, 32, 32]" in (convolution.shapes or "")


def test_the_step_adds_up(recorded: tuple) -> None:
    file, _, found, _ = recorded
    events = json.loads(file.read_text())["traceEvents"]
    steps = [e for e in events if str(e.get("name")).startswith("ProfilerStep#")]
    assert found.steps == len(steps) == STEPS
    assert found.step_s == pytest.approx(sum(e["dur"] for e in steps) / STEPS * 1e-6, rel=1e-3)
    loading = sum(
        e["dur"] for e in events if str(e.get("name")).startswith("enumerate(DataLoader)#")
    )
    shares = found.shares
    assert shares.data_loader == pytest.approx(loading / STEPS * 1e-6 / found.step_s, abs=0.01)
    assert shares.data_loader + shares.cpu + shares.other == pytest.approx(1.0)
    assert shares.other * found.step_s <= found.python_s
    parts = (found.compute_s, found.small_operator_s, found.python_s)
    assert all(part > 0 for part in parts)
    assert sum(parts) + shares.data_loader * found.step_s <= found.step_s


def test_operators_of_the_loader_are_not_the_models(recorded: tuple) -> None:
    """With no worker the dataset's 240 operators and more run inside the step, in the loader."""
    file, _, found, _ = recorded
    names = Counter(
        e["name"] for e in json.loads(file.read_text())["traceEvents"] if e.get("cat") == "cpu_op"
    )
    assert found.operator_calls_per_step < 200
    if recorded[3] == 0:
        assert names["aten::roll"] >= 240 * STEPS


def test_compressed_and_in_a_folder_it_reads_the_same(recorded: tuple, tmp_path: Path) -> None:
    file, _, found, _ = recorded
    packed = tmp_path / "rank0.json.gz"
    with file.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    again = summarise(read_trace(packed))
    assert again.shares == found.shares
    assert again.operators == found.operators


def test_self_times_fill_the_outermost_operators(recorded: tuple) -> None:
    """Self times of all operators sum to the time that the outermost ones span, per thread."""
    import numpy as np

    from torchdoctor.trace.nesting import nest

    trace = read_trace(recorded[0])
    nesting = nest(trace.operators)
    outermost = nesting.parent < 0
    spans: dict[int, int] = defaultdict(int)
    for thread, length in zip(
        trace.operators.thread[outermost],
        (trace.operators.end - trace.operators.start)[outermost],
        strict=True,
    ):
        spans[int(thread)] += int(length)
    filled = np.bincount(trace.operators.thread, weights=nesting.self_ns)
    for thread, span in spans.items():
        assert filled[thread] == pytest.approx(span, rel=1e-3)


def test_memory_that_is_filled_in_every_step_is_found_with_its_operator(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    steps = schedule(wait=1, warmup=1, active=2)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, record_shapes=True) as profiler:
        for _ in range(4):
            torch.zeros(3000, 3000)[0, 0].item()
            profiler.step()
    file = tmp_path / "fills.json"
    profiler.export_chrome_trace(str(file))
    found = replace(recording({"processes": []}), trace=summarise(read_trace(file)))
    [finding] = memset_share.CHECK.findings(found)
    assert finding.share_of_step > memset_share.CHECK.threshold
    fills = ("aten::fill_", "aten::zero_")
    calls = [fact.values for fact in finding.evidence if fact.values.get("name") in fills]
    assert calls and all(values["calls"] == 1 for values in calls)
    assert "[3000, 3000]" in calls[0]["sizes"]
