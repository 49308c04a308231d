"""What launches send to other machines: on the first screen, in the details, in the progress."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import samples

from torchdoctor.reports import gate, markdown, network, progress
from torchdoctor.reports.formats import rendered
from torchdoctor.schema import (
    Environment,
    HostContact,
    NetworkUse,
    ProgressEvent,
    WorkloadRecord,
)
from torchdoctor.schema.gate import GateReport
from torchdoctor.schema.record_files import decode_report, encode

HOOK = HostContact(
    host="hooks.example.com", port=443, connections=16, launches=16, methods=["POST"]
)
DATA = HostContact(host="data.example.com", port=443, launches=16, methods=["GET"], sends=False)
USE = NetworkUse(launches=16, hosts=[HOOK, DATA])


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_the_first_screen_names_the_host_and_the_launches(form: str) -> None:
    report = replace(samples.nothing_found(), network=USE)
    options = {"full": False} if form == "terminal" else {}
    shown = rendered(report, form, **options)
    assert "hooks.example.com" in shown and "16 launches" in shown and "--network off" in shown


def test_reads_are_told_in_the_details_alone() -> None:
    reads = replace(USE, hosts=[DATA])
    assert network.sent(reads) == ""
    shown = rendered(replace(samples.nothing_found(), network=reads), "terminal", full=True)
    assert "data.example.com" in shown
    first = rendered(replace(samples.nothing_found(), network=reads), "terminal", full=False)
    assert "data.example.com" not in first


@pytest.mark.parametrize(("launches", "told"), [(16, "each of the 16"), (3, "3 of 16 launches")])
def test_how_many_launches_did_so(launches: int, told: str) -> None:
    use = replace(USE, hosts=[replace(HOOK, launches=launches)])
    assert told in network.sent(use)


def test_many_hosts_are_named_in_part() -> None:
    hosts = [replace(HOOK, host=f"10.0.0.{n}", port=9000) for n in range(5)]
    told = network.sent(replace(USE, hosts=hosts))
    assert "10.0.0.0:9000" in told and "3 more" in told and "10.0.0.4" not in told


def test_the_details_say_that_launches_were_cut_off() -> None:
    report = replace(samples.nothing_found(), network=NetworkUse(mode="off", launches=4))
    assert "--network off" in rendered(report, "terminal", full=True)


def test_progress_warns_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the first launch that shows it, and there are fifteen to come."""
    event = ProgressEvent(phase="observe", message="One")
    with progress.Progress() as shown:
        shown.update(event)
        shown.update(replace(event, message="Two", sends_to=["hooks.example.com"]))
        shown.update(replace(event, message="Three", sends_to=["hooks.example.com"]))
    assert capsys.readouterr().err.count("hooks.example.com") == 1


def test_a_report_without_it_can_be_read() -> None:
    data = json.loads(encode(replace(samples.nothing_found(), network=USE)))
    assert decode_report(json.dumps(data)).network == USE
    del data["network"]
    assert decode_report(json.dumps(data)).network is None


def test_a_gate_warns_too() -> None:
    report = GateReport(
        workload=WorkloadRecord(command=["python", "train.py"]),
        environment=Environment(),
        reference="main",
        verdict="not slower",
        sentence="It is not slower.",
        network=USE,
    )
    assert "hooks.example.com" in markdown.render(gate.document(report), details=False)
    assert "hooks.example.com" not in markdown.render(
        gate.document(replace(report, network=None)), details=True
    )
