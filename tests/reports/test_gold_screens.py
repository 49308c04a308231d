"""The first screens of every recorded trace and every sample workload, word for word.

One file each, at 100 columns without colour. The workloads' are of stored reports
(`workloads.json.gz`), the traces' of the traces themselves, which lie outside the project.

After a wanted change: TORCHDOCTOR_UPDATE_GOLD=1 python -m pytest tests/reports -k gold
"""

from __future__ import annotations

import functools
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import recorded_traces
from samples import GATE
from test_gold import approved

from torchdoctor.compare import compare
from torchdoctor.reports import comparison, gate, terminal
from torchdoctor.reports.document import Document
from torchdoctor.reports.formats import document
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema.gate import GateMetric
from torchdoctor.schema.record_files import decode_report

TRACES = sorted(page.stem for page in (recorded_traces.PROJECT / "docs" / "traces").glob("*.md"))
STORED = Path(__file__).with_name("workloads.json.gz")


@functools.cache
def stored() -> dict[str, dict]:
    """The reports of the sample workloads, by name."""
    return json.loads(gzip.decompress(STORED.read_bytes()))


def is_one_screen(shown: Document, most_lines: int) -> None:
    for width in (100, 80):
        lines = terminal.render(shown, width, False).splitlines()
        assert len(lines) <= most_lines, lines
        assert all(len(line) <= width for line in lines), [x for x in lines if len(x) > width]


def screen(shown: Document) -> str:
    """Return the screen as it is approved: 100 columns, without colour."""
    return terminal.render(shown, 100, False)


def test_each_sample_workload_has_its_stored_report() -> None:
    scripts = (recorded_traces.PROJECT / "sample_workloads").glob("*.py")
    assert {script.stem for script in scripts} - {"expectations"} == set(stored())


@pytest.mark.parametrize("name", TRACES)
def test_the_screen_of_a_trace_is_as_it_was_approved(name: str) -> None:
    folder = recorded_traces.FOLDER / name
    if folder.is_dir():
        report = trace_checkup([str(folder)])
    else:
        recorded_traces.path(name)
        report = recorded_traces.report(name)
    shown = document(report)
    approved(f"traces/{name}.txt", screen(shown))
    is_one_screen(shown, 40)


@pytest.mark.parametrize("name", sorted(stored()))
def test_the_screen_of_a_sample_workload_is_as_it_was_approved(name: str) -> None:
    report = decode_report(json.dumps(stored()[name]))
    shown = document(report, "/home/ada/torchdoctor")
    approved(f"workloads/{name}.txt", screen(shown))
    is_one_screen(shown, 40)


def test_the_screen_of_a_comparison_is_as_it_was_approved() -> None:
    names = ("v100_resnet50_workers0", "v100_resnet50_workers4")
    for name in names:
        recorded_traces.path(name)
    shown = comparison.document(compare(*map(recorded_traces.report, names), names))
    approved("traces_compared.txt", screen(shown))
    is_one_screen(shown, 15)


def test_the_screen_of_a_gate_is_as_it_was_approved() -> None:
    others = [
        GateMetric(name="peak_memory", reference=1e9, new=1.1e9, unit="bytes", tolerance=0.1),
        GateMetric(name="data_loader_share", reference=0.1, new=0.2, unit="share"),
    ]
    doubts = ["Other programs kept 1.6 of 2 usable CPUs busy.", "The second doubt."]
    full = replace(GATE, metrics=[*GATE.metrics, *others], doubts=doubts)
    approved("gate.txt", screen(gate.document(full)))
    is_one_screen(gate.document(full), 15)
