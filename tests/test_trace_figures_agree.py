"""What one report says twice of the same thing has one figure: of recorded traces, and of ours."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from compared_pairs import diagnosed, synthetic
from recorded_traces import FOLDER

from torchdoctor.reports.formats import rendered
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report

pytestmark = pytest.mark.xdist_group("traces")
_PART = r"(?:each step|the trace|a step|the step)"
# Each thing, and how sentences, tables and bars state it; the first group is its figure.
SHARES = {
    "gpu": [
        r"(\d[\d.]*) % GPU kernels",
        rf"The GPU computes (?:only )?(\d+) % of {_PART}",
        r"Is GPU utilization high\? (?:yes|no) (\d[\d.]*) %",
        r"the GPU computes (\d+) % of the step",
    ],
    "data_loader": [
        r"(\d[\d.]*) % waiting for data",
        rf"waits for data (\d+) % of {_PART}",
        r"Is data loader time high\? (?:yes|no) (\d[\d.]*) %",
    ],
    "memcpy, blocked": [
        rf"Memory copies hold up (\d+) % of {_PART}",
        r"Is memory copy time high\? (?:yes|no) (\d[\d.]*) %",
    ],
    "communication": [
        r"(\d[\d.]*) % communication",
        rf"Communication between devices takes (\d+) % of {_PART}",
        r"Is communication time high\? (?:yes|no) (\d[\d.]*) %",
    ],
    "host": [
        rf"waits for the host, which takes (\d+) % of {_PART}",
        r"Is CPU execution high\? (?:yes|no) (\d[\d.]*) %",
    ],
    "idle": [r"GPU idle (\d[\d.]*) %", r"and idles (\d+) % of it"],
    "python": [
        r"Python outside any operator takes (\d+) % of",
        r"outside-operators (\d[\d.]*) %",
    ],
    "other": [
        r"(\d[\d.]*) % other(?! kernels)",
        r"Is anything else high\? (?:yes|no) (\d[\d.]*) %",
    ],
    "softmax": [
        r"softmax and their batched products take (\d+) % of",
        r"unfused-attention (\d+) %",
    ],
}
GAINS = {
    "gpu": [
        r"without GPU kernels:? (?:[\d.]+ \w+ \()?([\d.]+)x",
        r"([\d.]+)x as fast without the GPU's k",
        r"Without the GPU's kernels it would be ([\d.]+)x",
    ],
    "cpu": [
        r"without CPU operators and Python:? (?:[\d.]+ \w+ \()?([\d.]+)x",
        r"Without the host's operators, Python and launches it would be ([\d.]+)x",
    ],
    "data_loader": [r"without waiting for data:? (?:[\d.]+ \w+ \()?([\d.]+)x"],
    "runtime": [r"without GPU driver calls:? (?:[\d.]+ \w+ \()?([\d.]+)x"],
}
RECORDED = sorted(path.name for path in FOLDER.glob("*") if path.suffix != ".md")


def text_of(report: Report) -> str:
    return " ".join(rendered(report, "terminal", width=400).split())


def stated(text: str, patterns: dict[str, list[str]]) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = defaultdict(list)
    for thing, ways in patterns.items():
        for way in ways:
            figures[thing] += [float(figure) for figure in re.findall(way, text)]
    return figures


def disagreements(report: Report) -> list[str]:
    """Return each thing whose figures are further apart than they are rounded."""
    text = text_of(report)
    wrong = [
        f"{thing}: {figures}"
        for thing, figures in stated(text, SHARES).items()
        if figures and max(figures) - min(figures) > 1.01
    ]
    wrong += [
        f"without {thing}: {figures}"
        for thing, figures in stated(text, GAINS).items()
        if figures and max(figures) - min(figures) > 0.011
    ]
    trace = report.trace
    assert trace is not None
    bar = stated(text, SHARES)
    if bar["gpu"] and bar["host"]:  # all that is said of a step lies in it
        total = bar["gpu"][0] + bar["host"][-1] + sum(bar[x][0] for x in ("other",) if bar[x])
        wrong += [f"GPU, host and the rest: {total} %"] * (total > 101.5)
    for ms, share in re.findall(r": (\d[\d.]*) ms \((\d[\d.]*) %", text):
        ratio = 100 * float(ms) / 1000 / (trace.step_s or 1)
        if abs(ratio - float(share)) > 0.02 * ratio + 0.6:
            wrong.append(f"{ms} ms is {ratio:.1f} % of the step, not {share} %")
    for finding in report.diagnosis.findings:
        share = finding.share_of_step
        if share is not None and not 0 <= share <= 1:
            wrong.append(f"{finding.check}: {share}")
    wrong += _of_a_whole(report, bar)
    for denied in ("other work hides", "hardly any gain"):
        if denied in text and "it is the limit" in text:
            wrong.append(f"the limit, and {denied}")
    promised = re.search(r"not measured ([\d.]+)x at most", text)
    gains = [float(x) for x in re.findall(r"without [\w ,]+: [\d.]+ \w+ \(([\d.]+)x\)", text)]
    if promised and float(promised[1]) > max(gains, default=0.0) + 0.011:
        wrong.append(f"{promised[0]}, of {gains}")
    if "Measured on" in text:
        wrong.append("nothing was measured")
    host = report.diagnosis.bottleneck == "cpu"
    overhead = [f for f in report.diagnosis.findings if f.check == "python-overhead"]
    if overhead and bar["host"] and 100 * (overhead[0].share_of_step or 0) > bar["host"][-1] + 1:
        wrong.append(f"Python takes more than the host: {overhead[0].evidence[0].sentence}, {host}")
    return wrong


def _of_a_whole(report: Report, bar: dict[str, list[float]]) -> list[str]:
    """Return each sum of parts that exceeds its whole."""
    trace, shares = report.trace, report.baseline.shares
    assert trace is not None
    used = sum(filter(None, (shares.gpu, shares.memcpy, shares.memset, shares.communication)))
    parts = {"idle and used": (sum(bar["idle"][:1]) + 100 * used * bool(bar["idle"]), 101.0)}
    if trace.has_device and trace.step_s and not trace.unusual:
        kernels = 100 * sum(x.device_s for x in trace.kernels) / trace.step_s
        parts["kernels"] = (kernels, 100 * (shares.gpu or 0.0) + 1)
        python = sum(bar["python"][:1])
        parts["Python"] = (python, 100 * ((shares.cpu or 0.0) + (shares.other or 0.0)) + 1)
    blocked_s, exposed_s = trace.blocking_copy_s or 0.0, trace.blocking_copy_exposed_s or 0.0
    parts["exposed copies"] = (exposed_s, blocked_s + 1e-9)
    return [f"{name}: {part} of {whole}" for name, (part, whole) in parts.items() if part > whole]


@pytest.mark.parametrize(
    "name", RECORDED or [pytest.param("", marks=pytest.mark.skip("no traces"))]
)
def test_the_figures_of_a_recorded_trace_agree(name: str) -> None:
    assert disagreements(trace_checkup([str(FOLDER / name)])) == []


def test_the_figures_of_a_trace_of_ours_agree(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, "trace.json", synthetic.every_branch())
    assert disagreements(report) == []
    found = stated(text_of(report), SHARES)
    assert len(found["gpu"]) >= 3 and len(found["host"]) >= 1  # the patterns still read sentences
