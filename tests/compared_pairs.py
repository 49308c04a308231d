"""Reports that differ in known ways, for tests of comparisons."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report
from torchdoctor.schema.comparison import Comparison

ROOT = Path(__file__).parent.parent


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


synthetic = _load(ROOT / "tests" / "synthetic_traces.py")
samples = _load(ROOT / "tests" / "reports" / "samples.py")


def trace_of(loader_us=300.0, kernels=1, collective_us=0.0, steps=5):
    """Each step waits for its batch, computes 400 us a kernel, then reduces, all of it exposed."""
    trace, at = synthetic.TraceBuilder(), 0.0
    for number in range(steps):
        begin = at
        trace.slice("user_annotation", synthetic.LOADER, at, at + loader_us)
        at += loader_us
        for _ in range(kernels):
            trace.operator("aten::mm", at, at + 20)
            launch = trace.call("cudaLaunchKernel", at + 5, at + 15)
            trace.kernel("ampere_sgemm_128x64_nn", at + 5, at + 400, launch)
            at += 400
        if collective_us:
            launch = trace.call("cudaLaunchKernel", at - 30, at - 20)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            trace.kernel(name, at, at + collective_us, launch, stream=20)
            at += collective_us
        trace.step(number, begin, at)
    return trace


def diagnosed(folder: Path, name: str, trace, **metadata) -> Report:
    path = folder / name
    path.write_bytes(trace.text(**metadata))
    return trace_checkup([str(path)])


def run_with(factor: float = 1.0, **more) -> Report:
    """The sample run with each launch `factor` times as long."""
    report = samples.loader_bound()
    time = report.baseline.step_time_s
    baseline = replace(
        report.baseline,
        launches_s=[s * factor for s in report.baseline.launches_s],
        step_time_s=replace(time, median=time.median * factor, mean=time.mean * factor),
        samples_per_s=report.baseline.samples_per_s / factor,
        launches_by="median",
        launches_per="step",
    )
    return replace(report, baseline=baseline, **more)


def facts_of(compared: Comparison) -> dict[str, dict[str, Any]]:
    """The values of what a comparison answers, by fact."""
    return {x.fact: x.values for x in compared.answer}


def remarks_of(compared: Comparison) -> dict[str, dict[str, Any]]:
    """The values of what weakens a comparison, by fact."""
    return {x.fact: x.values for x in compared.remarks}
