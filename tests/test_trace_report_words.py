"""What a reader of `diagnose` takes from its words: figures, units and names that hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from compared_pairs import diagnosed, synthetic

from torchdoctor.records import Report
from torchdoctor.records.report import StepTime


def of_steps(folder: Path, *milliseconds: float) -> Report:
    trace, at = synthetic.TraceBuilder(), 0.0
    for number, one in enumerate(milliseconds):
        trace.step(number, at, at + 1e3 * one)
        trace.operator("aten::mm", at, at + 900 * one)
        at += 1e3 * one
    return diagnosed(folder, "trace.json", trace)


def test_the_median_of_two_steps_lies_between_them(tmp_path: Path) -> None:
    """608 and 631 ms: "step 631 ms", and TensorBoard drew another figure beside it."""
    time = of_steps(tmp_path, 608, 631).baseline.step_time_s
    assert time is not None
    assert time.median == pytest.approx(0.6195)
    assert 0.608 < time.p10 < time.median < time.p90 < 0.631


@pytest.mark.parametrize("times", [[3.0], [2.0, 1.0], [5.0, 1.0, 2.0], [4.0, 3.0, 2.0, 9.0, 1.0]])
def test_quantiles_are_numpys(times: list[float]) -> None:
    numpy = pytest.importorskip("numpy")
    found = StepTime.of(times)
    expected = numpy.quantile(times, [0.1, 0.5, 0.9])
    assert [found.p10, found.median, found.p90] == pytest.approx(list(expected))
