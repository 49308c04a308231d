"""Gradients and their exchange as traces show them: bytes, bandwidth and the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed_traces import rank_trace, text
from recorded_traces import FOLDER, statistics

from torchdoctor.queries.gpu_data_sheets import data_sheet
from torchdoctor.queries.scaling import SLOWEST
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import GradientExchange
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

RESNET50_BYTES = 4 * 25_557_032  # its parameters, in float32
needs_recorded = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no recorded traces in {FOLDER}")


def exchange(tmp_path: Path, ranks: int = 2, **how: Any) -> GradientExchange:
    path = tmp_path / "trace.json"
    path.write_bytes(text(rank_trace(ranks=ranks, **how), ranks))
    found = summarise(read_trace(path)).exchange
    assert found is not None
    return found


@pytest.mark.parametrize("sizes_in", ["kernel", "range"])
def test_all_reduces_say_how_much_and_how_fast(sizes_in: str, tmp_path: Path) -> None:
    found = exchange(tmp_path, sizes_in=sizes_in)
    assert found.known_from == "all-reduce"
    assert found.ranks == 2
    assert found.gradient_bytes == 16_000_000
    assert found.last_bytes == 4_000_000
    assert found.exchange_s == pytest.approx(0.003)
    # Two ranks: each link carries as many bytes as the tensor has. 12 MB in 2 ms, 4 MB in 1 ms.
    assert found.best_bytes_per_s == pytest.approx(6e9)
    assert found.mean_bytes_per_s == pytest.approx(16e6 / 0.003)
    assert found.backward_s == pytest.approx(0.004)  # from the first kernel to the last


def test_eight_ranks_send_more_than_two_for_the_same_tensor(tmp_path: Path) -> None:
    assert exchange(tmp_path, ranks=8).best_bytes_per_s == pytest.approx(2 * 7 / 8 * 6e9)


def test_reduce_scatters_exchange_whole_gradients_once(tmp_path: Path) -> None:
    found = exchange(tmp_path, ranks=4, collective="ReduceScatter")
    assert found.known_from == "reduce-scatter"
    assert found.gradient_bytes == 16_000_000
    assert found.best_bytes_per_s == pytest.approx(3 / 4 * 6e9)


def test_a_single_process_tells_its_gradients_by_what_the_backward_pass_accumulates(
    tmp_path: Path,
) -> None:
    found = exchange(tmp_path, ranks=1, collective="")
    assert (found.known_from, found.gradient_bytes) == ("backward", 2 * 8_000_000)
    assert found.ranks is None
    assert found.best_bytes_per_s is None


def test_without_sizes_nothing_is_said_of_bytes(tmp_path: Path) -> None:
    found = exchange(tmp_path, sizes_in=None, gradients=False)
    assert (found.known_from, found.gradient_bytes, found.last_bytes) == (None, None, None)
    assert found.mean_bytes_per_s is None
    assert found.exchange_s == pytest.approx(0.003)


def test_other_collectives_are_told_apart(tmp_path: Path) -> None:
    assert exchange(tmp_path, other_us=500.0).other_s == pytest.approx(0.0005)
    assert exchange(tmp_path).other_s == 0


@needs_recorded
@pytest.mark.parametrize("name", ["a100_cpu_bound_ddp", "v100_resnet50_workers0"])
def test_a_recorded_resnet50_has_its_gradients(name: str) -> None:
    # Among two ranks by their all-reduces, in a single process by its backward pass.
    found = statistics(name).exchange
    assert found is not None
    assert found.gradient_bytes == RESNET50_BYTES


@needs_recorded
def test_recorded_bandwidths_are_below_what_the_links_can() -> None:
    for name, most in (("v100_memcpy_second", 150e9), ("a100_blocking_memcpy", 300e9)):
        found = statistics(name).exchange
        assert found is not None
        assert found.mean_bytes_per_s is not None
        assert found.best_bytes_per_s is not None
        assert 5e9 < found.mean_bytes_per_s < found.best_bytes_per_s < most


@needs_recorded
def test_the_data_sheets_links_bound_what_sixteen_a100s_took() -> None:
    file = FOLDER / "a100_blocking_memcpy.json.gz"
    if not file.exists():
        pytest.skip(f"{file} is missing")
    report = trace_checkup([str(file)])
    found, sheet = report.scaling, data_sheet(report.environment.gpus[0].name)
    assert found is not None and report.trace is not None and sheet is not None and sheet.links
    exchange = report.trace.exchange
    assert exchange is not None and exchange.exchange_s and exchange.gradient_bytes
    rate = 2 * 15 / 16 * exchange.gradient_bytes / exchange.exchange_s
    assert SLOWEST * sheet.links[0] < rate < sheet.links[1]
    # Its ranks exchange embeddings as well, which the model knows nothing of.
    assert found.rows == []
